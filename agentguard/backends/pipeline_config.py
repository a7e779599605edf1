"""The pool's pipeline as data: strategies over the choice of a replica, and strategies at each replica.

::

    pipeline: {retry: {attempts: 2}, hedge: off}                  # the usual order, with two changes
    pipeline: [timeout, retry, {breaker: {minimum: 5}}, progress]  # just these, in this order
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentguard.backends._option_parsing import is_disabled, parse_options
from agentguard.errors import ConfigError
from agentguard.resilience import (
    AttemptTimeout,
    Breaker,
    Concurrency,
    Hedge,
    Pipeline,
    ResilienceStrategy,
    Retry,
    Shed,
    StreamTimeout,
    Throttle,
    Timeout,
    standard,
)
from agentguard.resilience.options import StrategyOptions

OVER: tuple[type[StrategyOptions], ...] = (Timeout, Shed, Retry, Hedge)
"""Stand over the choice of a replica, once a pool: a retry and a hedge choose anew."""
AT: tuple[type[StrategyOptions], ...] = (Throttle, Breaker, AttemptTimeout, StreamTimeout)
"""Stand at each replica, with a state of its own."""

KINDS = {kind.name: kind for kind in (*OVER, *AT)}
_HIDDEN = ("target",)

ATTEMPT_S = 300.0
"""A whole answer of a model takes minutes; what answers in a stream is watched by `Progress` before that."""


SHED = Shed(queue=1000, wait_s=10.0, concurrency=Concurrency(start=256, most=10_000))
"""Model servers batch hundreds of requests that take a minute each: a limit that began at twenty, as for
short calls, would refuse work that could be done, long before the first answers let it grow."""


def usual() -> tuple[ResilienceStrategy, ...]:
    """The usual pipeline of a pool: `agentguard.resilience.standard`, with the measures of models."""
    return tuple(SHED if isinstance(one, Shed) else one for one in standard(attempt_s=ATTEMPT_S))


def read(given: object, where: str = "pipeline") -> tuple[ResilienceStrategy, ...]:
    """A pipeline from a configuration.

    Args:
        given: None for the usual one; a mapping changes options of the usual one, or switches strategies off;
            a list is the whole order, each item a name or a mapping of one name to its options.
        where: its path in the configuration, for messages.

    Raises:
        ConfigError: an unknown strategy or option, a wrong value, or an order that can't be meant.
    """
    if given is None:
        order: tuple[ResilienceStrategy, ...] = usual()
    elif isinstance(given, Mapping):
        order = _changed(given, where)
    elif isinstance(given, list | tuple):
        order = tuple(_item(item, f"{where}[{n}]") for n, item in enumerate(given))
    else:
        raise ConfigError(f"{where} must be a list of strategies, or a mapping of changes to the usual ones")
    check(order, where)
    return order


def check(order: tuple[ResilienceStrategy, ...], where: str = "pipeline") -> None:
    """Refuse an order that can't be meant. Raises ConfigError."""
    try:
        Pipeline(order)
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None
    names = [strategy.name for strategy in order]
    at = {kind.name for kind in AT}
    first = next((n for n, name in enumerate(names) if name in at), len(names))
    late = [name for name in names[first:] if name not in at]
    if late:
        raise ConfigError(
            f"{where}: {', '.join(late)} must stand before {names[first]}, which stands at each replica"
        )


def over(order: Iterable[ResilienceStrategy]) -> tuple[ResilienceStrategy, ...]:
    """The part over the choice of a replica."""
    at = {kind.name for kind in AT}
    return tuple(strategy for strategy in order if strategy.name not in at)


def at_replica(order: Iterable[ResilienceStrategy]) -> tuple[ResilienceStrategy, ...]:
    """The part at each replica."""
    at = {kind.name for kind in AT}
    return tuple(strategy for strategy in order if strategy.name in at)


def _changed(given: Mapping[object, object], where: str) -> tuple[ResilienceStrategy, ...]:
    for name in given:
        _kind(name, where)
    kept: list[ResilienceStrategy] = []
    for strategy in usual():
        change = given.get(strategy.name)
        if not is_disabled(change):
            kept.append(parse_options(strategy, change, f"{where}.{strategy.name}", hidden=_HIDDEN))
    return tuple(kept)


def _item(item: object, where: str) -> ResilienceStrategy:
    if isinstance(item, Mapping):
        if len(item) != 1:
            raise ConfigError(f"{where} must be a name, or one name with its options")
        ((name, options),) = item.items()
    else:
        name, options = item, None
    kind = _kind(name, where)
    usual_one = next(strategy for strategy in usual() if strategy.name == kind.name)
    return parse_options(usual_one, options, f"{where}.{name}", hidden=_HIDDEN)


def _kind(name: object, where: str) -> type[StrategyOptions]:
    kind = KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise ConfigError(f"{where}: no strategy of that name; there are: {', '.join(KINDS)}")
    return kind
