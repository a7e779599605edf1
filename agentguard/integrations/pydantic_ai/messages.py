"""pydantic-ai's messages as steps, and the places in a conversation a run can be taken back to.

A step of an agent is a response of the model with the parts of the next request that answer its calls. All
other parts of a request (a prompt, feedback on an output that was no good) are steps of their own. What the
guard says is put into a request after its steps were taken, so it never counts as one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pydantic_ai.messages import ModelMessage, ModelRequest, ModelRequestPart, ModelResponse, UserPromptPart

from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Usage

_ERRORS = frozenset({"failed", "retried", "interrupted"})
"""Outcomes of a call that are errors; that it was denied is a person's decision and none."""


@dataclass(frozen=True, slots=True)
class MessagePosition:
    """Where a run stood before a turn of the agent: the history, and what was about to be asked.

    The calls in the history and their answers are kept together in this way: an answer belongs to the
    request, and the request is sent whole.
    """

    history: tuple[ModelMessage, ...]
    parts: tuple[ModelRequestPart, ...]


def steps_of(messages: Iterable[ModelMessage], *, agent: str) -> list[Step]:
    """Messages as steps; their index is set when they are committed."""
    made: list[Step] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            made.append(step_of(message, agent=agent))
            continue
        for part in message.parts:
            seen = _seen(part)
            if seen is not None and made and any(call.id == seen.call_id for call in made[-1].tool_calls):
                made[-1] = replace(made[-1], observations=(*made[-1].observations, seen))
            elif (own := _own(part, seen)) is not None:
                made.append(own)
    return made


def step_of(response: ModelResponse, *, agent: str) -> Step:
    """A response of the model as a step whose tools have not run."""
    used = response.usage
    return Step(
        index=0,
        source=Source.AGENT,
        agent=agent,
        content=_joined(response, "text"),
        reasoning=_joined(response, "thinking"),
        tool_calls=tuple(_call(part) for part in response.tool_calls),
        usage=Usage(
            prompt_tokens=used.input_tokens,
            completion_tokens=used.output_tokens,
            cached_tokens=used.cache_read_tokens or None,
        ),
        model=response.model_name,
    )


def system_text(messages: Sequence[ModelMessage]) -> str:
    """System prompts and instructions of a conversation."""
    requests = [message for message in messages if isinstance(message, ModelRequest)]
    prompts = [p.content for r in requests for p in r.parts if p.part_kind == "system-prompt"]
    instructions = [request.instructions for request in requests[-1:] if request.instructions]
    return "\n\n".join([*prompts, *instructions])


def asked(messages: Sequence[ModelMessage]) -> str:
    """The newest prompt of a user."""
    parts = (part for message in reversed(messages) for part in reversed(message.parts))
    return next((_text(part.content) for part in parts if isinstance(part, UserPromptPart)), "")


def request(parts: Sequence[ModelRequestPart], told: Sequence[str]) -> ModelRequest:
    """A request with what the guard has to say at its end."""
    said = [UserPromptPart(text) for text in told]
    return ModelRequest(parts=[*parts, *said])


def _joined(response: ModelResponse, kind: str) -> str:
    parts: list[Any] = [part for part in response.parts if part.part_kind == kind]
    return "\n".join(part.content for part in parts if part.content)


def _call(part: Any) -> ToolCall:
    try:
        arguments, raw = part.args_as_dict(raise_if_invalid=True), None
    except (ValueError, AssertionError):
        arguments, raw = None, part.args_as_json_str()
    return ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=arguments, raw_arguments=raw)


def _seen(part: Any) -> Observation | None:
    """The answer to a call, if the part is one."""
    if part.part_kind == "tool-return":
        text, failed = part.model_response_str(), part.outcome in _ERRORS
    elif part.part_kind == "retry-prompt" and part.tool_name is not None:
        text, failed = part.model_response(), True
    else:
        return None
    return Observation(content=text, call_id=part.tool_call_id, tool=part.tool_name, is_error=failed)


def _own(part: Any, seen: Observation | None) -> Step | None:
    """A part that answers no call of the turn before it, as a step; None if it tells nothing of the run."""
    if part.part_kind == "user-prompt":
        return Step(index=0, source=Source.USER, agent="human", content=_text(part.content))
    if seen is not None:
        return Step(index=0, source=Source.ENVIRONMENT, agent="environment", observations=(seen,))
    if part.part_kind in ("retry-feedback", "retry-prompt"):
        text = part.model_response()
        return Step(index=0, source=Source.ENVIRONMENT, agent="environment", content=text)
    return None


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part for part in content or () if isinstance(part, str))
