"""The order of strategies is data: a tuple that is printed, compared and checked before anything runs.

::

    pipeline = Pipeline((Timeout(total_s=60), Retry(), Breaker(), AttemptTimeout(seconds=20), Progress()))
    send = pipeline.bind(backend)                     # backend: send(request, deadline) -> response
    answer = await send(Call(payload=...), Deadline.never())
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from agentguard.errors import ConfigError, DeadlineExceeded, Stage
from agentguard.resilience.adaptive_throttling import AdaptiveThrottling
from agentguard.resilience.base import BoundStrategy, ResilienceStrategy, Response, Runtime, Send
from agentguard.resilience.circuit_breaker import CircuitBreakerOptions
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard.resilience.deadline import CLOCK_TOLERANCE_S, Deadline, TaskTimeout
from agentguard.resilience.events import EventKind, Observer, Observers
from agentguard.resilience.hedge import Hedge
from agentguard.resilience.load_shedding import LoadShedding
from agentguard.resilience.options import SECONDS, StrategyOptions, check_ranges
from agentguard.resilience.retry import Retry
from agentguard.resilience.stream_timeout import StreamTimeout


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeout(StrategyOptions):
    """A deadline over everything inside: attempts, waits and streams; the caller's, if that is earlier."""

    name: ClassVar[str] = "timeout"

    total_s: float = 600.0

    def __post_init__(self) -> None:
        check_ranges(self, total_s=SECONDS)

    def build(self, inner: Send, runtime: Runtime) -> TimeoutEnforcer:
        """Make the working part."""
        return TimeoutEnforcer(self.name, self.total_s, inner, runtime, propagates=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTimeout(StrategyOptions):
    """A limit on one attempt up to its head or first chunk; the stream after it has the whole deadline."""

    name: ClassVar[str] = "attempt_timeout"

    seconds: float = 60.0

    def __post_init__(self) -> None:
        check_ranges(self, seconds=SECONDS)

    def build(self, inner: Send, runtime: Runtime) -> TimeoutEnforcer:
        """Make the working part."""
        return TimeoutEnforcer(self.name, self.seconds, inner, runtime, propagates=False)


class TimeoutEnforcer:
    """Ends a call when its time is up."""

    def __init__(self, name: str, seconds: float, inner: Send, runtime: Runtime, *, propagates: bool) -> None:
        self._name, self._seconds, self._inner, self._runtime = name, seconds, inner, runtime
        self._propagates = propagates

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send on. Raises DeadlineExceeded when the time is up."""
        # What `Deadline.limit` does, without its objects: every attempt passes here twice.
        now = deadline.clock.now()
        at = now + self._seconds
        if deadline.at <= at:
            at = deadline.at
        elif self._propagates:
            deadline = Deadline(at, deadline.clock)
        if at - now <= CLOCK_TOLERANCE_S:
            raise self._build_error("no time was left for", "unsent")
        alarm = TaskTimeout(at - now)
        try:
            return await self._inner(request, deadline)
        except asyncio.CancelledError:
            if alarm.stop():
                raise self._build_error("too much time went into", "sent") from None
            raise
        except DeadlineExceeded:
            if self._runtime.clock.now() >= at - CLOCK_TOLERANCE_S:  # else it is that of a timer further in
                self._emit_timeout()
            raise
        finally:
            alarm.stop()

    def _build_error(self, reason: str, stage: Stage) -> DeadlineExceeded:
        """The time is up."""
        self._emit_timeout()
        return DeadlineExceeded(f"{reason} {'the call' if self._propagates else 'the attempt'}", stage=stage)

    def _emit_timeout(self) -> None:
        self._runtime.emit_event(EventKind.TIMEOUT, self._name, seconds=self._seconds)


class Pipeline:
    """Strategies around a backend, the first one outermost.

    Args:
        strategies: their options, in order.
        clock: source of the time, for all of them.
        rng: source of chance, for all of them; seed it to repeat a run.
        observers: are told every event; what they raise is logged and goes no further.

    Raises:
        ConfigError: an order that can't be meant; see `docs/resilience.md`.
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
        """A pipeline with the time, chance and observers of another one. Raises ConfigError as else."""
        pipeline = cls(strategies)
        pipeline.runtime = runtime
        return pipeline

    def describe(self) -> list[str]:
        """One line a strategy, outermost first, with every option."""
        return [f"{n}. {strategy.describe()}" for n, strategy in enumerate(self.strategies, 1)]

    def bind(self, backend: Send) -> BoundPipeline:
        """Put the strategies around a backend; each binding has a state of its own."""
        return BoundPipeline(self, backend)


class BoundPipeline:
    """A pipeline at work: itself a ``send(request, deadline)``.

    Attributes:
        bound_strategies: the working strategies by name, for their state.
    """

    def __init__(self, pipeline: Pipeline, backend: Send) -> None:
        self.bound_strategies: dict[str, BoundStrategy] = {}
        self._clock, send = pipeline.runtime.clock, backend
        for strategy in reversed(pipeline.strategies):
            layer = strategy.build(send, pipeline.runtime)
            self.bound_strategies[strategy.name] = layer
            send = layer.send
        self.send: Send = send
        """The outermost layer's own: the same as calling this, with a deadline that must be given."""

    async def __call__(self, request: Any, deadline: Deadline | None = None) -> Response:
        """Send a request through all strategies. Raises ResilienceError of the kind that fits."""
        return await self.send(request, deadline or Deadline.never(clock=self._clock))


_INNERMOST = (StreamTimeout.name,)


def _check_order(names: list[str]) -> None:
    """Refuse what can't be meant."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ConfigError(f"Pipeline.strategies has {', '.join(twice)} twice: attempts would multiply")
    if AttemptTimeout.name in names:
        after = [n for n in names[names.index(AttemptTimeout.name) + 1 :] if n not in _INNERMOST]
        known = {
            CircuitBreakerOptions.name,
            Hedge.name,
            Retry.name,
            LoadShedding.name,
            AdaptiveThrottling.name,
            Timeout.name,
        }
        if known.intersection(after):
            raise ConfigError(
                f"Pipeline.strategies: {', '.join(after)} must stand before {AttemptTimeout.name}, "
                "or it would not see that an attempt ran out of time"
            )
    if StreamTimeout.name in names and names.index(StreamTimeout.name) != len(names) - 1:
        raise ConfigError(f"Pipeline.strategies: {StreamTimeout.name} must be the last, next to the backend")


def build_standard_strategies(
    total_timeout_s: float = 600.0, attempt_timeout_s: float = 60.0
) -> tuple[ResilienceStrategy, ...]:
    """The usual order, with the usual options."""
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
