"""A circuit breaker: leaves an endpoint alone for a while once too many of its calls fail.

After Nygard's *Release It!* and Polly v8: the share of failures in a sliding window opens it, but only
where there were enough calls to speak of a share; after a while exactly one call may probe, and decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from agentguard.errors import CircuitOpen
from agentguard.resilience._sliding_window import SlidingWindow
from agentguard.resilience.base import CallOutcome, Response, Runtime, Send, classify_outcome
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.options import RATIO, SECONDS, StrategyOptions, check_ranges
from agentguard.resilience.stream_timeout import MonitoredStream


class CircuitState(StrEnum):
    """What a breaker does with calls: send all, none, or one."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreakerOptions(StrategyOptions):
    """Options of the breaker.

    Attributes:
        failure_ratio: share of failures in the window from which it opens.
        minimum_throughput: calls there must be in the window before it may open.
        sampling_duration_s: how far back it looks.
        break_duration_s: how long it stays open before one call may probe.
        target: what it guards, for events.
    """

    name: ClassVar[str] = "circuit_breaker"

    failure_ratio: float = 0.1
    minimum_throughput: int = 20
    sampling_duration_s: float = 30.0
    break_duration_s: float = 5.0
    target: str = ""

    def __post_init__(self) -> None:
        check_ranges(
            self,
            failure_ratio=RATIO,
            minimum_throughput=(1, 100_000),
            sampling_duration_s=SECONDS,
            break_duration_s=SECONDS,
        )

    def build(self, inner: Send, runtime: Runtime) -> CircuitBreaker:
        """Make the working part."""
        return CircuitBreaker(self, inner, runtime)


class CallPermit:
    """The leave to make one call; tells once what became of it. One of an earlier state counts no more."""

    __slots__ = ("_breaker", "generation", "is_probe")

    def __init__(self, breaker: CircuitBreaker, generation: int, is_probe: bool) -> None:
        self._breaker: CircuitBreaker | None = breaker
        self.generation, self.is_probe = generation, is_probe

    def release(self, outcome: CallOutcome) -> None:
        """Give it back with a `Verdict`; only the first time counts."""
        breaker, self._breaker = self._breaker, None
        if breaker is not None:
            breaker.release_permit(self, outcome)


class CircuitBreaker:
    """The state machine, and the layer around it. Every method but `send` is synchronous, hence atomic."""

    def __init__(self, options: CircuitBreakerOptions, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime
        self._window = SlidingWindow(options.sampling_duration_s, runtime.clock)
        self._state, self._open_until, self._generation, self._has_probe_in_flight = (
            CircuitState.CLOSED,
            0.0,
            0,
            False,
        )

    @property
    def state(self) -> CircuitState:
        """The present state; an open breaker turns half open only when a call asks."""
        return self._state

    @property
    def is_ready(self) -> bool:
        """Whether `enter` would give leave now; asking changes nothing."""
        if self._state is CircuitState.CLOSED:
            return True
        if self._state is CircuitState.HALF_OPEN:
            return not self._has_probe_in_flight
        return self.remaining_break_s <= 0

    @property
    def remaining_break_s(self) -> float:
        """Seconds until an open breaker lets one call probe; 0 or less if it would now."""
        return self._open_until - self._runtime.clock.now()

    def acquire(self) -> CallPermit:
        """Ask for a call. Raises CircuitOpen, with the seconds until a probe, if there is none to be had."""
        if self._state is CircuitState.CLOSED:
            return CallPermit(self, self._generation, is_probe=False)
        left = self.remaining_break_s
        if self._state is CircuitState.OPEN and left <= 0:
            self._transition(CircuitState.HALF_OPEN)
        if self._state is CircuitState.OPEN or self._has_probe_in_flight:
            raise CircuitOpen("the endpoint failed too often just now", retry_after_s=max(0.0, left))
        self._has_probe_in_flight = True
        return CallPermit(self, self._generation, is_probe=True)

    def release_permit(self, permit: CallPermit, outcome: CallOutcome) -> None:
        """Take a permit back; called by the permit."""
        if permit.generation != self._generation:
            return
        if permit.is_probe:
            self._has_probe_in_flight = False
            if outcome is not CallOutcome.IGNORED:
                self._transition(CircuitState.CLOSED if outcome is CallOutcome.SUCCESS else CircuitState.OPEN)
        elif outcome is not CallOutcome.IGNORED:
            self._record_result(outcome is CallOutcome.SUCCESS)

    def _record_result(self, is_success: bool) -> None:
        """A call of the closed state ended."""
        fine, total = self._window.add(is_success)
        if fine == total:
            return
        options, failed = self._options, total - fine
        if total >= options.minimum_throughput and failed >= options.failure_ratio * total:
            self._transition(CircuitState.OPEN)

    def _transition(self, state: CircuitState) -> None:
        self._state, self._has_probe_in_flight = state, False
        self._generation += 1
        if state is CircuitState.OPEN:
            self._open_until = self._runtime.clock.now() + self._options.break_duration_s
        elif state is CircuitState.CLOSED:
            self._window.clear()
        self._runtime.emit_event(
            EventKind.BREAKER, self._options.name, target=self._options.target, reason=state.value
        )

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send on, or raise CircuitOpen; a stream counts when it has ended."""
        if self._state is not CircuitState.CLOSED:
            return await self._send_probe(request, deadline)
        generation = self._generation  # what ends in a later one counts no more
        try:
            response = await self._inner(request, deadline)
        except BaseException as error:
            self._on_call_end(generation, error, deadline)
            raise
        if isinstance(response, MonitoredStream):
            response.add_end_callback(lambda error: self._on_call_end(generation, error, deadline))
        elif generation == self._generation:
            self._record_result(True)
        return response

    def _on_call_end(self, generation: int, error: BaseException | None, deadline: Deadline) -> None:
        """A call of the closed state ended."""
        outcome = classify_outcome(error, deadline)
        if generation == self._generation and outcome is not CallOutcome.IGNORED:
            self._record_result(outcome is CallOutcome.SUCCESS)

    async def _send_probe(self, request: Any, deadline: Deadline) -> Response:
        """Send the one call that may find out whether the endpoint is well again, or raise CircuitOpen."""
        permit = self.acquire()
        try:
            response = await self._inner(request, deadline)
        except BaseException as error:
            permit.release(classify_outcome(error, deadline))
            raise
        if permit.is_probe:  # it has answered; the others need not wait until its stream has ended
            permit.release(CallOutcome.SUCCESS)
            permit = CallPermit(self, self._generation, is_probe=False)
        if isinstance(response, MonitoredStream):
            response.add_end_callback(lambda error: permit.release(classify_outcome(error, deadline)))
        elif permit.generation == self._generation:  # what ending it with GOOD comes to
            self._record_result(True)
        return response
