"""Events of the pipeline, one immutable record each, for metrics, logs and the causal graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

_LOG = logging.getLogger(__name__)


class EventKind(StrEnum):
    """Kinds of events that strategies report."""

    RETRY = "retry"
    GAVE_UP = "gave_up"
    BREAKER = "breaker"
    THROTTLE = "throttle"
    HEDGE = "hedge"
    HEDGE_WON = "hedge_won"
    STRAY = "stray"
    SHED = "shed"
    EJECT = "eject"
    READMIT = "readmit"
    PANIC = "panic"
    TIMEOUT = "timeout"
    STALL = "stall"
    CUT = "cut"
    DOWN = "down"
    UP = "up"
    CORRUPT = "corrupt"
    CONTINUED = "continued"


@dataclass(frozen=True, slots=True, kw_only=True)
class ResilienceEvent:
    """Event of a strategy; it contains no data of the request or the response.

    Attributes:
        kind: kind of the event.
        at: clock time in seconds.
        source: name of the strategy.
        target: host or endpoint, if the event concerns one.
        reason: reason in one clause; for a circuit breaker its new state.
        attempt: number of the failed attempt, from 1, or 0.
        seconds: delay, ejection time or latency of the event, or 0.
    """

    kind: EventKind
    at: float
    source: str
    target: str = ""
    reason: str = ""
    attempt: int = 0
    seconds: float = 0.0


Observer = Callable[[ResilienceEvent], None]


class Observers:
    """Observers, all called for each event; an exception of an observer is logged, and the call continues."""

    __slots__ = ("_observers",)

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def __call__(self, event: ResilienceEvent) -> None:
        """Call all observers."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception as error:
                _LOG.warning("an observer of %s events failed: %s", event.kind, type(error).__name__)
