"""The hold on a stream: what of an answer the client may not see before the guard has judged it.

What is text flows on at once. From what the client would act on, or the end, on, events are held until the
answer is whole and judged; then the held bytes follow as they came, or the model is asked again and its
answer's events follow in the same stream, as events of the same answer. What an event is differs between
the APIs, and is said by the subclasses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from agentguard import _sync_async
from agentguard.intercept.adapters.openai_chat import wants_json
from agentguard.intercept.conversation import Item
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.types import CandidateRequest, Decision, How
from agentguard.model_api.sse import EventReader, skimmed

_ODD = (TypeError, AttributeError, ValueError)
"""What reading an event of another shape raises."""


class HeldStream(ABC):
    """Holds back what the client may not see yet; one stream, all the answers that are asked for in it.

    Args:
        exchange: judges the answers.
        wire: how further candidates of an answer are asked for.
        everything: hold text, too, so that the client sees nothing of a refused answer.
    """

    def __init__(self, exchange: GuardedRequest, wire: CandidateRequest, *, everything: bool = False) -> None:
        self._exchange, self._wire = exchange, wire
        self._everything = everything or wants_json(exchange.request)
        self._held: list[tuple[bytes, dict[str, Any] | None]] = []
        self._head: dict[str, Any] = {}
        self._later = False
        self._broken: Exception | None = None
        self._next()

    def feed(self, data: bytes) -> bytes:
        """Take bytes of the current answer; returns what the client may have."""
        shown = [self._event(event) for event in self._events.feed(data)]
        return shown[0] if len(shown) == 1 else b"".join(shown)

    def finish(self) -> _sync_async.Effects[tuple[bytes, Decision]]:
        """The answer's bytes are over: judge it; yields what asks for further candidates.

        Raises:
            EOFError: it is not whole.
        """
        if self._broken is not None:
            raise self._broken
        if self._error:
            self._exchange.settle()
            return self.release(), "deliver"
        decision = yield from self._exchange.answering(self._payload(), self._wire, self._seen)
        if decision == "again":
            return self._once_more(), decision
        if decision == "final":
            return self._final(), decision
        self._exchange.settle()
        taken, how = self._exchange.taken, self._exchange.how
        return (self.release() if taken is None else self._instead(taken, how)), decision

    def whole(self) -> dict[str, Any] | None:
        """The answer that was fed, for those who only look at it; None if it is an error.

        Raises:
            EOFError: it is not whole.
        """
        if self._broken is not None:
            raise self._broken
        return None if self._error else self._payload()

    def release(self) -> bytes:
        """All that is held, without a verdict."""
        held, self._held = self._held, []
        return b"".join([self._safely_shown(event, value) for event, value in held]) + self._events.rest

    @abstractmethod
    def failed(self, message: str) -> bytes:
        """What the client gets when the model could not be asked again."""

    @abstractmethod
    def _read(self, event: bytes, value: dict[str, Any]) -> None:
        """Take in what an event says; sets ``_holding`` where it and what follows are to be held.

        What is kept of it, and may be sent again, is to be `parsed`: ``value`` is only skimmed.
        """

    def _read_other(self, event: bytes) -> None:
        """Take in an event whose data is no object; most say nothing by it."""
        del event

    @abstractmethod
    def _shown(self, event: bytes, value: dict[str, Any]) -> bytes:
        """The event as the client gets it: as it came, or as one of the answer that was begun."""

    @abstractmethod
    def _payload(self) -> dict[str, Any]:
        """The answer that the events make. Raises EOFError if it is not whole."""

    @abstractmethod
    def _seen(self, answer: list[Item], how: How) -> tuple[list[Item] | None, str]:
        """As `agentguard.intercept.types.Shown`."""

    @abstractmethod
    def _instead(self, payload: dict[str, Any], how: How) -> bytes:
        """An answer that takes the place of the one that is held, as events."""

    @abstractmethod
    def _once_more(self) -> bytes:
        """Another answer follows; returns what the client gets in between."""

    @abstractmethod
    def _final(self) -> bytes:
        """The guard's last word, and the end of the stream."""

    def _next(self) -> None:
        """Begin another answer."""
        self._events = EventReader()
        self._held = []
        self._holding, self._error = self._everything, False

    def _event(self, event: bytes) -> bytes:
        value = skimmed(event)
        try:
            if value is None:
                self._read_other(event)
            else:
                self._read(event, value)
        except _ODD as error:
            self._broken, self._holding = error, True
        if self._holding:
            self._held.append((event, value))
            return b""
        return self._safely_shown(event, value)

    def _safely_shown(self, event: bytes, value: dict[str, Any] | None) -> bytes:
        try:
            return event if value is None else self._shown(event, value)
        except _ODD as error:
            self._broken = self._broken or error
            return event
