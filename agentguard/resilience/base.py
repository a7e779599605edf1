"""The one seam: ``send(request, deadline) -> response``; backends, faults, recorders and strategies have it.

A backend raises `BackendError` for what goes wrong and says in its ``stage`` how far it had got. What a
strategy makes of an error is decided here, in three questions, so that no two strategies disagree.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Any, Protocol

from agentguard.errors import (
    BackendError,
    CircuitOpen,
    DeadlineExceeded,
    Overloaded,
    ResilienceError,
    Stalled,
)
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind, Observers, ResilienceEvent


class RequestPriority(IntEnum):
    """What is shed last and first: the four criticalities of Google's SRE book, chapter 21."""

    CRITICAL_PLUS = 0
    CRITICAL = 1
    SHEDDABLE_PLUS = 2
    SHEDDABLE = 3


class Request(Protocol):
    """What strategies need to know of a request; the rest is between caller and backend."""

    @property
    def idempotent(self) -> bool:
        """Whether doing it twice does no harm."""
        ...

    @property
    def priority(self) -> RequestPriority:
        """How late it is shed."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicRequest:
    """A plain request: any payload, with what strategies need to know."""

    payload: Any = None
    idempotent: bool = True
    priority: RequestPriority = RequestPriority.CRITICAL


Response = Any
Send = Callable[[Any, Deadline], Coroutine[Any, Any, Response]]
"""(request, deadline) to response. A streamed answer is an async iterator of chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """What strategies share while they run: the time, the dice, and who is told of events."""

    clock: Clock = MONOTONIC
    rng: random.Random = field(default_factory=random.Random)
    observers: Observers = field(default_factory=Observers)

    def emit_event(self, kind: EventKind, source: str, **details: Any) -> None:
        """Hand an event to the observers; details are fields of `Event`."""
        self.observers(ResilienceEvent(kind=kind, at=self.clock.now(), source=source, **details))


class BoundStrategy(Protocol):
    """A strategy at work, with its state, around the seam of the next one."""

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send the request on, or not."""
        ...


class ResilienceStrategy(Protocol):
    """A strategy as data: frozen options that can be printed, compared and built."""

    @property
    def name(self) -> str:
        """Its name in the order, in events and in messages."""
        ...

    def build(self, inner: Send, runtime: Runtime) -> BoundStrategy:
        """Make the working part around ``inner``."""
        ...

    def describe(self) -> str:
        """One line: the name and every option."""
        ...


class CallOutcome(Enum):
    """What the end of a call says about the endpoint."""

    SUCCESS = "good"
    FAILURE = "fault"
    IGNORED = "nothing"


OVERLOAD_STATUSES = frozenset({429, 503, 529})
"""Statuses that say: too much. 529 is Anthropic's."""


def classify_outcome(error: BaseException | None, deadline: Deadline) -> CallOutcome:
    """Whether a call's end speaks for the endpoint, against it, or says nothing.

    An answer in the 400s is the caller's fault and speaks for the endpoint. A cancellation speaks against it
    if the deadline is what cancelled, and says nothing if the caller left. What was not sent by ourselves
    (`CircuitOpen`, `Overloaded`) says nothing.
    """
    if error is None:
        return CallOutcome.SUCCESS
    if isinstance(error, BackendError):
        return CallOutcome.SUCCESS if error.status is not None and error.status < 500 else CallOutcome.FAILURE
    if isinstance(error, DeadlineExceeded | Stalled):
        return CallOutcome.FAILURE
    if isinstance(error, asyncio.CancelledError | GeneratorExit):
        return CallOutcome.FAILURE if deadline.is_expired else CallOutcome.IGNORED
    return CallOutcome.IGNORED if isinstance(error, ResilienceError) else CallOutcome.FAILURE


def is_overload(error: BaseException | None, deadline: Deadline) -> bool:
    """Whether a call's end says that the endpoint has more work than it can do: refused, or out of time."""
    if error is None:
        return False
    if isinstance(error, BackendError):
        return error.status in OVERLOAD_STATUSES or error.stage == "unsent"
    if isinstance(error, asyncio.CancelledError):
        return deadline.is_expired
    return isinstance(error, DeadlineExceeded | Stalled)


RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""Statuses after which another try may help."""


def is_retryable(
    error: ResilienceError, request: Request, statuses: frozenset[int] = RETRYABLE_STATUSES
) -> bool:
    """Whether a failed call may be sent again, as far as its class goes.

    What was never sent may always be. What the endpoint may have acted on may be if it is idempotent,
    or if it was refused before it was processed (425, 429). What the caller has a part of may not, nor
    what we held back ourselves: sending that again is the load that was to be avoided.
    """
    if isinstance(error, CircuitOpen | Overloaded) or error.stage == "committed":
        return False
    status = error.status if isinstance(error, BackendError) else None
    if status is not None:
        return status in statuses and (request.idempotent or status in {425, 429})
    if not isinstance(error, BackendError | DeadlineExceeded | Stalled):
        return False
    return error.stage == "unsent" or request.idempotent
