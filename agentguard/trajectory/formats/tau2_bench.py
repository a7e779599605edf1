"""tau2-bench results: dialogues of an agent and a simulated user, both with tools, and a reward.

A file is ``{info, tasks, simulations: [{id, task_id, trial, messages, termination_reason, reward_info}]}``.
Newer versions write each simulation into a file of a folder ``simulations`` beside the file. The policy is in
``info.environment_info``. Tasks have the gold actions and the script of the user, so they are in the
annotation, as are ``reward_info`` and reviews.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from agentguard.errors import InputError
from agentguard.trajectory.formats._chat_messages import (
    build_chat_call,
    drop_none,
    parse_chat,
    parse_tool_specs,
)
from agentguard.trajectory.formats._content_parts import parse_content
from agentguard.trajectory.formats._dataset_folder import read_document
from agentguard.trajectory.formats.base import UnreadableRecord, parse_runs
from agentguard.trajectory.formats.reader import list_run_files
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Annotation, Record, Trajectory
from agentguard.trajectory.usage import add_run_totals, parse_usage

_FOLDER = "simulations"
_THINKING = "thinking_blocks"
_PASS_THRESHOLD = 1 - 1e-6
_FACTS = ("id", "task_id", "trial", "seed", "start_time", "end_time", "duration", "agent_cost", "user_cost")
_READ_FIELDS = ("messages", "policy", "termination_reason", "ticks")
_OMITTED_MESSAGE_FIELDS = ("raw_data", "tool_calls", "requestor", "turn_idx", "cost", "error", "id")


class Tau2Bench:
    """Importer of tau2-bench results."""

    name = "tau2_bench"
    summary = "tau2-bench results: an agent and a simulated user with tools, and a reward"

    def score_match(self, value: Any) -> float:
        """Return a positive score for a file with tasks and an environment, or a single simulation."""
        if not isinstance(value, dict):
            return 0.0
        if isinstance(value.get("info"), Mapping) and isinstance(value.get("tasks"), list):
            return 0.95 if _FOLDER in value or "environment_info" in value["info"] else 0.0
        is_simulation = {"task_id", "termination_reason", "messages"} <= value.keys()
        return 0.97 if is_simulation and "reward_info" in value else 0.0

    def parse(self, value: Any, *, name: str) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs of a file or of a simulation. Raises FormatError if there is no simulation."""
        node = JsonNode.from_value(value)
        if "termination_reason" in node:
            yield _parse_simulation(node, JsonNode({}), name)
            return
        if _FOLDER not in node:
            hint = f"read the folder that has this file and the folder {_FOLDER!r}"
            raise node.build_error(_FOLDER, "missing", hint=hint)
        simulations = ((one, f"{_FOLDER}[{i}]") for i, one in enumerate(node.items(_FOLDER)))
        yield from parse_runs(simulations, lambda one: _parse_simulation(one, node, name))

    def parse_folder(self, folder: Path) -> Iterator[Record | UnreadableRecord] | None:
        """Yield the runs of a file with a folder of simulations beside it; None for another folder."""
        if not (folder / _FOLDER).is_dir():
            return None
        for path in sorted(folder.glob("*.json")):
            try:
                value = read_document(path)
            except InputError:
                continue
            if self.score_match(value) > 0 and _FOLDER not in value:
                return _parse_folder(folder / _FOLDER, JsonNode(value))
        return None


def _parse_folder(folder: Path, document: JsonNode) -> Iterator[Record | UnreadableRecord]:
    for path in list_run_files(folder):
        try:
            yield _parse_simulation(JsonNode.from_value(read_document(path)), document, path.stem)
        except InputError as error:
            yield UnreadableRecord(error=error.with_location(file=str(path)))


