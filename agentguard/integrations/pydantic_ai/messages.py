"""Conversion of pydantic-ai's messages to steps, and positions to which a run can be rolled back.

A step of an agent is a response of the model with the results of its calls, which are parts of the next
request. Each other part of a request (a prompt, feedback on a rejected output) is a step. The guard adds its
texts to a request after the commit of its steps, so they are not steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from pydantic_ai import RunContext
from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelRequestPart,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agentguard.recover.actions import SampleVariant
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Usage

_Part = TypeVar("_Part")


async def request_candidate(
    ctx: RunContext[Any], request_context: Any, variant: SampleVariant, models: Mapping[str, Any]
) -> ModelResponse:
    """Request another candidate of a turn; add its usage to that of the run.

    Args:
        ctx: context of the run.
        request_context: the ``ModelRequestContext`` of the turn.
        variant: variation of the request for this candidate.
        models: models by name; pydantic-ai infers others from their names.
    """
    messages = list(request_context.messages)
    if variant.instruction and messages and isinstance(messages[-1], ModelRequest):
        messages[-1] = replace(messages[-1], parts=[*messages[-1].parts, UserPromptPart(variant.instruction)])
    settings = request_context.model_settings
    if variant.temperature is not None:
        settings = {**(settings or {}), "temperature": variant.temperature}
    model = models.get(variant.model, variant.model) if variant.model else request_context.model
    response = await model_request(
        model,
        messages,
        model_settings=settings,
        model_request_parameters=request_context.model_request_parameters,
    )
    ctx.usage.incr(response.usage)
    ctx.usage.requests += 1
    return response


def apply_repaired_turn(response: ModelResponse, turn: Step) -> ModelResponse:
    """Return the response with the text and the calls of ``turn``, its repaired step."""
    calls = {call.id: call for call in turn.tool_calls if call.arguments is not None}
    texts = [part for part in response.parts if isinstance(part, TextPart) and part.content]
    parts: list[Any] = []
    for part in response.parts:
        if isinstance(part, ToolCallPart) and part.tool_call_id in calls:
            call = calls[part.tool_call_id]
            part = _replace_call(part, call.name, dict(call.arguments or {}))
        elif len(texts) == 1 and part is texts[0]:
            part = replace(part, content=turn.content)
        parts.append(part)
    return replace(response, parts=parts)


def _replace_call(part: Any, tool_name: str, arguments: dict[str, Any]) -> Any:
    return replace(part, tool_name=tool_name, args=arguments)


def replace_result(messages: Iterable[ModelMessage], call_id: str | None, text: str) -> list[ModelMessage]:
    """Return the messages with another text for a tool result."""
    return [
        replace(message, parts=replace_result_in_parts(message.parts, call_id, text))
        if isinstance(message, ModelRequest)
        else message
        for message in messages
    ]


def replace_result_in_parts(parts: Sequence[_Part], call_id: str | None, text: str) -> list[_Part]:
    """Return the parts of a request with another text for a tool result."""
    new_parts: list[Any] = [
        replace(part, content=text)
        if isinstance(part, ToolReturnPart) and part.tool_call_id == call_id
        else part
        for part in parts
    ]
    return new_parts


_ERROR_OUTCOMES = frozenset({"failed", "retried", "interrupted"})
"""Outcomes of a call that are errors; a denial by a person is not an error."""


@dataclass(frozen=True, slots=True)
class MessagePosition:
    """Position of a run before a turn of the agent: the history and the next request.

    Calls and results stay together: the results are parts of the request.
    """

    history: tuple[ModelMessage, ...]
    parts: tuple[ModelRequestPart, ...]


def build_steps(messages: Iterable[ModelMessage], *, agent: str) -> list[Step]:
    """Convert messages to steps without an index; ``agent`` is the name of the model's responses."""
    steps: list[Step] = []
    for message in messages:
        if isinstance(message, ModelResponse):
            steps.append(build_step(message, agent=agent))
            continue
        for part in message.parts:
            result = _build_observation(part)
            if (
                result is not None
                and steps
                and any(call.id == result.call_id for call in steps[-1].tool_calls)
            ):
                steps[-1] = replace(steps[-1], observations=(*steps[-1].observations, result))
            elif (step := _build_part_step(part, result)) is not None:
                steps.append(step)
    return steps


def build_step(response: ModelResponse, *, agent: str) -> Step:
    """Convert a response of the model to a step without tool results."""
    usage = response.usage
    return Step(
        index=0,
        source=Source.AGENT,
        agent=agent,
        content=_join_parts(response, "text"),
        reasoning=_join_parts(response, "thinking"),
        tool_calls=tuple(_build_tool_call(part) for part in response.tool_calls),
        usage=Usage(
            prompt_tokens=usage.input_tokens,
            completion_tokens=usage.output_tokens,
            cached_tokens=usage.cache_read_tokens or None,
        ),
        model=response.model_name,
    )


def join_system_prompts(messages: Sequence[ModelMessage]) -> str:
    """Return the system prompts and instructions of a conversation."""
    requests = [message for message in messages if isinstance(message, ModelRequest)]
    prompts = [p.content for r in requests for p in r.parts if p.part_kind == "system-prompt"]
    instructions = [request.instructions for request in requests[-1:] if request.instructions]
    return "\n\n".join([*prompts, *instructions])


def find_task(messages: Sequence[ModelMessage]) -> str:
    """Return the text of the latest user prompt; empty without a prompt."""
    parts = (part for message in reversed(messages) for part in reversed(message.parts))
    return next((_join_text(part.content) for part in parts if isinstance(part, UserPromptPart)), "")


def build_request(parts: Sequence[ModelRequestPart], guard_texts: Sequence[str]) -> ModelRequest:
    """Build a request with the guard's texts at its end."""
    return ModelRequest(parts=[*parts, *map(UserPromptPart, guard_texts)])


def _join_parts(response: ModelResponse, kind: str) -> str:
    parts: list[Any] = [part for part in response.parts if part.part_kind == kind]
    return "\n".join(part.content for part in parts if part.content)


def _build_tool_call(part: Any) -> ToolCall:
    try:
        arguments, raw = part.args_as_dict(raise_if_invalid=True), None
    except (ValueError, AssertionError):
        arguments, raw = None, part.args_as_json_str()
    return ToolCall(id=part.tool_call_id, name=part.tool_name, arguments=arguments, raw_arguments=raw)


def _build_observation(part: Any) -> Observation | None:
    """Return the result of a call, if the part is one."""
    if part.part_kind == "tool-return":
        text, failed = part.model_response_str(), part.outcome in _ERROR_OUTCOMES
    elif part.part_kind == "retry-prompt" and part.tool_name is not None:
        text, failed = part.model_response(), True
    else:
        return None
    return Observation(content=text, call_id=part.tool_call_id, tool=part.tool_name, is_error=failed)


def _build_part_step(part: Any, result: Observation | None) -> Step | None:
    """Convert a part that is not a result of the preceding turn; return None if it is not a step."""
    if part.part_kind == "user-prompt":
        return Step(index=0, source=Source.USER, agent="human", content=_join_text(part.content))
    if result is not None:
        return Step(index=0, source=Source.ENVIRONMENT, agent="environment", observations=(result,))
    if part.part_kind in ("retry-feedback", "retry-prompt"):
        text = part.model_response()
        return Step(index=0, source=Source.ENVIRONMENT, agent="environment", content=text)
    return None


def _join_text(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part for part in content or () if isinstance(part, str))
