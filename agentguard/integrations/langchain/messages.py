"""LangChain's messages as turns and steps.

A message of the guard carries a mark and belongs to no step: it goes with the step that comes after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.messages import (
    AIMessage,
    AnyMessage,
    HumanMessage,
    InvalidToolCall,
    SystemMessage,
    ToolMessage,
)

from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Usage

GUARD_MARK = "agentguard"

MessageTurn = list[AnyMessage]


def build_guard_message(text: str) -> HumanMessage:
    """A message of the guard to the agent."""
    return HumanMessage(content=text, additional_kwargs={GUARD_MARK: True})


def build_stop_message(reason: str) -> AIMessage:
    """The guard's last word in a run that it ends."""
    return AIMessage(content=f"[guard] {reason}", additional_kwargs={GUARD_MARK: True})


def is_guard_message(message: AnyMessage) -> bool:
    """Whether the guard wrote a message."""
    return message.additional_kwargs.get(GUARD_MARK) is True


def split_turns(messages: Sequence[AnyMessage]) -> list[MessageTurn]:
    """Messages by turn: an answer of the model with all results of its calls, or any other message alone."""
    made: list[MessageTurn] = []
    for message in messages:
        if is_guard_message(message):
            continue
        if isinstance(message, ToolMessage) and made and isinstance(made[-1][0], AIMessage):
            made[-1].append(message)
        else:
            made.append([message])
    return made


class MessageBranch:
    """Which messages of an agent are which steps of its session, by identity and not by counting.

    Others may shorten the history of an agent too, e.g. by a summary in place of the oldest turns. What is
    left is still known, and no turn is taken for another.
    """

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._foreign_keys: set[str] = set()
        self.task_end = 0
        """Steps up to the task of this run; a rollback never goes back before it."""

    def add_new_turns(self, messages: Sequence[AnyMessage], step_count: int) -> list[MessageTurn]:
        """The turns that a session of ``steps`` steps has not seen, in order, which become its next steps.

        A turn that stands before one that is known, such as a summary, is somebody's rewriting and no step.
        """
        del self._keys[step_count:]
        made = split_turns(messages)
        keys = _build_turn_keys(made)
        known = set(self._keys)
        last = max((place for place, key in enumerate(keys) if key in known), default=-1)
        self._foreign_keys |= set(keys[: last + 1]) - known
        if not self._keys:
            asked = [place for place, turn in enumerate(made) if isinstance(turn[0], HumanMessage)]
            self.task_end = 1 + max(asked, default=-1)
        new = [i for i in range(last + 1, len(made)) if keys[i] not in self._foreign_keys]
        self._keys += [keys[i] for i in new]
        return [made[i] for i in new]

    def align_to_session(self, messages: Sequence[AnyMessage], step_count: int) -> None:
        """Go on with a session that has ``steps`` steps already: the first turns of an agent are those.

        Where there are fewer turns, others have summed up the oldest; the turns that are left are the latest.
        """
        keys = _build_turn_keys(split_turns(messages))[:step_count]
        lost = step_count - len(keys)
        self._keys = [f"lost {step}" for step in range(lost)] + keys
        asked = [
            place for place, turn in enumerate(split_turns(messages)) if isinstance(turn[0], HumanMessage)
        ]
        self.task_end = min(step_count, lost + 1 + max(asked, default=-1))

    def count_steps(self, messages: Sequence[AnyMessage]) -> int:
        """How many steps lie behind a state with these messages: one more than the latest step in it."""
        at = {key: step for step, key in enumerate(self._keys)}
        return 1 + max((at.get(key, -1) for key in _build_turn_keys(split_turns(messages))), default=-1)

    def find_result(self, messages: Sequence[AnyMessage], step: int, field: str) -> ToolMessage | None:
        """The message behind an observation of a step; None if others have taken it out of the messages.

        Args:
            messages: of the agent, as they are now.
            step: which step.
            field: ``observations[i]``.
        """
        made = split_turns(messages)
        turn = next(
            (
                turn
                for turn, key in zip(made, _build_turn_keys(made), strict=True)
                if self._keys[step : step + 1] == [key]
            ),
            [],
        )
        results = [message for message in turn[1:] if isinstance(message, ToolMessage)]
        place = int(field.partition("[")[2].rstrip("]"))
        return results[place] if place < len(results) else None

    def truncate(self, messages: Sequence[AnyMessage], to_step: int) -> list[AnyMessage]:
        """The messages without step ``to_step`` and what came after it, at a boundary between turns.

        Call this before `fresh`, while the steps that are left are still known. What the guard said before
        the first message that goes, goes with it. The task stays.
        """
        at = {key: step for step, key in enumerate(self._keys)}
        made = split_turns(messages)
        gone = {
            id(message)
            for turn, key in zip(made, _build_turn_keys(made), strict=True)
            if at.get(key, -1) >= max(to_step, self.task_end)
            for message in turn
        }
        end = 0
        for place, message in enumerate(messages):
            if id(message) in gone:
                return list(messages[:end])
            end = end if is_guard_message(message) else place + 1
        return list(messages)


