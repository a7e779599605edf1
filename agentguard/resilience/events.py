"""What happens inside the pipeline, as one frozen record an event, for metrics, logs and the causal graph."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum

_LOG = logging.getLogger(__name__)


class EventKind(StrEnum):
    """Everything a strategy reports."""

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
    """Something a strategy did; nothing of the request or the answer is in it.

    Attributes:
        kind: what happened.
        at: the clock's time, in seconds.
        source: name of the strategy.
        target: host or endpoint, where one is concerned.
        reason: why, in one clause; of a breaker: the new state.
        attempt: the attempt that failed, counted from 1, or 0.
        seconds: the wait, ejection or latency the event is about, or 0.
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
    """Hands an event to every observer; one that raises is logged and does no harm to the call."""

    __slots__ = ("_observers",)

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self._observers = tuple(observers)

    def __call__(self, event: ResilienceEvent) -> None:
        """Tell all observers."""
        for observer in self._observers:
            try:
                observer(event)
            except Exception as error:
                _LOG.warning("an observer of %s events failed: %s", event.kind, type(error).__name__)
