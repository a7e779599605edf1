"""Contract of load balancing policies; each check takes a factory or the class of the policy.

::

    for check in load_balancing.CHECKS:
        check(MyPolicy)
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from agentguard.backends.load_balancing.base import LoadBalancingOptions, LoadBalancingPolicy
from agentguard.errors import ConfigError

LoadBalancingFactory = Callable[..., LoadBalancingOptions]

CHOICES_PER_CHECK = 3000
"""Number of choices for a measurement of shares; the error of a share is then below 5 %."""


@dataclass(slots=True)
class StubReplica:
    """Replica with the attributes that policies read."""

    name: str
    weight: float = 1.0
    inflight: int = 0
    latency_s: float = 0.0


@dataclass(frozen=True, slots=True)
class StubRequest:
    """Request with the attributes that policies read."""

    session_id: str = ""
    prefix_digest: bytes = b""


def build_requests(count: int) -> list[StubRequest]:
    """Return requests of ``count`` different runs and prompts."""
    return [StubRequest(session_id=f"run {n}", prefix_digest=b"prompt %d" % n) for n in range(count)]


def build_replicas(*weights: float) -> list[StubReplica]:
    """Return idle replicas with the given weights, in order."""
    return [StubReplica(name=f"replica-{n}", weight=weight) for n, weight in enumerate(weights)]


def check_description(factory: LoadBalancingFactory) -> None:
    """Check that the description begins with the policy's name, and that equal options compare equal."""
    policy = factory()
    assert policy.describe().split()[0] == policy.name
    assert isinstance(policy.needs_prefix_digest, bool)
    assert policy == factory()


def check_unknown_options_rejected(factory: LoadBalancingFactory) -> None:
    """Check that an unknown option is an error."""
    try:
        factory(no_such_option=1)
    except (TypeError, ConfigError):
        return
    raise AssertionError("the policy accepted an unknown option")


def check_chooses_candidates(factory: LoadBalancingFactory) -> None:
    """Check that the policy always returns one of the candidates."""
    rng = random.Random(7)  # noqa: S311
    chooser, replicas = factory().build(rng), build_replicas(1, 2, 0.5, 10, 1)
    for request in [*build_requests(200), StubRequest()]:
        for one in replicas:
            one.inflight, one.latency_s = rng.randrange(50), rng.choice((0.0, rng.random()))
        candidates = rng.sample(replicas, rng.randint(1, len(replicas)))
        chosen = chooser.choose(request, candidates)
        assert any(chosen is one for one in candidates), (
            f"the policy chose {chosen.name}, which is not a candidate"
        )


def check_single_candidate(factory: LoadBalancingFactory) -> None:
    """Check that the policy chooses a single candidate, however loaded it is."""
    chooser, only = factory().build(random.Random(1)), StubReplica(name="only", weight=0.001, inflight=10_000)  # noqa: S311
    assert all(chooser.choose(request, [only]) is only for request in [*build_requests(20), StubRequest()])


def check_deterministic(factory: LoadBalancingFactory) -> None:
    """Check that the same seed, requests and loads give the same choices."""
    assert _simulate_choices(factory().build(random.Random(3))) == _simulate_choices(  # noqa: S311
        factory().build(random.Random(3))  # noqa: S311
    )


def check_candidates_unchanged(factory: LoadBalancingFactory) -> None:
    """Check that the policy does not change the candidates or their order."""
    chooser, candidates = factory().build(random.Random(5)), build_replicas(1, 2, 3)  # noqa: S311
    before = [(one.name, one.weight, one.inflight) for one in candidates]
    for request in build_requests(50):
        chooser.choose(request, candidates)
    assert [(one.name, one.weight, one.inflight) for one in candidates] == before


def check_state_bounded(factory: LoadBalancingFactory) -> None:
    """Check that the state of the policy stays bounded while replicas come and go."""
    chooser = factory().build(random.Random(9))  # noqa: S311
    for n in range(2000):
        candidates = [StubReplica(name=f"short-lived-{n}"), StubReplica(name="lasting")]
        assert chooser.choose(StubRequest(session_id="s", prefix_digest=b"p"), candidates) in candidates
    assert _count_stored_items(chooser) < 1000, "the policy stores data of removed replicas"


