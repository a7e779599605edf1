"""Interfaces of the resilience strategies, and the classification of errors that they share.

Backends, fault injectors, recorders and strategies all have the same method:
``send(request, deadline) -> response``.

A backend raises `BackendError` for every failure; its ``stage`` is the progress of the request. Three
functions classify an error, so that all strategies agree: `classify_outcome`, `is_overload` and
`is_retryable`.
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
    """Priority under load shedding; the largest value is shed first (SRE book, chapter 21)."""

    CRITICAL_PLUS = 0
    CRITICAL = 1
    SHEDDABLE_PLUS = 2
    SHEDDABLE = 3


class Request(Protocol):
    """Properties of a request that strategies use; the rest is opaque to them."""

    @property
    def idempotent(self) -> bool:
        """Return whether repeating the request is harmless."""
        ...

    @property
    def priority(self) -> RequestPriority:
        """Return the priority under load shedding."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BasicRequest:
    """Plain request: a payload with the properties that strategies use."""

    payload: Any = None
    idempotent: bool = True
    priority: RequestPriority = RequestPriority.CRITICAL


Response = Any
Send = Callable[[Any, Deadline], Coroutine[Any, Any, Response]]
"""Function from (request, deadline) to a response. A streamed response is an async iterator of chunks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """Shared dependencies of the strategies: clock, random generator and observers of events."""

    clock: Clock = MONOTONIC
    rng: random.Random = field(default_factory=random.Random)
    observers: Observers = field(default_factory=Observers)

    def emit_event(self, kind: EventKind, source: str, **details: Any) -> None:
        """Pass an event to the observers; the details are fields of `ResilienceEvent`."""
        self.observers(ResilienceEvent(kind=kind, at=self.clock.now(), source=source, **details))


class ResilienceStrategy(Protocol):
    """Strategy with its state, bound to the ``send`` of the next strategy."""

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Pass the request to the next strategy, or reject it."""
        ...


class StrategyOptions(Protocol):
    """Options of a strategy: immutable, printable and comparable."""

    @property
    def name(self) -> str:
        """Return the name of the strategy, as used in the order, in events and in messages."""
        ...

    def build(self, inner: Send, runtime: Runtime) -> ResilienceStrategy:
        """Bind the strategy to the ``send`` of the next one."""
        ...

    def describe(self) -> str:
        """Return the name and every option in one line."""
        ...


class CallOutcome(Enum):
    """Outcome of a call as evidence about the endpoint."""

    SUCCESS = "good"
    FAILURE = "fault"
    IGNORED = "nothing"


OVERLOAD_STATUSES = frozenset({429, 503, 529})
"""HTTP statuses that report overload; 529 is Anthropic's."""


def classify_outcome(error: BaseException | None, deadline: Deadline) -> CallOutcome:
    """Classify the outcome of a call: a success or a failure of the endpoint, or no evidence about it.

    - A 4xx response counts as a success, because it is the caller's fault.
    - A cancellation counts as a failure if the deadline caused it, and is ignored if the caller left.
    - Calls that a strategy rejected (`CircuitOpen`, `Overloaded`) are ignored.
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
    """Return whether the outcome shows an overloaded endpoint: a rejection or a timeout."""
    if error is None:
        return False
    if isinstance(error, BackendError):
        return error.status in OVERLOAD_STATUSES or error.stage == "unsent"
    if isinstance(error, asyncio.CancelledError):
        return deadline.is_expired
    return isinstance(error, DeadlineExceeded | Stalled)


RETRYABLE_STATUSES = frozenset({408, 425, 429, 500, 502, 503, 504, 529})
"""HTTP statuses after which a retry may succeed."""


def is_retryable(
    error: ResilienceError, request: Request, statuses: frozenset[int] = RETRYABLE_STATUSES
) -> bool:
    """Return whether a failed call may be retried, by the class of its error.

    - A request that was not sent may always be retried.
    - A request on which the endpoint may have acted may be retried if it is idempotent. It may also be
      retried if the endpoint rejected it before processing (425, 429).
    - A response that the caller has received in part may not be retried.
    - A call that a strategy rejected may not be retried: the retry would add the load that was avoided.
    """
    if isinstance(error, CircuitOpen | Overloaded) or error.stage == "committed":
        return False
    status = error.status if isinstance(error, BackendError) else None
    if status is not None:
        return status in statuses and (request.idempotent or status in {425, 429})
    if not isinstance(error, BackendError | DeadlineExceeded | Stalled):
        return False
    return error.stage == "unsent" or request.idempotent
