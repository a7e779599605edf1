"""What every backend policy must keep to; a check takes what makes the policy: its class, or a factory.

::

    for check in policies.CHECKS:
        check(MyPolicy)
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentguard.backends.load_balancing.base import LoadBalancingOptions, LoadBalancingPolicy
from agentguard.errors import ConfigError

Make = Callable[..., LoadBalancingOptions]

ROUNDS = 3000
"""Choices from which shares are judged; their errors are below a twentieth then."""


@dataclass(slots=True)
class Stub:
    """A replica as policies see it."""

    name: str
    weight: float = 1.0
    inflight: int = 0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Ask:
    """A request as policies see it."""

    session: str = ""
    prefix: bytes = b""


def requests(count: int) -> list[Ask]:
    """Requests of as many runs, with as many prompts."""
    return [Ask(session=f"run {n}", prefix=b"prompt %d" % n) for n in range(count)]


def replicas(*weights: float) -> list[Stub]:
    """Idle replicas of such weights, in order."""
    return [Stub(name=f"replica-{n}", weight=weight) for n, weight in enumerate(weights)]


def it_describes_itself(make: Make) -> None:
    """A policy has its name at the beginning of its description, and equal options are equal."""
    policy = make()
    assert policy.describe().split()[0] == policy.name
    assert policy == make()


def it_refuses_unknown_options(make: Make) -> None:
    """An option that there is not is an error, and not passed over."""
    try:
        make(no_such_option=1)
    except (TypeError, ConfigError):
        return
    raise AssertionError("an unknown option was taken")


def it_chooses_only_what_is_offered(make: Make) -> None:
    """Whatever the loads, latencies and requests: one of the offered, the very object."""
    rng = random.Random(7)  # noqa: S311
    chooser, everything = make().build(rng), replicas(1, 2, 0.5, 10, 1)
    for ask in [*requests(200), Ask()]:
        for one in everything:
            one.inflight, one.latency_s = rng.randrange(50), rng.choice((0.0, rng.random()))
        offered = rng.sample(everything, rng.randint(1, len(everything)))
        chosen = chooser.choose(ask, offered)
        assert any(chosen is one for one in offered), f"{chosen.name} was chosen and not offered"


def it_takes_the_only_one(make: Make) -> None:
    """One that is offered alone is chosen, however loaded."""
    chooser, only = make().build(random.Random(1)), Stub(name="only", weight=0.001, inflight=10_000)  # noqa: S311
    assert all(chooser.choose(ask, [only]) is only for ask in [*requests(20), Ask()])


def it_is_deterministic(make: Make) -> None:
    """The same dice, requests and loads give the same choices."""
    assert _course(make().build(random.Random(3))) == _course(make().build(random.Random(3)))  # noqa: S311


def it_changes_nothing(make: Make) -> None:
    """What is offered stays as it is, order and all."""
    chooser, offered = make().build(random.Random(5)), replicas(1, 2, 3)  # noqa: S311
    before = [(one.name, one.weight, one.inflight) for one in offered]
    for ask in requests(50):
        chooser.choose(ask, offered)
    assert [(one.name, one.weight, one.inflight) for one in offered] == before


def it_forgets_who_has_gone(make: Make) -> None:
    """Replicas that come and go leave nothing behind that would grow without bound, nor stop choices."""
    chooser = make().build(random.Random(9))  # noqa: S311
    for n in range(2000):
        offered = [Stub(name=f"short-lived-{n}"), Stub(name="lasting")]
        assert chooser.choose(Ask(session="s", prefix=b"p"), offered) in offered
    assert _size(chooser) < 1000, "it keeps a record of every replica that there ever was"


def it_is_even(make: Make) -> None:
    """Many requests of many runs spread over equal replicas, each within a quarter of its share.

    For policies that spread; not for one that prefers by order.
    """
    shares = _shares(make, (1, 1, 1, 1), busy=True)
    assert all(0.75 <= share * 4 <= 1.25 for share in shares), f"shares of {shares}"


def it_heeds_weights(make: Make) -> None:
    """A replica of three times the weight gets about three times as much. For policies that spread."""
    light, heavy = _shares(make, (1, 3), busy=True)
    assert 2.2 <= heavy / light <= 3.8, f"{heavy / light:.2f} times, where the weight is 3 times"


def it_keeps_to_one(make: Make, *, key: str) -> None:
    """Requests with one key go to one replica, in every process. For policies that are affine.

    Args:
        make: makes the policy.
        key: what it goes by: ``session`` or ``prefix``.
    """
    offered = replicas(1, 1, 1, 1)
    for n in range(50):
        ask = Ask(session=f"run {n}") if key == "session" else Ask(prefix=b"prompt %d" % n)
        chosen = {make().build(random.Random(seed)).choose(ask, offered).name for seed in range(5)}  # noqa: S311
        assert len(chosen) == 1


def it_moves_little(make: Make) -> None:
    """When a replica comes or goes, only keys move that it gets or had. For policies that are affine."""
    chooser = make().build(random.Random(1))  # noqa: S311
    all_of_them = replicas(1, 1, 1, 1, 1)
    gone = all_of_them[2]
    rest = [one for one in all_of_them if one is not gone]
    moved = 0
    for ask in requests(1000):
        before, after = chooser.choose(ask, all_of_them), chooser.choose(ask, rest)
        assert before is after or before is gone, f"{before.name} lost a key, and had not gone"
        moved += before is gone
    assert moved < 300, f"{moved} of 1000 keys were one replica's of five"


CHECKS: tuple[Callable[[Make], None], ...] = (
    it_describes_itself,
    it_refuses_unknown_options,
    it_chooses_only_what_is_offered,
    it_takes_the_only_one,
    it_is_deterministic,
    it_changes_nothing,
    it_forgets_who_has_gone,
)
"""What holds for every policy."""

SPREADS: tuple[Callable[[Make], None], ...] = (it_is_even,)
"""What holds for policies that mean to spread the load, too."""


def _course(chooser: LoadBalancingPolicy) -> list[str]:
    """Choices over some time, with requests that come and end."""
    offered, names = replicas(1, 2, 1), []
    for n, ask in enumerate(requests(200)):
        chosen = chooser.choose(ask, offered)
        chosen.inflight += 1
        names.append(chosen.name)
        if n % 3 == 0:
            offered[n % len(offered)].inflight = 0
    return names


def _shares(make: Make, weights: Sequence[float], *, busy: bool) -> list[float]:
    """The share of requests that each replica gets, where each works off what it has by its weight."""
    rng = random.Random(11)  # noqa: S311
    chooser, offered = make().build(rng), replicas(*weights)
    counts: Counter[str] = Counter()
    running: list[Stub] = []
    for ask in requests(ROUNDS):
        chosen = chooser.choose(ask, offered)
        counts[chosen.name] += 1
        chosen.inflight += 1
        running.append(chosen)
        if busy and len(running) > 40:
            ended = running.pop(rng.randrange(len(running)))
            ended.inflight -= 1
    return [counts[one.name] / ROUNDS for one in offered]


def _size(chooser: object) -> int:
    """How many things a chooser keeps in its collections."""
    names = [name for kind in type(chooser).__mro__ for name in getattr(kind, "__slots__", ())]
    values = [*getattr(chooser, "__dict__", {}).values(), *(getattr(chooser, name, None) for name in names)]
    return sum(len(value) for value in values if isinstance(value, dict | list | set))
