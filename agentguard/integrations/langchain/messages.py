"""Conversion of LangChain's messages to turns and steps.

Messages of the guard are marked and are part of no step. A rollback removes them with the following step.
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
    """Build a message of the guard to the agent."""
    return HumanMessage(content=text, additional_kwargs={GUARD_MARK: True})


def build_stop_message(reason: str) -> AIMessage:
    """Build the guard's final message in a run that it ends."""
    return AIMessage(content=f"[guard] The run was stopped: {reason}", additional_kwargs={GUARD_MARK: True})


def is_guard_message(message: AnyMessage) -> bool:
    """Return whether the guard wrote a message."""
    return message.additional_kwargs.get(GUARD_MARK) is True


def split_turns(messages: Sequence[AnyMessage]) -> list[MessageTurn]:
    """Split messages into turns: an answer with the results of its calls, or any other single message."""
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
    """Mapping of an agent's messages to the steps of its session, by identity instead of position.

    Other middleware may shorten the history too, for example by a summary of the oldest turns. The remaining
    turns are still recognised, and no turn is mistaken for another.
    """

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._foreign_keys: set[str] = set()
        self.task_end = 0
        """Number of steps up to the task of this run; a rollback never goes before it."""

    def add_new_turns(self, messages: Sequence[AnyMessage], step_count: int) -> list[MessageTurn]:
        """Return the turns after the first ``step_count`` steps, in order; they become the next steps.

        A new turn before a known one, such as a summary, was written by other middleware and is not a step.
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
        """Map the first turns of an agent to the ``step_count`` existing steps of a session.

        If there are fewer turns, the oldest were summarised, and the turns are mapped to the latest steps.
        """
        keys = _build_turn_keys(split_turns(messages))[:step_count]
        lost = step_count - len(keys)
        self._keys = [f"lost {step}" for step in range(lost)] + keys
        asked = [
            place for place, turn in enumerate(split_turns(messages)) if isinstance(turn[0], HumanMessage)
        ]
        self.task_end = min(step_count, lost + 1 + max(asked, default=-1))

    def count_steps(self, messages: Sequence[AnyMessage]) -> int:
        """Return the number of steps up to the latest step in a state with these messages."""
        at = {key: step for step, key in enumerate(self._keys)}
        return 1 + max((at.get(key, -1) for key in _build_turn_keys(split_turns(messages))), default=-1)

    def find_result(self, messages: Sequence[AnyMessage], step: int, field: str) -> ToolMessage | None:
        """Return the message of an observation; None if other middleware has removed it.

        Args:
            messages: the agent's current messages.
            step: index of the step.
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
        """Return the messages before step ``to_step``, cut at a boundary between turns.

        Call this before `add_new_turns`, while the remaining steps are still known. Guard messages directly
        before the first removed message are removed too. The task stays.
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
    """Return a key for each turn: the ID of its first message, or its position and text."""
    return [turn[0].id or f"{place} {turn[0].type} {turn[0].text}" for place, turn in enumerate(turns)]


def drop_incomplete_turn(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages without a last turn that still waits for tool results."""
    made = split_turns(messages)
    last = made[-1] if made else []
    waiting = len(_build_tool_calls(last[0])) if last and isinstance(last[0], AIMessage) else 0
    if len(last) > waiting:
        return list(messages)
    gone = {id(message) for message in last}
    return [message for message in messages if id(message) not in gone]


def apply_repaired_turn(message: AIMessage, turn: Step) -> AIMessage:
    """Return the answer with the text and the calls of ``turn``, its repaired step."""
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
    """Repair a content block; providers such as Anthropic repeat the calls there."""
    if not isinstance(block, dict) or block.get("type") != "tool_use" or block.get("id") not in calls:
        return block
    call = calls[block["id"]]
    return {**block, "name": call.name, "input": dict(call.arguments or {})}


def build_step(turn: Sequence[AnyMessage], *, agent: str) -> Step:
    """Convert a turn to a step without an index."""
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
    # LangChain stores calls with malformed arguments separately, as text.
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