def _parse_simulation(node: JsonNode, document: JsonNode, name: str) -> Record:
    chat = parse_chat(list(_convert_messages(node)), path=node.field_path("messages"), agent="agent")
    environment = document.node_or("info").node_or("environment_info")
    domain, task_id = environment.text_or("domain_name"), node.scalar("task_id")
    trial = node.scalar_or("trial")
    policy = node.text_or("policy") or environment.text_or("policy")
    parts = (domain, f"task-{task_id}", f"trial-{trial}" if trial else node.scalar_or("id") or name)
    unknown_parts = dict(chat.unknown_parts)
    if not node.items_or("messages") and (ticks := node.items_or("ticks")):
        unknown_parts["tick"] = len(ticks)
    trajectory = Trajectory(
        id="-".join(filter(None, parts)),
        format=FORMAT.name,
        task=chat.task,
        steps=chat.steps,
        tools=parse_tool_specs(environment.items_or("tool_defs"), environment.field_path("tool_defs")),
        system_prompts={"": policy} if policy else chat.system_prompts,
        exit_status=node.text_or("termination_reason") or None,
        unknown_parts=dict(sorted(unknown_parts.items())),
        extra={key: node.raw(key) for key in _FACTS if key in node},
    )
    trajectory = add_run_totals(trajectory, [parse_usage({"cost": node.raw("agent_cost")})])
    return Record(trajectory=trajectory, annotation=_build_annotation(node, document, domain, task_id))


def _convert_messages(node: JsonNode) -> Iterator[dict[str, Any]]:
    for message in node.nodes("messages"):
        if "tool_messages" in message:
            yield from (_convert_message(one) for one in message.nodes("tool_messages"))
        else:
            yield _convert_message(message)


def _convert_message(message: JsonNode) -> dict[str, Any]:
    data = drop_none(message.extra_fields(*_OMITTED_MESSAGE_FIELDS))
    data["content"] = message.raw("content")
    if message.raw("role") == "tool":
        return data | drop_none({"tool_call_id": message.raw("id") or None, "is_error": message.raw("error")})
    usage = {**message.node_or("usage").data, **drop_none({"cost": message.raw("cost")})}
    calls = [
        build_chat_call(call.raw("id"), call.text("name"), call.raw("arguments"))
        for call in message.nodes_or("tool_calls")
    ]
    data.pop("usage", None)
    if message.raw("role") == "assistant":
        data |= _read_response(message.raw("raw_data"))
    return data | ({"usage": usage} if usage else {}) | ({"tool_calls": calls} if calls else {})


def _read_response(value: Any) -> dict[str, Any]:
    """Return the reasoning, the model and the stop reason of the response of a model."""
    response = value if isinstance(value, dict) else {}
    message = response.get("message")
    inner: dict[str, Any] = message if isinstance(message, dict) else {}
    sources = JsonNode(response, "raw_data"), JsonNode(inner, "raw_data.message")
    blocks = (parse_content(one.raw(_THINKING), one.field_path(_THINKING)) for one in sources)
    reasoning = [text for content in blocks for text in content.reasoning]
    stop_reason = response.get("stop_reason") or response.get("finish_reason")
    facts = {
        "reasoning_content": inner.get("reasoning_content") or "\n".join(filter(None, reasoning)) or None,
        "model": response.get("model"),
        "stop_reason": stop_reason,
    }
    return {key: fact for key, fact in facts.items() if isinstance(fact, str)}


def _build_annotation(node: JsonNode, document: JsonNode, domain: str, task_id: str) -> Annotation:
    reward = node.node_or("reward_info").number_or("reward")
    extra = node.extra_fields(*_FACTS, *_READ_FIELDS)
    tasks = (one for one in document.items_or("tasks") if isinstance(one, Mapping))
    if (task := next((one for one in tasks if str(one.get("id")) == task_id), None)) is not None:
        extra["task"] = dict(task)
    return Annotation(
        failed=None if reward is None else reward < _PASS_THRESHOLD,
        group="/".join(filter(None, (domain, task_id))),
        extra=extra,
    )


FORMAT = Tau2Bench()
