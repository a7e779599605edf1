"""Further candidates of a pydantic-ai agent's turn, and responses and results that were repaired."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from pydantic_ai import RunContext
from pydantic_ai.direct import model_request
from pydantic_ai.messages import (
    ModelMessage,
    ModelRequest,
    ModelResponse,
    TextPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from agentguard.recover.strategy import SampleVariant
from agentguard.trajectory.model import Step

_P = TypeVar("_P")


async def candidate(
    ctx: RunContext[Any], asked: Any, variant: SampleVariant, models: Mapping[str, Any]
) -> ModelResponse:
    """Ask for another candidate of a turn; its cost is counted as the run's.

    Args:
        ctx: of the run.
        asked: the ``ModelRequestContext`` by which the turn was asked for.
        variant: how this candidate is asked for.
        models: models by name; others are inferred from their names by pydantic-ai.
    """
    messages = list(asked.messages)
    if variant.instruction and messages and isinstance(messages[-1], ModelRequest):
        messages[-1] = replace(messages[-1], parts=[*messages[-1].parts, UserPromptPart(variant.instruction)])
    settings = asked.model_settings
    if variant.temperature is not None:
        settings = {**(settings or {}), "temperature": variant.temperature}
    model = models.get(variant.model, variant.model) if variant.model else asked.model
    response = await model_request(
        model,
        messages,
        model_settings=settings,
        model_request_parameters=asked.model_request_parameters,
    )
    ctx.usage.incr(response.usage)
    ctx.usage.requests += 1
    return response


def repaired_response(response: ModelResponse, turn: Step) -> ModelResponse:
    """The response with the text and the calls of ``turn``, which was made of it and repaired since."""
    calls = {call.id: call for call in turn.tool_calls if call.arguments is not None}
    texts = [part for part in response.parts if isinstance(part, TextPart) and part.content]
    parts: list[Any] = []
    for part in response.parts:
        if isinstance(part, ToolCallPart) and part.tool_call_id in calls:
            call = calls[part.tool_call_id]
            part = _renamed(part, call.name, dict(call.arguments or {}))
        elif len(texts) == 1 and part is texts[0]:
            part = replace(part, content=turn.content)
        parts.append(part)
    return replace(response, parts=parts)


def _renamed(part: Any, tool: str, arguments: dict[str, Any]) -> Any:
    return replace(part, tool_name=tool, args=arguments)


def with_result(messages: Iterable[ModelMessage], call_id: str | None, text: str) -> list[ModelMessage]:
    """The messages with another text in place of what a call returned."""
    made: list[ModelMessage] = []
    for message in messages:
        if isinstance(message, ModelRequest):
            message = replace(message, parts=parts_with_result(message.parts, call_id, text))
        made.append(message)
    return made


def parts_with_result(parts: Sequence[_P], call_id: str | None, text: str) -> list[_P]:
    """As `with_result`, for the parts of one request."""
    made: list[Any] = [
        replace(part, content=text)
        if isinstance(part, ToolReturnPart) and part.tool_call_id == call_id
        else part
        for part in parts
    ]
    return made
