"""LangChain's messages as turns and steps.

A message of the guard carries a mark and belongs to no step: it goes with the step that comes after it.
"""

from __future__ import annotations

from collections.abc import Sequence
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

MARK = "agentguard"

Turn = list[AnyMessage]


def guard_message(text: str) -> HumanMessage:
    """A message of the guard to the agent."""
    return HumanMessage(content=text, additional_kwargs={MARK: True})


def is_guards(message: AnyMessage) -> bool:
    """Whether the guard wrote a message."""
    return message.additional_kwargs.get(MARK) is True


def turns(messages: Sequence[AnyMessage]) -> list[Turn]:
    """Messages by turn: an answer of the model with all results of its calls, or any other message alone."""
    made: list[Turn] = []
    for message in messages:
        if is_guards(message):
            continue
        if isinstance(message, ToolMessage) and made and isinstance(made[-1][0], AIMessage):
            made[-1].append(message)
        else:
            made.append([message])
    return made


def cut(messages: Sequence[AnyMessage], to_step: int) -> list[AnyMessage]:
    """The messages of the first ``to_step`` turns, and what the guard said between them."""
    count, end = 0, 0
    for place, message in enumerate(messages):
        if is_guards(message):
            continue
        folded = isinstance(message, ToolMessage) and count > 0
        if not folded:
            if count == to_step:
                break
            count += 1
        end = place + 1
    return list(messages[:end])


def step_of(turn: Sequence[AnyMessage], *, agent: str) -> Step:
    """A turn as a step; its index is set when it is committed."""
    first = turn[0]
    calls = _calls(first) if isinstance(first, AIMessage) else ()
    return Step(
        index=0,
        source=_source(first),
        agent=getattr(first, "name", None) or (agent if isinstance(first, AIMessage) else first.type),
        content=first.text,
        reasoning=_reasoning(first),
        tool_calls=calls,
        observations=tuple(_seen(m) for m in turn[1:] if isinstance(m, ToolMessage)),
        usage=_usage(first),
        model=first.response_metadata.get("model_name") if isinstance(first, AIMessage) else None,
    )


def _source(message: AnyMessage) -> Source:
    if isinstance(message, AIMessage):
        return Source.AGENT
    if isinstance(message, HumanMessage):
        return Source.USER
    return Source.SYSTEM if isinstance(message, SystemMessage) else Source.ENVIRONMENT


def _calls(message: AIMessage) -> tuple[ToolCall, ...]:
    good = [
        ToolCall(id=call["id"] or f"call-{i}", name=call["name"], arguments=call["args"])
        for i, call in enumerate(message.tool_calls)
    ]
    # LangChain keeps calls whose arguments do not parse apart, with their text.
    bad = [_invalid(i, call) for i, call in enumerate(message.invalid_tool_calls)]
    return (*good, *bad)


def _invalid(place: int, call: InvalidToolCall) -> ToolCall:
    id, name = call.get("id") or f"invalid-{place}", call.get("name") or ""
    return ToolCall(id=id, name=name, raw_arguments=call.get("args"))


def _seen(message: ToolMessage) -> Observation:
    return Observation(
        content=message.text,
        call_id=message.tool_call_id,
        tool=message.name,
        is_error=message.status == "error",
    )


def _reasoning(message: AnyMessage) -> str:
    if not isinstance(message, AIMessage) or not isinstance(message.content, list):
        return ""
    blocks: list[Any] = [b for b in message.content_blocks if b.get("type") == "reasoning"]
    return "\n".join(str(block.get("reasoning") or "") for block in blocks)


def _usage(message: AnyMessage) -> Usage | None:
    given = message.usage_metadata if isinstance(message, AIMessage) else None
    if given is None:
        return None
    return Usage(
        prompt_tokens=given["input_tokens"],
        completion_tokens=given["output_tokens"],
        cached_tokens=(given.get("input_token_details") or {}).get("cache_read"),
    )
