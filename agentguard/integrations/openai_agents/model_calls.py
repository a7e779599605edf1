"""Model calls of a guarded run of the OpenAI Agents SDK, with a retry for each rejected response.

The SDK acts on a response once it is complete. In a stream, text is forwarded at once. Events from the first
call on are buffered until the verdict, so that consumers do not receive calls that the guard rejects.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from agents.items import ModelResponse
from agents.usage import Usage as SdkUsage

from agentguard.detect.step_facts import canonicalize_json
from agentguard.recover.actions import SampleVariant
from agentguard.runtime.session import MAX_REJECTIONS
from agentguard.trajectory.model import Step

CallModel = Callable[[list[Any]], Awaitable[ModelResponse]]
"""Function that calls the model once with the given items."""

CallCandidate = Callable[[list[Any], SampleVariant], Awaitable[ModelResponse]]
"""Function that requests another candidate of the response to the same items, without a stream."""

StreamModel = Callable[[list[Any]], AsyncIterator[Any]]
"""Function that calls the model once with the given items and streams the response."""

_UNBUFFERED_ITEM_TYPES = ("message", "reasoning")
_FAILED_EVENT_TYPES = ("response.incomplete", "response.failed", "response.error", "error")


@dataclass(frozen=True, slots=True)
class JudgedResponse:
    """Verdict on a response.

    Attributes:
        response: the accepted response: the original, its repaired form, or another candidate.
        retry_items: items to add to the retry of the model call; None if the response is accepted.
    """

    response: ModelResponse
    retry_items: list[Any] | None = None


class JudgeResponse(Protocol):
    """Function that judges a response before its tools run."""

    async def __call__(
        self,
        response: ModelResponse,
        call_candidate: Callable[[SampleVariant], Awaitable[ModelResponse]],
        *,
        is_last: bool,
    ) -> JudgedResponse:
        """Return the verdict.

        Args:
            response: the response, with its usage.
            call_candidate: requests another candidate.
            is_last: whether to accept the response in any case.
        """
        ...


class ModelCaller:
    """Caller of models, with a retry of each rejected response.

    Args:
        judge_response: judges each response.
    """

    def __init__(self, judge_response: JudgeResponse) -> None:
        self._judge_response = judge_response
        self._retry_items: list[Any] = []

    def start_turn(self) -> None:
        """Remove the retry items of the last turn. Until then, a call that the SDK repeats uses them too."""
        self._retry_items = []

    async def get_response(
        self, items: list[Any], call_model: CallModel, call_candidate: CallCandidate
    ) -> ModelResponse:
        """Return the accepted response; its usage is the sum over all attempts."""
        usage_sum = SdkUsage()

        async def request_candidate(variant: SampleVariant) -> ModelResponse:
            candidate = await call_candidate([*items, *self._retry_items], variant)
            usage_sum.add(candidate.usage)
            return candidate

        for retries_left in reversed(range(MAX_REJECTIONS + 1)):
            response = await call_model([*items, *self._retry_items])
            usage_sum.add(response.usage)
            verdict = await self._judge_response(response, request_candidate, is_last=not retries_left)
            if verdict.retry_items is None:
                break
            self._retry_items += verdict.retry_items
        return replace(verdict.response, usage=usage_sum)

    async def stream_events(
        self, items: list[Any], stream_model: StreamModel, call_candidate: CallCandidate, *, buffer_all: bool
    ) -> AsyncIterator[Any]:
        """Yield the events of all attempts as one response; only the last event marks it as complete.

        Args:
            items: the items that the model gets.
            stream_model: calls the model and streams the response.
            call_candidate: requests another candidate.
            buffer_all: buffer text too, because the consumer cannot use a partial response.
        """
        usage_sum: Any = None

        async def request_candidate(variant: SampleVariant) -> ModelResponse:
            nonlocal usage_sum
            candidate = await call_candidate([*items, *self._retry_items], variant)
            usage_sum = candidate.usage if usage_sum is None else _add_usage(candidate.usage, usage_sum)
            return candidate

        for retries_left in reversed(range(MAX_REJECTIONS + 1)):
            buffer = ModelStreamBuffer(buffer_all=buffer_all)
            async with close_on_exit(stream_model([*items, *self._retry_items])) as events:
                async for event in events:
                    for output_event in buffer.feed(event):
                        yield output_event
            if buffer.response is None:
                return  # the response is incomplete; the SDK reports it
            output, usage = buffer.response.output, buffer.response.usage
            response = ModelResponse(output=output, usage=_to_sdk_usage(usage), response_id=None)
            usage_sum = _add_usage(usage_sum, usage)
            verdict = await self._judge_response(response, request_candidate, is_last=not retries_left)
            if verdict.retry_items is None:
                replacement = None if verdict.response is response else verdict.response
                for output_event in buffer.flush(usage_sum, replacement=replacement):
                    yield output_event
                return
            self._retry_items += verdict.retry_items


class ModelStreamBuffer:
    """Buffer for the events of a stream until the verdict.

    Attributes:
        response: the response; None until it is complete.
    """

    def __init__(self, *, buffer_all: bool) -> None:
        self.response: Any = None
        self._is_buffering = buffer_all
        self._buffered_events: list[Any] = []
        self._items: list[Any] = []

    def feed(self, event: Any) -> list[Any]:
        """Process an event; return the events for the consumer."""
        kind = event.type
        if kind in _FAILED_EVENT_TYPES:
            return [event]
        if kind == "response.completed":
            self.response = event.response
            if not self.response.output:  # some servers send the items only in separate events
                self.response = self.response.model_copy(update={"output": list(self._items)})
            self._buffered_events.append(event)
            return []
        if kind == "response.output_item.done":
            self._items.append(event.item)
        elif kind == "response.output_item.added" and event.item.type not in _UNBUFFERED_ITEM_TYPES:
            self._is_buffering = True
        if self._is_buffering:
            self._buffered_events.append(event)
            return []
        return [event]

    def flush(self, usage: Any, *, replacement: ModelResponse | None = None) -> list[Any]:
        """Return the buffered events; the last one contains the usage.

        Args:
            usage: usage of all attempts.
            replacement: response that replaces the buffered one; the method then returns only the last event.
        """
        *buffered, last = self._buffered_events
        update = (
            {"usage": usage} if replacement is None else {"usage": usage, "output": list(replacement.output)}
        )
        end = last.model_copy(update={"response": self.response.model_copy(update=update)})
        return [end] if replacement is not None else [*buffered, end]


@asynccontextmanager
async def close_on_exit(events: AsyncIterator[Any]) -> AsyncIterator[AsyncIterator[Any]]:
    """Close a stream at the end of the block, if it has ``aclose``."""
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


def apply_repaired_turn(response: ModelResponse, turn: Step) -> ModelResponse:
    """Return the response with the text and the calls of ``turn``, its repaired step."""
    calls = {call.id: call for call in turn.tool_calls if call.arguments is not None}
    messages = [item for item in response.output if item.type == "message"]
    output: list[Any] = []
    for item in response.output:
        call = calls.get(getattr(item, "call_id", None) or "")
        if item.type == "function_call" and call is not None:
            item = item.model_copy(update={"name": call.name, "arguments": canonicalize_json(call.arguments)})
        elif item.type == "message" and len(messages) == 1 and len(item.content) == 1:
            part = item.content[0].model_copy(update={"text": turn.content})
            item = item.model_copy(update={"content": [part]})
        output.append(item)
    return replace(response, output=output)


def _to_sdk_usage(usage: Any) -> SdkUsage:
    if usage is None:
        return SdkUsage()
    return SdkUsage(
        requests=1,
        input_tokens=usage.input_tokens,
        output_tokens=usage.output_tokens,
        total_tokens=usage.total_tokens,
        input_tokens_details=usage.input_tokens_details,
        output_tokens_details=usage.output_tokens_details,
    )


def _add_usage(retries_left: Any, right: Any) -> Any:
    """Return the sum of two usages; if one is None, return the other."""
    if retries_left is None or right is None:
        return right if retries_left is None else retries_left
    names = ("input_tokens", "output_tokens", "total_tokens")
    sums = {name: getattr(retries_left, name) + getattr(right, name) for name in names}
    return type(right).model_validate({**right.model_dump(), **sums})
