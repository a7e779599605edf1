"""Model calls of a guarded run of the OpenAI Agents SDK: asked again where an answer is refused.

The SDK acts on an answer once it is whole. In a stream, text flows at once; from the first call on, events
are held until the verdict, so that no consumer is told of a call that will not be made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from agents.items import ModelResponse
from agents.usage import Usage as SdkUsage

from agentguard.detect.step_facts import canonicalize_json
from agentguard.recover.strategy import SampleVariant
from agentguard.trajectory.model import Step

Ask = Callable[[list[Any]], Awaitable[ModelResponse]]
"""Asks the model once, given the items it sees."""

Candidate = Callable[[list[Any], SampleVariant], Awaitable[ModelResponse]]
"""Asks for another candidate of the answer to the same items, never streamed."""

Stream = Callable[[list[Any]], AsyncIterator[Any]]
"""As `Ask`, for a streamed answer."""

MOST_REFUSALS = 10
"""Times one turn may be refused in a row before it is let through: a budget may be without limits."""

_FLOW = ("message", "reasoning")
_FAILED = ("response.incomplete", "response.failed", "response.error", "error")


@dataclass(frozen=True, slots=True)
class JudgedResponse:
    """A verdict on an answer.

    Attributes:
        response: the answer to go on with: that one, repaired perhaps, or another candidate.
        told: items that the model is asked again with; None if there is nothing to ask.
    """

    response: ModelResponse
    told: list[Any] | None = None


class TurnVerdict(Protocol):
    """Judges an answer whose tools have not run."""

    async def __call__(
        self,
        response: ModelResponse,
        more: Callable[[SampleVariant], Awaitable[ModelResponse]],
        *,
        last: bool,
    ) -> JudgedResponse:
        """What is gone on with.

        Args:
            response: the answer, with what it cost.
            more: asks for another candidate of it.
            last: it is accepted whatever it is.
        """
        ...


class ModelCall:
    """Asks models.

    Args:
        verdict: judges each answer.
    """

    def __init__(self, verdict: TurnVerdict) -> None:
        self._verdict = verdict
        self._told: list[Any] = []

    def new_turn(self) -> None:
        """The next call asks for another turn. Until then it asks for the same again, e.g. after an error."""
        self._told = []

    async def respond(self, items: list[Any], ask: Ask, candidate: Candidate) -> ModelResponse:
        """The answer that was accepted; it costs what all of them cost."""
        spent = SdkUsage()

        async def more(variant: SampleVariant) -> ModelResponse:
            made = await candidate([*items, *self._told], variant)
            spent.add(made.usage)
            return made

        for left in reversed(range(MOST_REFUSALS + 1)):
            response = await ask([*items, *self._told])
            spent.add(response.usage)
            judged = await self._verdict(response, more, last=not left)
            if judged.told is None:
                break
            self._told += judged.told
        return replace(judged.response, usage=spent)

    async def flow(
        self, items: list[Any], ask: Stream, candidate: Candidate, *, everything: bool
    ) -> AsyncIterator[Any]:
        """The events of one answer after the other; the last event alone says that an answer is whole.

        Args:
            items: what the model sees.
            ask: asks it.
            candidate: asks it for another candidate.
            everything: hold text, too, where half an answer is of no use to anybody.
        """
        spent: Any = None

        async def more(variant: SampleVariant) -> ModelResponse:
            nonlocal spent
            made = await candidate([*items, *self._told], variant)
            spent = made.usage if spent is None else _added(made.usage, spent)
            return made

        for left in reversed(range(MOST_REFUSALS + 1)):
            hold = ModelStreamBuffer(everything=everything)
            async with closing(ask([*items, *self._told])) as events:
                async for event in events:
                    for shown in hold.take(event):
                        yield shown
            if hold.response is None:
                return  # it failed or broke off, which the SDK says by itself
            output, usage = hold.response.output, hold.response.usage
            made = ModelResponse(output=output, usage=_sdk_usage(usage), response_id=None)
            spent = _added(spent, usage)
            judged = await self._verdict(made, more, last=not left)
            if judged.told is None:
                taken = None if judged.response is made else judged.response
                for shown in hold.released(spent, instead=taken):
                    yield shown
                return
            self._told += judged.told


class ModelStreamBuffer:
    """Holds back what must not be seen of an answer before the verdict.

    Attributes:
        response: the answer, once it is whole.
    """

    def __init__(self, *, everything: bool) -> None:
        self.response: Any = None
        self._holding = everything
        self._held: list[Any] = []
        self._items: list[Any] = []

    def take(self, event: Any) -> list[Any]:
        """Take an event; returns what may be seen now."""
        kind = event.type
        if kind in _FAILED:
            return [event]
        if kind == "response.completed":
            self.response = event.response
            if not self.response.output:  # some servers list the items in their own events alone
                self.response = self.response.model_copy(update={"output": list(self._items)})
            self._held.append(event)
            return []
        if kind == "response.output_item.done":
            self._items.append(event.item)
        elif kind == "response.output_item.added" and event.item.type not in _FLOW:
            self._holding = True
        if self._holding:
            self._held.append(event)
            return []
        return [event]

    def released(self, spent: Any, *, instead: ModelResponse | None = None) -> list[Any]:
        """What was held; the last event says what all answers cost.

        Args:
            spent: that.
            instead: the answer that takes its place: then the last event alone tells of it, whole.
        """
        *held, last = self._held
        update = {"usage": spent} if instead is None else {"usage": spent, "output": list(instead.output)}
        end = last.model_copy(update={"response": self.response.model_copy(update=update)})
        return [end] if instead is not None else [*held, end]


@asynccontextmanager
async def closing(events: AsyncIterator[Any]) -> AsyncIterator[AsyncIterator[Any]]:
    """Close a stream however its reader leaves it, where it can be closed."""
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


def repaired_response(response: ModelResponse, turn: Step) -> ModelResponse:
    """The answer with the text and the calls of ``turn``, which was made of it and repaired since."""
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


def _sdk_usage(usage: Any) -> SdkUsage:
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


def _added(one: Any, other: Any) -> Any:
    """The sum of what two responses say of their usage, where both say anything."""
    if one is None or other is None:
        return other if one is None else one
    names = ("input_tokens", "output_tokens", "total_tokens")
    summed = {name: getattr(one, name) + getattr(other, name) for name in names}
    return type(other).model_validate({**other.model_dump(), **summed})
