"""A circuit breaker: leaves an endpoint alone for a while once too many of its calls fail.

After Nygard's *Release It!* and Polly v8: the share of failures in a sliding window opens it, but only
where there were enough calls to speak of a share; after a while exactly one call may probe, and decides.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Any, ClassVar

from agentguard.errors import CircuitOpen
from agentguard.resilience._sliding_window import Window
from agentguard.resilience.base import CallOutcome, Response, Runtime, Send, verdict
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.options import RATIO, SECONDS, StrategyOptions, check
from agentguard.resilience.stream_timeout import Stream


class CircuitState(StrEnum):
    """What a breaker does with calls: send all, none, or one."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


@dataclass(frozen=True, slots=True, kw_only=True)
class Breaker(StrategyOptions):
    """Options of the breaker.

    Attributes:
        failure_ratio: share of failures in the window from which it opens.
        minimum: calls there must be in the window before it may open.
        window_s: how far back it looks.
        open_s: how long it stays open before one call may probe.
        target: what it guards, for events.
    """

    name: ClassVar[str] = "breaker"

    failure_ratio: float = 0.1
    minimum: int = 20
    window_s: float = 30.0
    open_s: float = 5.0
    target: str = ""

    def __post_init__(self) -> None:
        check(self, failure_ratio=RATIO, minimum=(1, 100_000), window_s=SECONDS, open_s=SECONDS)

    def build(self, inner: Send, runtime: Runtime) -> CircuitBreaker:
        """Make the working part."""
        return CircuitBreaker(self, inner, runtime)


class Permit:
    """The leave to make one call; tells once what became of it. One of an earlier state counts no more."""

    __slots__ = ("_breaker", "generation", "probe")

    def __init__(self, breaker: CircuitBreaker, generation: int, probe: bool) -> None:
        self._breaker: CircuitBreaker | None = breaker
        self.generation, self.probe = generation, probe

    def end(self, outcome: CallOutcome) -> None:
        """Give it back with a `Verdict`; only the first time counts."""
        breaker, self._breaker = self._breaker, None
        if breaker is not None:
            breaker.ended(self, outcome)


class CircuitBreaker:
    """The state machine, and the layer around it. Every method but `send` is synchronous, hence atomic."""

    def __init__(self, options: Breaker, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime
        self._window = Window(options.window_s, runtime.clock)
        self._state, self._until, self._generation, self._probing = CircuitState.CLOSED, 0.0, 0, False

    @property
    def state(self) -> CircuitState:
        """The present state; an open breaker turns half open only when a call asks."""
        return self._state

    @property
    def ready(self) -> bool:
        """Whether `enter` would give leave now; asking changes nothing."""
        if self._state is CircuitState.CLOSED:
            return True
        if self._state is CircuitState.HALF_OPEN:
            return not self._probing
        return self.left <= 0

    @property
    def left(self) -> float:
        """Seconds until an open breaker lets one call probe; 0 or less if it would now."""
        return self._until - self._runtime.clock.now()

    def enter(self) -> Permit:
        """Ask for a call. Raises CircuitOpen, with the seconds until a probe, if there is none to be had."""
        if self._state is CircuitState.CLOSED:
            return Permit(self, self._generation, probe=False)
        left = self.left
        if self._state is CircuitState.OPEN and left <= 0:
            self._move(CircuitState.HALF_OPEN)
        if self._state is CircuitState.OPEN or self._probing:
            raise CircuitOpen("the endpoint failed too often just now", retry_after_s=max(0.0, left))
        self._probing = True
        return Permit(self, self._generation, probe=True)

    def ended(self, permit: Permit, outcome: CallOutcome) -> None:
        """Take a permit back; called by the permit."""
        if permit.generation != self._generation:
            return
        if permit.probe:
            self._probing = False
            if outcome is not CallOutcome.NOTHING:
                self._move(CircuitState.CLOSED if outcome is CallOutcome.GOOD else CircuitState.OPEN)
        elif outcome is not CallOutcome.NOTHING:
            self._count(outcome is CallOutcome.GOOD)

    def _count(self, good: bool) -> None:
        """A call of the closed state ended."""
        fine, total = self._window.add(good)
        if fine == total:
            return
        options, failed = self._options, total - fine
        if total >= options.minimum and failed >= options.failure_ratio * total:
            self._move(CircuitState.OPEN)

    def _move(self, state: CircuitState) -> None:
        self._state, self._probing = state, False
        self._generation += 1
        if state is CircuitState.OPEN:
            self._until = self._runtime.clock.now() + self._options.open_s
        elif state is CircuitState.CLOSED:
            self._window.clear()
        self._runtime.tell(
            EventKind.BREAKER, self._options.name, target=self._options.target, reason=state.value
        )

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send on, or raise CircuitOpen; a stream counts when it has ended."""
        if self._state is not CircuitState.CLOSED:
            return await self._probe(request, deadline)
        generation = self._generation  # what ends in a later one counts no more
        try:
            response = await self._inner(request, deadline)
        except BaseException as error:
            self._over(generation, error, deadline)
            raise
        if isinstance(response, Stream):
            response.on_end(lambda error: self._over(generation, error, deadline))
        elif generation == self._generation:
            self._count(True)
        return response

    def _over(self, generation: int, error: BaseException | None, deadline: Deadline) -> None:
        """A call of the closed state ended."""
        outcome = verdict(error, deadline)
        if generation == self._generation and outcome is not CallOutcome.NOTHING:
            self._count(outcome is CallOutcome.GOOD)

    async def _probe(self, request: Any, deadline: Deadline) -> Response:
        """Send the one call that may find out whether the endpoint is well again, or raise CircuitOpen."""
        permit = self.enter()
        try:
            response = await self._inner(request, deadline)
        except BaseException as error:
            permit.end(verdict(error, deadline))
            raise
        if permit.probe:  # it has answered; the others need not wait until its stream has ended
            permit.end(CallOutcome.GOOD)
            permit = Permit(self, self._generation, probe=False)
        if isinstance(response, Stream):
            response.on_end(lambda error: permit.end(verdict(error, deadline)))
        elif permit.generation == self._generation:  # what ending it with GOOD comes to
            self._count(True)
        return response
