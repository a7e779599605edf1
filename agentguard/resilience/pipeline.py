"""Pipeline of strategies around a backend; its order is a tuple that is checked before the first call.

::

    pipeline = Pipeline((Timeout(total_s=60), Retry(), AttemptTimeout(seconds=20), StreamTimeout()))
    send = pipeline.bind(backend)                     # backend: send(request, deadline) -> response
    response = await send(BasicRequest(payload=...), Deadline.never())
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from agentguard.errors import ConfigError, DeadlineExceeded, Stage
from agentguard.options import SECONDS, Options, option
from agentguard.resilience.adaptive_throttling import AdaptiveThrottling
from agentguard.resilience.base import BoundStrategy, ResilienceStrategy, Response, Runtime, Send
from agentguard.resilience.circuit_breaker import CircuitBreakerOptions
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard.resilience.deadline import CLOCK_TOLERANCE_S, Deadline, TaskTimeout
from agentguard.resilience.events import EventKind, Observer, Observers
from agentguard.resilience.hedge import Hedge
from agentguard.resilience.load_shedding import LoadShedding
from agentguard.resilience.retry import Retry
from agentguard.resilience.stream_timeout import StreamTimeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout(Options):
    """Deadline of the whole call: attempts, waits and streams. An earlier deadline of the caller applies."""

    name: ClassVar[str] = "timeout"

    total_s: float = option(600.0, bounds=SECONDS)

    def build(self, inner: Send, runtime: Runtime) -> TimeoutEnforcer:
        """Bind the strategy to the ``send`` of the next one."""
        return TimeoutEnforcer(self.name, self.total_s, inner, runtime, propagates=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTimeout(Options):
    """Time limit of one attempt up to its head or first chunk; the stream after it has the whole deadline."""

    name: ClassVar[str] = "attempt_timeout"

    seconds: float = option(60.0, bounds=SECONDS)

    def build(self, inner: Send, runtime: Runtime) -> TimeoutEnforcer:
        """Bind the strategy to the ``send`` of the next one."""
        return TimeoutEnforcer(self.name, self.seconds, inner, runtime, propagates=False)


class TimeoutEnforcer:
    """Cancels a call when its time is up."""

    def __init__(self, name: str, seconds: float, inner: Send, runtime: Runtime, *, propagates: bool) -> None:
        self._name, self._seconds, self._inner, self._runtime = name, seconds, inner, runtime
        self._propagates = propagates

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send the request on. Raises DeadlineExceeded when the time is up."""
        # Same as `Deadline.limit` without its objects, because every attempt passes here twice.
        now = deadline.clock.now()
        expires_at = now + self._seconds
        if deadline.at <= expires_at:
            expires_at = deadline.at
        elif self._propagates:
            deadline = Deadline(expires_at, deadline.clock)
        if expires_at - now <= CLOCK_TOLERANCE_S:
            raise self._build_error("no time was left for", "unsent")
        timer = TaskTimeout(expires_at - now)
        try:
            return await self._inner(request, deadline)
        except asyncio.CancelledError:
            if timer.stop():
                raise self._build_error("too much time went into", "sent") from None
            raise
        except DeadlineExceeded:
            if (
                self._runtime.clock.now() >= expires_at - CLOCK_TOLERANCE_S
            ):  # otherwise an inner timer expired
                self._emit_timeout()
            raise
        finally:
            timer.stop()

    def _build_error(self, reason: str, stage: Stage) -> DeadlineExceeded:
        """Report the timeout, and build its error."""
        self._emit_timeout()
        return DeadlineExceeded(f"{reason} {'the call' if self._propagates else 'the attempt'}", stage=stage)

    def _emit_timeout(self) -> None:
        self._runtime.emit_event(EventKind.TIMEOUT, self._name, seconds=self._seconds)


class Pipeline:
    """Strategies around a backend, outermost first.

    Args:
        strategies: options of the strategies, in order.
        clock: source of time for all strategies.
        rng: random generator for all strategies; seed it to reproduce a run.
        observers: called with every event; their exceptions are logged.

    Raises:
        ConfigError: the order is invalid; see `docs/resilience.md`.
    """

    def __init__(
        self,
        strategies: Iterable[ResilienceStrategy],
        *,
        clock: Clock = MONOTONIC,
        rng: random.Random | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self.strategies = tuple(strategies)
        self.runtime = Runtime(clock=clock, rng=rng or random.Random(), observers=Observers(observers))  # noqa: S311
        _check_order([strategy.name for strategy in self.strategies])

    @classmethod
    def from_runtime(cls, strategies: Iterable[ResilienceStrategy], runtime: Runtime) -> Pipeline:
        """Create a pipeline with an existing runtime. Raises ConfigError like the constructor."""
        pipeline = cls(strategies)
        pipeline.runtime = runtime
        return pipeline

    def describe(self) -> list[str]:
        """Return one line per strategy with all its options, outermost first."""
        return [f"{n}. {strategy.describe()}" for n, strategy in enumerate(self.strategies, 1)]

    def bind(self, backend: Send) -> BoundPipeline:
        """Bind the strategies to a backend; each binding has its own state."""
        return BoundPipeline(self, backend)


class BoundPipeline:
    """Pipeline with its state, callable as ``send(request, deadline)``.

    Attributes:
        bound_strategies: the bound strategies by name, for access to their state.
    """

    def __init__(self, pipeline: Pipeline, backend: Send) -> None:
        self.bound_strategies: dict[str, BoundStrategy] = {}
        self._clock, send = pipeline.runtime.clock, backend
        for strategy in reversed(pipeline.strategies):
            layer = strategy.build(send, pipeline.runtime)
            self.bound_strategies[strategy.name] = layer
            send = layer.send
        self.send: Send = send
        """Method of the outermost strategy: like calling the object, but the deadline is required."""

    async def __call__(self, request: Any, deadline: Deadline | None = None) -> Response:
        """Send a request through all strategies. Raises ResilienceError."""
        return await self.send(request, deadline or Deadline.never(clock=self._clock))


_INNERMOST = (StreamTimeout.name,)


def _check_order(names: list[str]) -> None:
    """Check the order of the strategies. Raises ConfigError if it is invalid."""
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise ConfigError(f"Pipeline.strategies has {', '.join(duplicates)} twice: attempts would multiply")
    if AttemptTimeout.name in names:
        later_names = [n for n in names[names.index(AttemptTimeout.name) + 1 :] if n not in _INNERMOST]
        outer_names = {
            CircuitBreakerOptions.name,
            Hedge.name,
            Retry.name,
            LoadShedding.name,
            AdaptiveThrottling.name,
            Timeout.name,
        }
        if outer_names.intersection(later_names):
            raise ConfigError(
                f"Pipeline.strategies: {', '.join(later_names)} must precede {AttemptTimeout.name}, "
                "or it would not see that an attempt ran out of time"
            )
    if StreamTimeout.name in names and names.index(StreamTimeout.name) != len(names) - 1:
        raise ConfigError(f"Pipeline.strategies: {StreamTimeout.name} must be the last, next to the backend")


def build_standard_strategies(
    total_timeout_s: float = 600.0, attempt_timeout_s: float = 60.0
) -> tuple[ResilienceStrategy, ...]:
    """Return the standard order with default options."""
    return (
        Timeout(total_s=total_timeout_s),
        LoadShedding(),
        Retry(),
        Hedge(),
        AdaptiveThrottling(),
        CircuitBreakerOptions(),
        AttemptTimeout(seconds=attempt_timeout_s),
        StreamTimeout(),
    )
