"""Model calls of a guarded run of the OpenAI Agents SDK: asked again where an answer is refused.

The SDK acts on an answer once it is whole. In a stream, text flows at once; from the first call on, events
are held until the verdict, so that no consumer is told of a call that will not be made.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol

from agents.items import ModelResponse
from agents.usage import Usage as SdkUsage

Ask = Callable[[list[Any]], Awaitable[ModelResponse]]
"""Asks the model once, given the items it sees."""

Stream = Callable[[list[Any]], AsyncIterator[Any]]
"""As `Ask`, for a streamed answer."""

MOST_REFUSALS = 10
"""Times one turn may be refused in a row before it is let through: a budget may be without limits."""

_FLOW = ("message", "reasoning")
_FAILED = ("response.incomplete", "response.failed", "response.error", "error")


class Verdict(Protocol):
    """Judges an answer whose tools have not run."""

    async def __call__(self, items: list[Any], usage: Any, *, last: bool) -> list[Any] | None:
        """None if it is accepted, else the items that the model is asked again with.

        Args:
            items: the answer, as input items.
            usage: what it cost.
            last: it is accepted whatever it is.
        """
        ...


class Asking:
    """Asks models.

    Args:
        verdict: judges each answer.
    """

    def __init__(self, verdict: Verdict) -> None:
        self._verdict = verdict

    async def respond(self, items: list[Any], ask: Ask) -> ModelResponse:
        """The answer that was accepted; it costs what all of them cost."""
        spent = SdkUsage()
        for left in reversed(range(MOST_REFUSALS + 1)):
            response = await ask(items)
            spent.add(response.usage)
            told = await self._verdict(response.to_input_items(), response.usage, last=not left)
            if told is None:
                break
            items = [*items, *told]
        return replace(response, usage=spent)

    async def flow(self, items: list[Any], ask: Stream, *, everything: bool) -> AsyncIterator[Any]:
        """The events of one answer after the other; the last event alone says that an answer is whole.

        Args:
            items: what the model sees.
            ask: asks it.
            everything: hold text, too, where half an answer is of no use to anybody.
        """
        spent: Any = None
        for left in reversed(range(MOST_REFUSALS + 1)):
            hold = Hold(everything=everything)
            async with closing(ask(items)) as events:
                async for event in events:
                    for shown in hold.take(event):
                        yield shown
            if hold.response is None:
                return  # it failed or broke off, which the SDK says by itself
            output, usage = hold.response.output, hold.response.usage
            made = ModelResponse(output=output, usage=SdkUsage(), response_id=None)
            spent = _added(spent, usage)
            told = await self._verdict(made.to_input_items(), usage, last=not left)
            if told is None:
                for shown in hold.released(spent):
                    yield shown
                return
            items = [*items, *told]


class Hold:
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

    def released(self, spent: Any) -> list[Any]:
        """What was held; the last event says what all answers cost."""
        *held, last = self._held
        response = self.response.model_copy(update={"usage": spent})
        return [*held, last.model_copy(update={"response": response})]


@asynccontextmanager
async def closing(events: AsyncIterator[Any]) -> AsyncIterator[AsyncIterator[Any]]:
    """Close a stream however its reader leaves it, where it can be closed."""
    try:
        yield events
    finally:
        close = getattr(events, "aclose", None)
        if close is not None:
            await close()


def _added(one: Any, other: Any) -> Any:
    """The sum of what two responses say of their usage, where both say anything."""
    if one is None or other is None:
        return other if one is None else one
    names = ("input_tokens", "output_tokens", "total_tokens")
    return other.model_copy(update={name: getattr(one, name) + getattr(other, name) for name in names})