def check_even_distribution(factory: LoadBalancingFactory) -> None:
    """Check that equal replicas get equal shares, within a quarter. For policies that spread the load."""
    shares = _measure_shares(factory, (1, 1, 1, 1), busy=True)
    assert all(0.75 <= share * 4 <= 1.25 for share in shares), f"shares of {shares}"


def check_weights_respected(factory: LoadBalancingFactory) -> None:
    """Check that triple weight gets about triple the requests. For policies that spread the load."""
    light, heavy = _measure_shares(factory, (1, 3), busy=True)
    assert 2.2 <= heavy / light <= 3.8, f"triple weight got {heavy / light:.2f} times the requests"


def check_affinity(factory: LoadBalancingFactory, *, key: str) -> None:
    """Check that requests with the same key go to the same replica, in every process. For affine policies.

    Args:
        factory: creates the policy.
        key: the affinity key: ``session`` or ``prefix``.
    """
    candidates = build_replicas(1, 1, 1, 1)
    for n in range(50):
        request = (
            StubRequest(session_id=f"run {n}")
            if key == "session"
            else StubRequest(prefix_digest=b"prompt %d" % n)
        )
        chosen = {factory().build(random.Random(seed)).choose(request, candidates).name for seed in range(5)}  # noqa: S311
        assert len(chosen) == 1


def check_minimal_disruption(factory: LoadBalancingFactory) -> None:
    """Check that a change of the replicas moves only the keys of the changed replica. For affine policies."""
    chooser = factory().build(random.Random(1))  # noqa: S311
    replicas = build_replicas(1, 1, 1, 1, 1)
    removed_replica = replicas[2]
    remaining_replicas = [replica for replica in replicas if replica is not removed_replica]
    moved_keys = 0
    for request in build_requests(1000):
        before, after = chooser.choose(request, replicas), chooser.choose(request, remaining_replicas)
        assert before is after or before is removed_replica, f"{before.name} lost a key although it remains"
        moved_keys += before is removed_replica
    assert moved_keys < 300, f"one of five replicas had {moved_keys} of 1000 keys"


CHECKS: tuple[Callable[[LoadBalancingFactory], None], ...] = (
    check_description,
    check_unknown_options_rejected,
    check_chooses_candidates,
    check_single_candidate,
    check_deterministic,
    check_candidates_unchanged,
    check_state_bounded,
)
"""Checks for every policy."""

DISTRIBUTION_CHECKS: tuple[Callable[[LoadBalancingFactory], None], ...] = (check_even_distribution,)
"""Additional checks for policies that spread the load."""


def _simulate_choices(chooser: LoadBalancingPolicy) -> list[str]:
    """Return the choices over a period in which requests begin and end."""
    candidates, names = build_replicas(1, 2, 1), []
    for n, request in enumerate(build_requests(200)):
        chosen = chooser.choose(request, candidates)
        chosen.inflight += 1
        names.append(chosen.name)
        if n % 3 == 0:
            candidates[n % len(candidates)].inflight = 0
    return names


def _measure_shares(factory: LoadBalancingFactory, weights: Sequence[float], *, busy: bool) -> list[float]:
    """Return the share of requests of each replica; with ``busy``, running requests end at random."""
    rng = random.Random(11)  # noqa: S311
    chooser, candidates = factory().build(rng), build_replicas(*weights)
    counts: Counter[str] = Counter()
    running: list[StubReplica] = []
    for request in build_requests(CHOICES_PER_CHECK):
        chosen = chooser.choose(request, candidates)
        counts[chosen.name] += 1
        chosen.inflight += 1
        running.append(chosen)
        if busy and len(running) > 40:
            ended = running.pop(rng.randrange(len(running)))
            ended.inflight -= 1
    return [counts[one.name] / CHOICES_PER_CHECK for one in candidates]


def _count_stored_items(chooser: object) -> int:
    """Return the number of items in the collections of a policy."""
    names = [name for kind in type(chooser).__mro__ for name in getattr(kind, "__slots__", ())]
    values = [*getattr(chooser, "__dict__", {}).values(), *(getattr(chooser, name, None) for name in names)]
    return sum(len(value) for value in values if isinstance(value, dict | list | set))
