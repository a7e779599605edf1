"""Pipeline of strategies around a backend; its order is a tuple that is checked before the first call.

::

    pipeline = Pipeline((Timeout(total_s=60), Retry(), AttemptTimeout(seconds=20), StreamTimeout()))
    send = pipeline.bind(backend)                     # backend: send(request, deadline) -> response
    response = await send(BasicRequest(payload=...), Deadline.never())
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from agentguard.errors import ConfigError
from agentguard.resilience.adaptive_throttling import AdaptiveThrottling
from agentguard.resilience.base import BoundStrategy, ResilienceStrategy, Response, Runtime, Send
from agentguard.resilience.circuit_breaker import CircuitBreakerOptions
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard.resilience.deadline import AttemptTimeout, Deadline, Timeout
from agentguard.resilience.events import Observer, Observers
from agentguard.resilience.hedge import Hedge
from agentguard.resilience.load_shedding import LoadShedding
from agentguard.resilience.retry import Retry
from agentguard.resilience.stream_timeout import StreamTimeout


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
