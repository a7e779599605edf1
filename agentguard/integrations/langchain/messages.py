"""Conversion of LangChain's messages to turns and steps.

Messages of the guard are marked and are not part of a step. A rollback removes them with the next step.
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
"""Key in ``additional_kwargs`` of the guard's messages."""

MessageTurn = list[AnyMessage]
"""Response of the model with the results of its calls, or any other single message."""


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
    """Split messages into turns, without the messages of the guard."""
    turns: list[MessageTurn] = []
    for message in messages:
        if is_guard_message(message):
            continue
        if isinstance(message, ToolMessage) and turns and isinstance(turns[-1][0], AIMessage):
            turns[-1].append(message)
        else:
            turns.append([message])
    return turns


class MessageBranch:
    """Mapping of an agent's messages to the steps of its session, by message ID instead of position.

    Other middleware may shorten the history too, for example by a summary of the oldest turns. The mapping of
    the remaining turns stays correct.
    """

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._foreign_keys: set[str] = set()
        self.task_end = 0
        """Number of steps up to the task of this run; a rollback never goes before it."""

    def add_new_turns(self, messages: Sequence[AnyMessage], step_count: int) -> list[MessageTurn]:
        """Return the turns after the first ``step_count`` steps, in order; they become the next steps.

        A new turn before a known one is not a step: other middleware wrote it, for example as a summary.
        """
        del self._keys[step_count:]
        turns = split_turns(messages)
        keys = _build_turn_keys(turns)
        known_keys = set(self._keys)
        last = max((place for place, key in enumerate(keys) if key in known_keys), default=-1)
        self._foreign_keys |= set(keys[: last + 1]) - known_keys
        if not self._keys:
            prompt_positions = [
                place for place, turn in enumerate(turns) if isinstance(turn[0], HumanMessage)
            ]
            self.task_end = 1 + max(prompt_positions, default=-1)
        positions = [i for i in range(last + 1, len(turns)) if keys[i] not in self._foreign_keys]
        self._keys += [keys[i] for i in positions]
        return [turns[i] for i in positions]

    def align_to_session(self, messages: Sequence[AnyMessage], step_count: int) -> None:
        """Map the first turns of an agent to the ``step_count`` existing steps of a session.

        Fewer turns than steps mean that the oldest were summarised; the turns are mapped to the latest steps.
        """
        keys = _build_turn_keys(split_turns(messages))[:step_count]
        missing_count = step_count - len(keys)
        self._keys = [f"lost {step}" for step in range(missing_count)] + keys
        prompt_positions = [
            place for place, turn in enumerate(split_turns(messages)) if isinstance(turn[0], HumanMessage)
        ]
        self.task_end = min(step_count, missing_count + 1 + max(prompt_positions, default=-1))

    def count_steps(self, messages: Sequence[AnyMessage]) -> int:
        """Return the number of steps up to the latest step in a state with these messages."""
        steps = {key: step for step, key in enumerate(self._keys)}
        return 1 + max((steps.get(key, -1) for key in _build_turn_keys(split_turns(messages))), default=-1)

    def find_result(self, messages: Sequence[AnyMessage], step: int, index: int) -> ToolMessage | None:
        """Return the message of an observation; None if other middleware has removed it.

        Args:
            messages: the agent's current messages.
            step: index of the step.
            index: index of the observation in the step.
        """
        turns = split_turns(messages)
        turn = next(
            (
                turn
                for turn, key in zip(turns, _build_turn_keys(turns), strict=True)
                if self._keys[step : step + 1] == [key]
            ),
            [],
        )
        results = [message for message in turn[1:] if isinstance(message, ToolMessage)]
        return results[index] if index < len(results) else None

    def truncate(self, messages: Sequence[AnyMessage], to_step: int) -> list[AnyMessage]:
        """Return the messages before step ``to_step``, cut at a boundary between turns.

        Call this method before `add_new_turns`, which forgets the removed steps. The result does not contain
        guard messages directly before the first removed message. It contains the task.
        """
        steps = {key: step for step, key in enumerate(self._keys)}
        turns = split_turns(messages)
        removed_ids = {
            id(message)
            for turn, key in zip(turns, _build_turn_keys(turns), strict=True)
            if steps.get(key, -1) >= max(to_step, self.task_end)
            for message in turn
        }
        end = 0
        for place, message in enumerate(messages):
            if id(message) in removed_ids:
                return list(messages[:end])
            end = end if is_guard_message(message) else place + 1
        return list(messages)


def _build_turn_keys(turns: Sequence[MessageTurn]) -> list[str]:
    """Return a key for each turn: the ID of its first message, or its position and text."""
    return [turn[0].id or f"{place} {turn[0].type} {turn[0].text}" for place, turn in enumerate(turns)]


def drop_incomplete_turn(messages: Sequence[AnyMessage]) -> list[AnyMessage]:
    """Return the messages without the last turn if tool results of it are missing."""
    turns = split_turns(messages)
    last = turns[-1] if turns else []
    waiting = len(_build_tool_calls(last[0])) if last and isinstance(last[0], AIMessage) else 0
    if len(last) > waiting:
        return list(messages)
    removed_ids = {id(message) for message in last}
    return [message for message in messages if id(message) not in removed_ids]


def apply_repaired_turn(message: AIMessage, turn: Step) -> AIMessage:
    """Return the response with the text and the calls of ``turn``, its repaired step."""
    repaired_calls = {call.id: call for call in turn.tool_calls if call.arguments is not None}
    content: Any = message.content
    if isinstance(content, list):
        content = [_apply_repaired_call(block, repaired_calls) for block in content]
    elif turn.content:
        content = turn.content
    additional_kwargs = {
        key: value for key, value in message.additional_kwargs.items() if key != "tool_calls"
    }
    changes = {
        "content": content,
        "tool_calls": [
            {"type": "tool_call", "id": id, "name": call.name, "args": dict(call.arguments or {})}
            for id, call in repaired_calls.items()
        ],
        "invalid_tool_calls": [
            call for call in message.invalid_tool_calls if call.get("id") not in repaired_calls
        ],
        "additional_kwargs": additional_kwargs,
    }
    return message.model_copy(update=changes)


def _apply_repaired_call(block: Any, calls: Mapping[str, ToolCall]) -> Any:
    """Return a content block with the repaired call; the content of some providers repeats the calls."""
    if not isinstance(block, dict) or block.get("type") != "tool_use" or block.get("id") not in calls:
        return block
    call = calls[block["id"]]
    return {**block, "name": call.name, "input": dict(call.arguments or {})}


def build_step(turn: Sequence[AnyMessage], *, agent: str) -> Step:
    """Convert a turn to a step without an index; ``agent`` is the name of responses without one."""
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
    valid_calls = [
        ToolCall(id=call["id"] or f"call-{i}", name=call["name"], arguments=call["args"])
        for i, call in enumerate(message.tool_calls)
    ]
    # LangChain stores calls with malformed arguments separately, as text.
    invalid_calls = [_build_invalid_call(i, call) for i, call in enumerate(message.invalid_tool_calls)]
    return (*valid_calls, *invalid_calls)


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
    usage = message.usage_metadata if isinstance(message, AIMessage) else None
    if usage is None:
        return None
    return Usage(
        prompt_tokens=usage["input_tokens"],
        completion_tokens=usage["output_tokens"],
        cached_tokens=(usage.get("input_token_details") or {}).get("cache_read"),
    )
