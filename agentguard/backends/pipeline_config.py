"""Pipeline configuration of a pool: strategies around the load balancer, and strategies at each replica.

::

    pipeline: {retry: {max_attempts: 2}, hedge: off}              # the default, with two changes
    pipeline: [timeout, retry, {circuit_breaker: {minimum_throughput: 5}}, stream_timeout]  # the whole order
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentguard.errors import ConfigError
from agentguard.options import Options, is_disabled, parse_options
from agentguard.resilience import (
    AdaptiveThrottlingOptions,
    AttemptTimeoutOptions,
    CircuitBreakerOptions,
    ConcurrencyLimitOptions,
    HedgeOptions,
    LoadSheddingOptions,
    Pipeline,
    RetryOptions,
    StrategyOptions,
    StreamTimeoutOptions,
    TimeoutOptions,
    build_standard_strategies,
)

POOL_STRATEGIES: tuple[type[Options], ...] = (TimeoutOptions, LoadSheddingOptions, RetryOptions, HedgeOptions)
"""Strategies around the load balancer, once per pool: each retry and each hedge chooses a replica again."""
REPLICA_STRATEGIES: tuple[type[Options], ...] = (
    AdaptiveThrottlingOptions,
    CircuitBreakerOptions,
    AttemptTimeoutOptions,
    StreamTimeoutOptions,
)
"""Strategies at each replica, with separate state per replica."""

STRATEGY_TYPES = {kind.name: kind for kind in (*POOL_STRATEGIES, *REPLICA_STRATEGIES)}

ATTEMPT_TIMEOUT_S = 300.0
"""Time limit of an attempt, since a complete answer takes minutes; streams have the stream timeout."""


LOAD_SHEDDING = LoadSheddingOptions(
    max_queue=1000,
    queue_timeout_s=10.0,
    concurrency=ConcurrencyLimitOptions(initial_limit=256, max_limit=10_000),
)
"""Default limits of load shedding.

Model servers batch hundreds of requests that take a minute each. An initial limit of twenty, as for short
calls, would reject requests that the server can process, before the first answers increase the limit.
"""


def build_default_strategies() -> tuple[StrategyOptions, ...]:
    """Return the default pipeline: `build_standard_strategies` with timeouts and limits for models."""
    return tuple(
        LOAD_SHEDDING if isinstance(one, LoadSheddingOptions) else one
        for one in build_standard_strategies(attempt_timeout_s=ATTEMPT_TIMEOUT_S)
    )


def parse_pipeline(document: object, path: str = "pipeline") -> tuple[StrategyOptions, ...]:
    """Parse a pipeline from the configuration.

    Args:
        document: None for the default. A mapping changes options of the default, or disables strategies. A
            list is the whole order; each item is a name, or a mapping of one name to its options.
        path: path in the configuration, for messages.

    Raises:
        ConfigError: an unknown strategy or option, an invalid value, or an invalid order.
    """
    if document is None:
        order: tuple[StrategyOptions, ...] = build_default_strategies()
    elif isinstance(document, Mapping):
        order = _apply_changes(document, path)
    elif isinstance(document, list | tuple):
        order = tuple(_parse_item(item, f"{path}[{n}]") for n, item in enumerate(document))
    else:
        raise ConfigError(f"{path} must be a list of strategies, or a mapping of changes to the default ones")
    check_pipeline(order, path)
    return order


def check_pipeline(strategies: tuple[StrategyOptions, ...], path: str = "pipeline") -> None:
    """Check the order of the strategies. Raises ConfigError if it is invalid."""
    try:
        Pipeline(strategies)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from None
    names = [strategy.name for strategy in strategies]
    replica_strategies = {kind.name for kind in REPLICA_STRATEGIES}
    first = next((n for n, name in enumerate(names) if name in replica_strategies), len(names))
    misplaced_names = [name for name in names[first:] if name not in replica_strategies]
    if misplaced_names:
        raise ConfigError(
            f"{path}: {', '.join(misplaced_names)} must precede {names[first]}, which applies at each replica"
        )


def select_pool_strategies(strategies: Iterable[StrategyOptions]) -> tuple[StrategyOptions, ...]:
    """Return the strategies around the load balancer."""
    replica_strategies = {kind.name for kind in REPLICA_STRATEGIES}
    return tuple(strategy for strategy in strategies if strategy.name not in replica_strategies)


def select_replica_strategies(strategies: Iterable[StrategyOptions]) -> tuple[StrategyOptions, ...]:
    """Return the strategies at each replica."""
    replica_strategies = {kind.name for kind in REPLICA_STRATEGIES}
    return tuple(strategy for strategy in strategies if strategy.name in replica_strategies)


def _apply_changes(changes: Mapping[object, object], path: str) -> tuple[StrategyOptions, ...]:
    for name in changes:
        _find_strategy_type(name, path)
    strategies: list[StrategyOptions] = []
    for strategy in build_default_strategies():
        change = changes.get(strategy.name)
        if not is_disabled(change):
            strategies.append(parse_options(strategy, change, f"{path}.{strategy.name}"))
    return tuple(strategies)


def _parse_item(item: object, path: str) -> StrategyOptions:
    if isinstance(item, Mapping):
        if len(item) != 1:
            raise ConfigError(f"{path} must be a name, or one name with its options")
        ((name, options),) = item.items()
    else:
        name, options = item, None
    kind = _find_strategy_type(name, path)
    default = next(strategy for strategy in build_default_strategies() if strategy.name == kind.name)
    return parse_options(default, options, f"{path}.{name}")


def _find_strategy_type(name: object, path: str) -> type[Options]:
    kind = STRATEGY_TYPES.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ConfigError(f"{path}: no strategy of that name; there are: {', '.join(STRATEGY_TYPES)}")
    return kind
