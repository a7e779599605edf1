"""Circuit breaker and adaptive throttling: reject calls to an endpoint that fails or rejects too many.

The circuit breaker follows Nygard's *Release It!* and Polly v8. It opens if the failure ratio in a sliding
window is too high and the window has enough calls. After the break exactly one call may probe the endpoint;
its result decides. Adaptive throttling rejects a share of the requests, the more the endpoint rejects.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from agentguard.errors import CircuitOpen, Overloaded
from agentguard.options import RATIO, SECONDS, Options, option
from agentguard.resilience.base import CallOutcome, Response, Runtime, Send, classify_outcome, is_overload
from agentguard.resilience.clock import Clock
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.stream_timeout import MonitoredStream


class SlidingWindow:
    """Two counters over a sliding window, which advances by a tenth of its length (Hystrix's rolling counts).

    Args:
        seconds: length of the window; an event counts for between 9/10 of it and all of it.
        clock: source of time.

    Attributes:
        SLOTS: number of slots.
        successes: number of successful events at the last `add` or `get_counts`.
        total: number of all events at the last `add` or `get_counts`.
    """

    SLOTS = 10

    __slots__ = (
        "_now",
        "_slot",
        "_slot_ends_at",
        "_slot_number",
        "_slot_width",
        "_slots",
        "successes",
        "total",
    )

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._now, self._slot_width = clock.now, seconds / self.SLOTS
        self.clear()

    def clear(self) -> None:
        """Reset both counters."""
        self._slots = [[0, 0] for _ in range(self.SLOTS)]
        self.successes = self.total = 0
        self._start_slot(int(self._now() / self._slot_width))

    def add(self, is_success: bool) -> tuple[int, int]:
        """Count one event; return the new counts like `get_counts`."""
        if self._now() >= self._slot_ends_at:
            self._advance()
        slot = self._slot
        if is_success:
            slot[0] += 1
            self.successes += 1
        slot[1] += 1
        self.total += 1
        return self.successes, self.total

    def get_counts(self) -> tuple[int, int]:
        """Return the successful events and all events in the window."""
        if self._now() >= self._slot_ends_at:
            self._advance()
        return self.successes, self.total

    def _advance(self) -> None:
        """Advance to the current slot, and clear the slots that left the window."""
        now = max(self._slot_number + 1, int(self._now() / self._slot_width))
        for number in range(max(self._slot_number + 1, now - self.SLOTS + 1), now + 1):
            slot = self._slots[number % self.SLOTS]
            self.successes -= slot[0]
            self.total -= slot[1]
            slot[0] = slot[1] = 0
        self._start_slot(now)

    def _start_slot(self, slot_number: int) -> None:
        self._slot_number, self._slot_ends_at = slot_number, (slot_number + 1) * self._slot_width
        self._slot = self._slots[slot_number % self.SLOTS]


class CircuitState(StrEnum):
    """State of a breaker: it admits all calls, none, or a single probe."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class CircuitBreakerOptions(Options):
    """Options of the circuit breaker.

    Attributes:
        failure_ratio: failure ratio in the window from which the breaker opens.
        minimum_throughput: number of calls in the window required to open.
        sampling_duration_s: length of the window.
        break_duration_s: time in the open state before one call may probe.
        target: name of the endpoint, for events.
    """

    name: ClassVar[str] = "circuit_breaker"

    failure_ratio: float = option(0.1, bounds=RATIO)
    minimum_throughput: int = option(20, bounds=(1, 100_000))
    sampling_duration_s: float = option(30.0, bounds=SECONDS)
    break_duration_s: float = option(5.0, bounds=SECONDS)
    target: str = option("", is_hidden=True)

    def build(self, inner: Send, runtime: Runtime) -> CircuitBreaker:
        """Bind the strategy to the ``send`` of the next one."""
        return CircuitBreaker(self, inner, runtime)


class CallPermit:
    """Permit for one call, released once with its outcome. A permit of an earlier state is ignored."""

    __slots__ = ("_breaker", "generation", "is_probe")

    def __init__(self, breaker: CircuitBreaker, generation: int, is_probe: bool) -> None:
        self._breaker: CircuitBreaker | None = breaker
        self.generation, self.is_probe = generation, is_probe

    def release(self, outcome: CallOutcome) -> None:
        """Release the permit with a `CallOutcome`; only the first release counts."""
        breaker, self._breaker = self._breaker, None
        if breaker is not None:
            breaker.release_permit(self, outcome)


class CircuitBreaker:
    """State machine and strategy of the breaker. All methods except `send` are synchronous and atomic.

    Attributes:
        state: current state; an open breaker becomes half-open only when a call arrives.
    """

    def __init__(self, options: CircuitBreakerOptions, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime
        self._window = SlidingWindow(options.sampling_duration_s, runtime.clock)
        self.state, self._open_until, self._generation, self._has_probe_in_flight = (
            CircuitState.CLOSED,
            0.0,
            0,
            False,
        )

    @property
    def is_ready(self) -> bool:
        """Return whether `acquire` would succeed now; the state does not change."""
        if self.state is CircuitState.CLOSED:
            return True
        if self.state is CircuitState.HALF_OPEN:
            return not self._has_probe_in_flight
        return self.remaining_break_s <= 0

    @property
    def remaining_break_s(self) -> float:
        """Return the seconds until an open breaker admits a probe; 0 or less if it does now."""
        return self._open_until - self._runtime.clock.now()

    def acquire(self) -> CallPermit:
        """Return a permit for a call. Raises CircuitOpen with the seconds until a probe if it is rejected."""
        if self.state is CircuitState.CLOSED:
            return CallPermit(self, self._generation, is_probe=False)
        remaining_s = self.remaining_break_s
        if self.state is CircuitState.OPEN and remaining_s <= 0:
            self._transition(CircuitState.HALF_OPEN)
        if self.state is CircuitState.OPEN or self._has_probe_in_flight:
            raise CircuitOpen("the circuit breaker is open", retry_after_s=max(0.0, remaining_s))
        self._has_probe_in_flight = True
        return CallPermit(self, self._generation, is_probe=True)

    def release_permit(self, permit: CallPermit, outcome: CallOutcome) -> None:
        """Record the outcome of a permit; called by the permit."""
        if permit.generation != self._generation:
            return
        if permit.is_probe:
            self._has_probe_in_flight = False
            if outcome is not CallOutcome.IGNORED:
                self._transition(CircuitState.CLOSED if outcome is CallOutcome.SUCCESS else CircuitState.OPEN)
        elif outcome is not CallOutcome.IGNORED:
            self._record_result(outcome is CallOutcome.SUCCESS)

    def _record_result(self, is_success: bool) -> None:
        """Record a call of the closed state."""
        successes, total = self._window.add(is_success)
        if successes == total:
            return
        options, failures = self._options, total - successes
        if total >= options.minimum_throughput and failures >= options.failure_ratio * total:
            self._transition(CircuitState.OPEN)

    def _transition(self, state: CircuitState) -> None:
        self.state, self._has_probe_in_flight = state, False
        self._generation += 1
        if state is CircuitState.OPEN:
            self._open_until = self._runtime.clock.now() + self._options.break_duration_s
        elif state is CircuitState.CLOSED:
            self._window.clear()
        self._runtime.emit_event(
            EventKind.BREAKER, self._options.name, target=self._options.target, reason=state.value
        )

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Pass the request to the next strategy, or raise CircuitOpen; a stream is recorded at its end."""
        if self.state is not CircuitState.CLOSED:
            return await self._send_probe(request, deadline)
        generation = self._generation  # results in a later generation are ignored
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
        """Record the end of a call of the closed state."""
        outcome = classify_outcome(error, deadline)
        if generation == self._generation and outcome is not CallOutcome.IGNORED:
            self._record_result(outcome is CallOutcome.SUCCESS)

    async def _send_probe(self, request: Any, deadline: Deadline) -> Response:
        """Send a probe, or raise CircuitOpen."""
        permit = self.acquire()
        try:
            response = await self._inner(request, deadline)
        except BaseException as error:
            permit.release(classify_outcome(error, deadline))
            raise
        if permit.is_probe:  # the endpoint has responded; other calls need not wait for the end of the stream
            permit.release(CallOutcome.SUCCESS)
            permit = CallPermit(self, self._generation, is_probe=False)
        if isinstance(response, MonitoredStream):
            response.add_end_callback(lambda error: permit.release(classify_outcome(error, deadline)))
        elif permit.generation == self._generation:  # same as releasing the permit with SUCCESS
            self._record_result(True)
        return response


@dataclass(frozen=True, slots=True, kw_only=True)
class AdaptiveThrottlingOptions(Options):
    """Options of adaptive throttling, after Google's SRE book, chapter 21.

    A request is rejected with probability ``(requests - k * accepts) / (requests + 1)``, clamped to [0,
    ``max_rejection_probability``]. The book's rule alone rejects half of all requests after the first
    failure. Its recovery takes many windows, because only one request in thousands passes. The minimum number
    of requests and the upper bound avoid this, as in Envoy's admission control filter.

    Attributes:
        k: requests that are sent per accepted request before any is rejected.
        window_s: length of the window.
        min_requests: number of requests in the window required to reject any.
        max_rejection_probability: upper bound on the rejection probability.
    """

    name: ClassVar[str] = "adaptive_throttling"

    k: float = option(2.0, bounds=(1.0, 100.0))
    window_s: float = option(30.0, bounds=SECONDS)
    min_requests: int = option(20, bounds=(1, 100_000))
    max_rejection_probability: float = option(0.9, bounds=RATIO)

    def build(self, inner: Send, runtime: Runtime) -> AdaptiveThrottling:
        """Bind the strategy to the ``send`` of the next one."""
        return AdaptiveThrottling(self, inner, runtime)


class AdaptiveThrottling:
    """Adaptive throttling of an endpoint: it rejects a share of requests that depends on recent outcomes."""

    def __init__(self, options: AdaptiveThrottlingOptions, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime
        self._window = SlidingWindow(options.window_s, runtime.clock)

    def compute_rejection_probability(self) -> float:
        """Return the probability with which a request is rejected now."""
        accepted_count, request_count = self._window.get_counts()
        options = self._options
        if request_count < options.min_requests:
            return 0.0
        return min(
            options.max_rejection_probability,
            max(0.0, (request_count - options.k * accepted_count) / (request_count + 1)),
        )

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Pass the request to the next strategy, or raise Overloaded."""
        window = self._window
        share = (
            0.0 if window.successes == window.total else self.compute_rejection_probability()
        )  # the endpoint has rejected nothing recently
        if share and self._runtime.rng.random() < share:
            self._window.add(False)
            self._runtime.emit_event(EventKind.THROTTLE, self._options.name, reason=f"{share:.0%} rejected")
            raise Overloaded("adaptive throttling rejected the call, because the endpoint rejects too many")
        try:
            response = await self._inner(request, deadline)
        except BaseException as error:
            self._record_result(error, deadline)
            raise
        if isinstance(response, MonitoredStream):
            response.add_end_callback(lambda error: self._record_result(error, deadline))
        else:
            self._window.add(True)
        return response

    def _record_result(self, error: BaseException | None, deadline: Deadline) -> None:
        is_rejection = is_overload(error, deadline)
        if is_rejection or classify_outcome(error, deadline) is not CallOutcome.IGNORED:
            self._window.add(not is_rejection)
