"""Model calls of a guarded run of the OpenAI Agents SDK, with a retry for each rejected answer.

The SDK acts on an answer once it is complete. In a stream, text is forwarded at once. Events from the first
call on are held until the verdict, so that consumers do not see a call that will not be executed.
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
from agentguard.trajectory.model import Step

CallModel = Callable[[list[Any]], Awaitable[ModelResponse]]
"""Calls the model once with the given items."""

CallCandidate = Callable[[list[Any], SampleVariant], Awaitable[ModelResponse]]
"""Requests another candidate of the answer to the same items; it is never streamed."""

StreamModel = Callable[[list[Any]], AsyncIterator[Any]]
"""Calls the model once with the given items and streams the answer."""

MAX_REJECTIONS = 10
"""Consecutive rejections of one turn. After that the answer is accepted, since a budget may be unlimited."""

_UNBUFFERED_ITEM_TYPES = ("message", "reasoning")
_FAILED_EVENT_TYPES = ("response.incomplete", "response.failed", "response.error", "error")


@dataclass(frozen=True, slots=True)
class JudgedResponse:
    """Verdict on an answer.

    Attributes:
        response: the accepted answer: the original, its repaired form, or another candidate.
        retry_items: items to add to the retry of the model call; None if the answer is accepted.
    """

    response: ModelResponse
    retry_items: list[Any] | None = None


class JudgeResponse(Protocol):
    """Function that judges an answer before its tools run."""

    async def __call__(
        self,
        response: ModelResponse,
        call_candidate: Callable[[SampleVariant], Awaitable[ModelResponse]],
        *,
        is_last: bool,
    ) -> JudgedResponse:
        """Return the verdict.

        Args:
            response: the answer, with its usage.
            call_candidate: requests another candidate.
            is_last: accept the answer in any case.
        """
        ...


class ModelCaller:
    """Calls models and retries rejected answers.

    Args:
        judge_response: judges each answer.
    """

    def __init__(self, judge_response: JudgeResponse) -> None:
        self._judge_response = judge_response
        self._retry_items: list[Any] = []

    def start_turn(self) -> None:
        """Drop the retry items of the last turn. Until then, a repeated call uses them, as after an error."""
        self._retry_items = []

    async def get_response(
        self, items: list[Any], call_model: CallModel, call_candidate: CallCandidate
    ) -> ModelResponse:
        """Return the accepted answer; its usage is the sum over all attempts."""
        spent = SdkUsage()

        async def more(variant: SampleVariant) -> ModelResponse:
            made = await call_candidate([*items, *self._retry_items], variant)
            spent.add(made.usage)
            return made

        for left in reversed(range(MAX_REJECTIONS + 1)):
            response = await call_model([*items, *self._retry_items])
            spent.add(response.usage)
            judged = await self._judge_response(response, more, is_last=not left)
            if judged.retry_items is None:
                break
            self._retry_items += judged.retry_items
        return replace(judged.response, usage=spent)

    async def stream_events(
        self, items: list[Any], stream_model: StreamModel, call_candidate: CallCandidate, *, buffer_all: bool
    ) -> AsyncIterator[Any]:
        """Yield the events of all attempts as one answer; only the last event marks it as complete.

        Args:
            items: the items that the model gets.
            stream_model: calls the model and streams the answer.
            call_candidate: requests another candidate.
            buffer_all: hold text too, if a partial answer is useless to the consumer.
        """
        spent: Any = None

        async def more(variant: SampleVariant) -> ModelResponse:
            nonlocal spent
            made = await call_candidate([*items, *self._retry_items], variant)
            spent = made.usage if spent is None else _add_usage(made.usage, spent)
            return made

        for left in reversed(range(MAX_REJECTIONS + 1)):
            hold = ModelStreamBuffer(buffer_all=buffer_all)
            async with close_on_exit(stream_model([*items, *self._retry_items])) as events:
                async for event in events:
                    for shown in hold.feed(event):
                        yield shown
            if hold.response is None:
                return  # the answer failed or was interrupted; the SDK reports this itself
            output, usage = hold.response.output, hold.response.usage
            made = ModelResponse(output=output, usage=_to_sdk_usage(usage), response_id=None)
            spent = _add_usage(spent, usage)
            judged = await self._judge_response(made, more, is_last=not left)
            if judged.retry_items is None:
                taken = None if judged.response is made else judged.response
                for shown in hold.flush(spent, replacement=taken):
                    yield shown
                return
            self._retry_items += judged.retry_items


class ModelStreamBuffer:
    """Buffer that holds events back until the verdict.

    Attributes:
        response: the answer, once it is complete.
    """

    def __init__(self, *, buffer_all: bool) -> None:
        self.response: Any = None
        self._is_buffering = buffer_all
        self._buffered_events: list[Any] = []
        self._items: list[Any] = []

    def feed(self, event: Any) -> list[Any]:
        """Process an event; return the events that may be shown now."""
        kind = event.type
        if kind in _FAILED_EVENT_TYPES:
            return [event]
        if kind == "response.completed":
            self.response = event.response
            if not self.response.output:  # some servers list the items only in their own events
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
        """Return the held events; the last one carries the usage.

        Args:
            usage: usage of all attempts.
            replacement: the answer that replaces the held one; then the last event alone carries it.
        """
        *held, last = self._buffered_events
        update = (
            {"usage": usage} if replacement is None else {"usage": usage, "output": list(replacement.output)}
        )
        end = last.model_copy(update={"response": self.response.model_copy(update=update)})
        return [end] if replacement is not None else [*held, end]


@asynccontextmanager
async def close_on_exit(events: AsyncIterator[Any]) -> AsyncIterator[AsyncIterator[Any]]:
    """Close a stream when its reader leaves it, if it can be closed."""
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


def apply_repaired_turn(response: ModelResponse, turn: Step) -> ModelResponse:
    """Return the answer with the text and the calls of ``turn``, its repaired step."""
    calls = {call.id: call for call in turn.tool_calls if call.arguments is not None}
    said = [item for item in response.output if item.type == "message"]
    output: list[Any] = []
    for item in response.output:
        call = calls.get(getattr(item, "call_id", None) or "")
        if item.type == "function_call" and call is not None:
            item = item.model_copy(update={"name": call.name, "arguments": canonicalize_json(call.arguments)})
        elif item.type == "message" and len(said) == 1 and len(item.content) == 1:
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


def _add_usage(left: Any, right: Any) -> Any:
    """Return the sum of two usages; if one is None, return the other."""
    if left is None or right is None:
        return right if left is None else left
    names = ("input_tokens", "output_tokens", "total_tokens")
    summed = {name: getattr(left, name) + getattr(right, name) for name in names}
    return type(right).model_validate({**right.model_dump(), **summed})
