"""LangChain messages, and states and state histories of LangGraph threads.

Sources: ``messages_to_dict`` and ``dumpd`` of langchain-core, ``get_state`` and ``get_state_history`` of
LangGraph (also as JSON of its server). A history is a run of its thread: the path to the newest checkpoint is
the current branch, a replay or an edit that ended elsewhere is an abandoned branch. A subgraph whose messages
are not in its parent is a separate run.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentguard.errors import FormatError, InputError
from agentguard.trajectory.formats._chat_messages import ParsedChat, is_chat_message, parse_chat
from agentguard.trajectory.formats._label_fields import infer_failed, split_labels
from agentguard.trajectory.formats._langchain_messages import (
    is_langchain_message,
    is_removal,
    normalize_langchain_message,
)
from agentguard.trajectory.formats._step_builder import count_unknown_parts
from agentguard.trajectory.formats.base import SourceItem, UnreadableRecord
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Branch, Record, Step, Trajectory

_STATE_FIELDS = ("next", "tasks", "config", "checkpoint", "parent_config", "parent_checkpoint")
_MAX_SAMPLED_MESSAGES = 8
_CHECKPOINT_FIELDS = (("checkpoint", "config"), ("parent_checkpoint", "parent_config"))


class LangChain:
    """Importer of LangChain messages and LangGraph states."""

    name = "langchain"
    summary = "LangChain messages, LangGraph states and state histories"

    def score_match(self, value: Any) -> float:
        """Return a positive score for messages in LangChain's spellings, alone or in the state of a graph."""
        if isinstance(value, Mapping) and isinstance(value.get("values"), Mapping | list):
            return 0.97 if not set(_STATE_FIELDS).isdisjoint(value) else 0.0
        if isinstance(value, list) and value and all(_is_state(item) for item in value[:3]):
            return 0.98
        messages = value if isinstance(value, list) else _find_channel(value)[1]
        sample = messages[:_MAX_SAMPLED_MESSAGES]
        return 0.95 * sum(map(is_langchain_message, sample)) / len(sample) if sample else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the run of messages or a state, or the runs of a history."""
        if _is_state(value):
            yield from _build_records([_parse_state(JsonNode(value), 0)], name)
        elif isinstance(value, list) and value and all(_is_state(item) for item in value):
            states = [_parse_state(JsonNode(item, f"[{i}]"), i) for i, item in enumerate(value)]
            yield from _build_records(states, name)
        else:
            yield _build_message_record(value, name)

    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs of lines: checkpoints of any threads, messages of one run, or one run per line."""
        states: list[_State] = []
        messages: list[Any] = []
        for item in items:
            try:
                if _is_state(item.read()):
                    states.append(_parse_state(JsonNode(item.value), item.position))
                elif is_langchain_message(item.value) or is_chat_message(item.value):
                    messages.append(item.value)
                else:
                    yield from self.parse(item.value, name=f"{name}#{item.position}")
            except InputError as error:
                yield UnreadableRecord(error=error.with_location(record=item.position))
        yield from _build_records(states, name)
        if messages:
            yield _build_message_record(messages, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class _State:
    """Checkpoint of a thread; ``position`` is its place in the source, newest first in a history."""

    position: int
    thread: str
    namespace: str
    id: str
    parent: str
    created_at: str
    messages: list[Any]
    values: Mapping[str, Any]
    ending: str | None


def _is_state(value: Any) -> bool:
    has_values = isinstance(value, Mapping) and isinstance(value.get("values"), Mapping | list)
    return has_values and not set(_STATE_FIELDS).isdisjoint(value)


def _parse_state(node: JsonNode, position: int) -> _State:
    channel, messages = _find_channel(node.raw("values"))
    own, parent = (_read_checkpoint(node, *keys) for keys in _CHECKPOINT_FIELDS)
    values = node.raw("values")
    return _State(
        position=position,
        thread=own.scalar_or("thread_id"),
        namespace=own.text_or("checkpoint_ns"),
        id=own.scalar_or("checkpoint_id") or f"state-{position}",
        parent=parent.scalar_or("checkpoint_id"),
        created_at=node.text_or("created_at"),
        messages=messages,
        values={key: item for key, item in values.items() if key != channel}
        if isinstance(values, Mapping)
        else {},
        ending=_find_ending(node),
    )


def _read_checkpoint(node: JsonNode, key: str, config_key: str) -> JsonNode:
    """Return ids of a checkpoint: an object of the server, or the configuration of the library."""
    if key in node:
        return node.node(key)
    return node.node_or(config_key).node_or("configurable")


def _find_channel(value: Any) -> tuple[str, list[Any]]:
    """Return the name and the content of the channel with the messages of a state."""
    if isinstance(value, list):
        return "", value
    if not isinstance(value, Mapping):
        return "", []
    for key in ("messages", *value):
        items = value.get(key)
        if isinstance(items, list) and items and (is_langchain_message(items[0]) or key == "messages"):
            return key, items
    return "", []


def _find_ending(node: JsonNode) -> str | None:
    """Return the error or interrupt of the last task; None if the state has neither."""
    for task in node.nodes_or("tasks"):
        if isinstance(task.raw("error"), str) and task.raw("error"):
            return task.text("error")
        if task.items_or("interrupts"):
            return "interrupt"
    return None


def _build_message_record(value: Any, name: str) -> Record:
    node = JsonNode({"messages": value}) if isinstance(value, list) else JsonNode.from_value(value)
    channel, messages = _find_channel(node.data)
    if not messages:
        raise FormatError("no messages of LangChain", field=node.field_path("messages"))
    chat = _parse_messages(messages, channel)
    facts, labels = split_labels(node.extra_fields(channel, "id"))
    run = _build_run(node.scalar_or("id") or name, chat, extra=facts)
    return Record(trajectory=run, annotation=Annotation(failed=infer_failed(labels), extra=labels))


def _build_records(states: list[_State], name: str) -> Iterator[Record]:
    threads: dict[tuple[str, str], list[_State]] = {}
    for state in states:
        threads.setdefault((state.thread, state.namespace), []).append(state)
    for (thread, namespace), checkpoints in threads.items():
        root = threads.get((thread, ""))
        if namespace and root and not _has_own_messages(checkpoints, root):
            continue
        id = "/".join(filter(None, (thread or name, namespace)))
        yield _build_history(id, sorted(checkpoints, key=lambda state: -state.position))


def _has_own_messages(checkpoints: Sequence[_State], root: Sequence[_State]) -> bool:
    known = {_get_message_id(message) for state in root for message in state.messages}
    return any(_get_message_id(message) not in known for state in checkpoints for message in state.messages)


def _build_history(id: str, states: list[_State]) -> Record:
    """Return the run of a thread, from the states in order of age."""
    if len(states) > 1 and states[0].created_at > states[-1].created_at:
        states.reverse()
    by_id = {state.id: state for state in states}
    parents = {state.parent for state in states}
    leaves = [state for state in states if state.id not in parents] or states[-1:]
    last = leaves[-1]
    chat = _parse_messages(_collect_messages(last, by_id), "messages")
    branches = (_build_branch(leaf, chat, by_id) for leaf in leaves[:-1])
    facts, labels = split_labels(last.values)
    run = _build_run(
        id,
        chat,
        exit_status=last.ending,
        branches=tuple(branch for branch in branches if branch is not None),
        extra={"values": facts} if facts else {},
    )
    return Record(trajectory=run, annotation=Annotation(failed=infer_failed(labels), extra=labels))


def _collect_messages(leaf: _State, by_id: Mapping[str, _State]) -> list[Any]:
    """Return all messages of the checkpoints that lead to ``leaf``, also those removed later.

    A message gets the time of the first checkpoint that has it.
    """
    path, current, visited = [leaf], by_id.get(leaf.parent), {leaf.id}
    while current is not None and current.id not in visited:
        visited.add(current.id)
        path.append(current)
        current = by_id.get(current.parent)
    collected: dict[str, Any] = {}
    for state in reversed(path):
        for message in state.messages:
            id = _get_message_id(message)
            time = collected.get(id, {}).get("timestamp") or state.created_at
            if isinstance(message, Mapping) and not is_removal(message):
                normalized = normalize_langchain_message(message) or dict(message)
                collected[id] = {**normalized, **({"timestamp": time} if time else {})}
    return list(collected.values())


def _get_message_id(message: Any) -> str:
    normalized = normalize_langchain_message(message) if isinstance(message, Mapping) else None
    id = (normalized or message).get("id") if isinstance(message, Mapping) else None
    return id if isinstance(id, str) and id else repr(message)


def _build_branch(leaf: _State, main: ParsedChat, by_id: Mapping[str, _State]) -> Branch | None:
    steps = _parse_messages(_collect_messages(leaf, by_id), "messages").steps
    fork = 0
    while fork < min(len(steps), len(main.steps)) and _is_same(steps[fork], main.steps[fork]):
        fork += 1
    if fork == len(steps):
        return None
    return Branch(id=leaf.id, fork_step=fork, steps=steps[fork:], reason=leaf.ending or "")


def _is_same(one: Step, other: Step) -> bool:
    return one == other or (
        one.extra.get("id") is not None and one.with_observations(()) == other.with_observations(())
    )


def _parse_messages(messages: list[Any], path: str) -> ParsedChat:
    normalized = [
        normalize_langchain_message(message) or message for message in messages if not is_removal(message)
    ]
    return parse_chat(normalized, path=path)


def _build_run(id: str, chat: ParsedChat, branches: tuple[Branch, ...] = (), **fields: Any) -> Trajectory:
    return Trajectory(
        id=id,
        format=LangChain.name,
        task=chat.task,
        steps=chat.steps,
        system_prompts=chat.system_prompts,
        branches=branches,
        unknown_parts=count_unknown_parts(chat.steps, branches),
        **fields,
    )


FORMAT = LangChain()