def _build_turn_keys(turns: Sequence[MessageTurn]) -> list[str]:
    """What a turn is known by: the id of its first message, else its place and text."""
    return [turn[0].id or f"{place} {turn[0].type} {turn[0].text}" for place, turn in enumerate(turns)]


def drop_incomplete_turn(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """The messages without a last turn that still waits for results of its calls."""
    made = split_turns(messages)
    last = made[-1] if made else []
    waiting = len(_build_tool_calls(last[0])) if last and isinstance(last[0], AIMessage) else 0
    if len(last) > waiting:
        return list(messages)
    gone = {id(message) for message in last}
    return [message for message in messages if id(message) not in gone]


def apply_repaired_turn(message: AIMessage, turn: Step) -> AIMessage:
    """An answer with the text and the calls of ``turn``, which was made of it and repaired since."""
    new = {call.id: call for call in turn.tool_calls if call.arguments is not None}
    content: Any = message.content
    if isinstance(content, list):
        content = [_apply_repaired_call(block, new) for block in content]
    elif turn.content:
        content = turn.content
    more = {key: value for key, value in message.additional_kwargs.items() if key != "tool_calls"}
    changes = {
        "content": content,
        "tool_calls": [
            {"type": "tool_call", "id": id, "name": call.name, "args": dict(call.arguments or {})}
            for id, call in new.items()
        ],
        "invalid_tool_calls": [call for call in message.invalid_tool_calls if call.get("id") not in new],
        "additional_kwargs": more,
    }
    return message.model_copy(update=changes)


def _apply_repaired_call(block: Any, calls: Mapping[str, ToolCall]) -> Any:
    """A block of an answer's content; providers such as Anthropic keep the calls there, too."""
    if not isinstance(block, dict) or block.get("type") != "tool_use" or block.get("id") not in calls:
        return block
    call = calls[block["id"]]
    return {**block, "name": call.name, "input": dict(call.arguments or {})}


def build_step(turn: Sequence[AnyMessage], *, agent: str) -> Step:
    """A turn as a step; its index is set when it is committed."""
    first = turn[0]
    calls = _build_tool_calls(first) if isinstance(first, AIMessage) else ()
    return Step(
        index=0,
        source=_get_source(first),
        agent=getattr(first, "name", None) or (agent if isinstance(first, AIMessage) else first.type),
        content=first.text,
        reasoning=_get_reasoning(first),
        tool_calls=calls,
        observations=tuple(_build_observation(m) for m in turn[1:] if isinstance(m, ToolMessage)),
        usage=_build_usage(first),
        model=first.response_metadata.get("model_name") if isinstance(first, AIMessage) else None,
    )


def _get_source(message: AnyMessage) -> Source:
    if isinstance(message, AIMessage):
        return Source.AGENT
    if isinstance(message, HumanMessage):
        return Source.USER
    return Source.SYSTEM if isinstance(message, SystemMessage) else Source.ENVIRONMENT


def _build_tool_calls(message: AIMessage) -> tuple[ToolCall, ...]:
    good = [
        ToolCall(id=call["id"] or f"call-{i}", name=call["name"], arguments=call["args"])
        for i, call in enumerate(message.tool_calls)
    ]
    # LangChain keeps calls whose arguments do not parse apart, with their text.
    bad = [_build_invalid_call(i, call) for i, call in enumerate(message.invalid_tool_calls)]
    return (*good, *bad)


def _build_invalid_call(index: int, call: InvalidToolCall) -> ToolCall:
    id, name = call.get("id") or f"invalid-{index}", call.get("name") or ""
    return ToolCall(id=id, name=name, raw_arguments=call.get("args"))


def _build_observation(message: ToolMessage) -> Observation:
    return Observation(
        content=message.text,
        call_id=message.tool_call_id,
        tool=message.name,
        is_error=message.status == "error",
    )


def _get_reasoning(message: AnyMessage) -> str:
    if not isinstance(message, AIMessage) or not isinstance(message.content, list):
        return ""
    blocks: list[Any] = [b for b in message.content_blocks if b.get("type") == "reasoning"]
    return "\n".join(str(block.get("reasoning") or "") for block in blocks)


def _build_usage(message: AnyMessage) -> Usage | None:
    given = message.usage_metadata if isinstance(message, AIMessage) else None
    if given is None:
        return None
    return Usage(
        prompt_tokens=given["input_tokens"],
        completion_tokens=given["output_tokens"],
        cached_tokens=(given.get("input_token_details") or {}).get("cache_read"),
    )
