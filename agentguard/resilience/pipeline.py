"""Pipeline of strategies around a backend; its order is a tuple that is checked before the first call.

::

    pipeline = Pipeline((TimeoutOptions(total_s=60), RetryOptions(), StreamTimeoutOptions()))
    send = pipeline.bind(backend)                     # backend: send(request, deadline) -> response
    response = await send(BasicRequest(payload=...), Deadline.never())
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable
from typing import Any

from agentguard.errors import ConfigError
from agentguard.resilience.base import ResilienceStrategy, Response, Runtime, Send, StrategyOptions
from agentguard.resilience.circuit_breaker import AdaptiveThrottlingOptions, CircuitBreakerOptions
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard.resilience.deadline import AttemptTimeoutOptions, Deadline, TimeoutOptions
from agentguard.resilience.events import Observer, Observers
from agentguard.resilience.hedge import HedgeOptions
from agentguard.resilience.load_shedding import LoadSheddingOptions
from agentguard.resilience.retry import RetryOptions
from agentguard.resilience.stream_timeout import StreamTimeoutOptions


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
        strategies: Iterable[StrategyOptions],
        *,
        clock: Clock = MONOTONIC,
        rng: random.Random | None = None,
        observers: Iterable[Observer] = (),
    ) -> None:
        self.strategies = tuple(strategies)
        self.runtime = Runtime(clock=clock, rng=rng or random.Random(), observers=Observers(observers))  # noqa: S311
        _check_order([strategy.name for strategy in self.strategies])

    @classmethod
    def from_runtime(cls, strategies: Iterable[StrategyOptions], runtime: Runtime) -> Pipeline:
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
        self.bound_strategies: dict[str, ResilienceStrategy] = {}
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


_INNERMOST = (StreamTimeoutOptions.name,)


def _check_order(names: list[str]) -> None:
    """Check the order of the strategies. Raises ConfigError if it is invalid."""
    duplicates = [name for name, count in Counter(names).items() if count > 1]
    if duplicates:
        raise ConfigError(f"Pipeline.strategies has {', '.join(duplicates)} twice: attempts would multiply")
    if AttemptTimeoutOptions.name in names:
        later_names = [n for n in names[names.index(AttemptTimeoutOptions.name) + 1 :] if n not in _INNERMOST]
        outer_names = {
            CircuitBreakerOptions.name,
            HedgeOptions.name,
            RetryOptions.name,
            LoadSheddingOptions.name,
            AdaptiveThrottlingOptions.name,
            TimeoutOptions.name,
        }
        if outer_names.intersection(later_names):
            raise ConfigError(
                f"Pipeline.strategies: {', '.join(later_names)} must precede {AttemptTimeoutOptions.name}, "
                "or it would not see that an attempt ran out of time"
            )
    if StreamTimeoutOptions.name in names and names.index(StreamTimeoutOptions.name) != len(names) - 1:
        raise ConfigError(
            f"Pipeline.strategies: {StreamTimeoutOptions.name} must be the last, next to the backend"
        )


def build_standard_strategies(
    total_timeout_s: float = 600.0, attempt_timeout_s: float = 60.0
) -> tuple[StrategyOptions, ...]:
    """Return the standard order with default options."""
    return (
        TimeoutOptions(total_s=total_timeout_s),
        LoadSheddingOptions(),
        RetryOptions(),
        HedgeOptions(),
        AdaptiveThrottlingOptions(),
        CircuitBreakerOptions(),
        AttemptTimeoutOptions(seconds=attempt_timeout_s),
        StreamTimeoutOptions(),
    )
