"""Contract of all load balancing policies, built in or installed."""

import math
import random
from functools import partial

import pytest

from agentguard.backends.load_balancing.base import get_policy_factory, list_policies, register_policy
from agentguard.backends.load_balancing.consistent_hash import rank_by_score
from agentguard.errors import ConfigError
from agentguard.testing.contracts import load_balancing as contract

ALL = list_policies()
SPREADING = [name for name in ALL if name != "priority"]
AFFINE = {"session_affinity": "session", "prefix_affinity": "prefix"}


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("check", contract.CHECKS, ids=lambda check: check.__name__)
def test_every_policy_satisfies_the_contract(name, check):
    check(get_policy_factory(name))


@pytest.mark.parametrize("name", SPREADING)
def test_spreading_policies_are_even(name):
    contract.check_even_distribution(get_policy_factory(name))


@pytest.mark.parametrize("name", ["least_request", "weighted", "session_affinity", "prefix_affinity"])
def test_weighted_policies_respect_weights(name):
    contract.check_weights_respected(get_policy_factory(name))


@pytest.mark.parametrize(("name", "key"), AFFINE.items())
def test_affinity_policies_keep_sessions_on_one_replica(name, key):
    contract.check_affinity(get_policy_factory(name), key=key)
    contract.check_minimal_disruption(partial(get_policy_factory(name), max_load_factor=0.0))


def test_contract_detects_invalid_policies():
    class Broken:
        name = "broken"

        def describe(self):
            return "broken"

        def build(self, rng):
            return self

        def choose(self, asked, offered):
            return contract.StubReplica(name="elsewhere")

        def __init__(self, **options):
            pass

        def __eq__(self, other):
            return True

        __hash__ = None

    for check in (contract.check_chooses_candidates, contract.check_single_candidate):
        with pytest.raises(AssertionError):
            check(Broken)
    with pytest.raises(AssertionError):
        contract.check_unknown_options_rejected(Broken)
    with pytest.raises(AssertionError):
        contract.check_even_distribution(get_policy_factory("priority"))
    with pytest.raises(AssertionError):
        contract.check_minimal_disruption(get_policy_factory("round_robin"))


def test_hot_prefix_is_bounded_and_overflows_to_next_replica():
    chooser = get_policy_factory("prefix_affinity")(max_load_factor=1.25).build(random.Random(1))
    offered = contract.build_replicas(1, 1, 1, 1)
    ask = contract.StubRequest(prefix_digest=b"everybody's")
    for _ in range(400):
        chooser.choose(ask, offered).inflight += 1
    order = rank_by_score(ask.prefix_digest, offered)
    loads = [one.inflight for one in order]
    assert loads == sorted(loads, reverse=True)
    assert loads[0] == math.ceil(1.25 * 400 / 4)
    assert loads[3] > 0


def test_least_loaded_replica_is_chosen_if_all_are_compared():
    chooser = get_policy_factory("least_request")(choice_count=0).build(random.Random(1))
    offered = contract.build_replicas(1, 1, 4)
    for one, inflight in zip(offered, (3, 2, 9), strict=True):
        one.inflight = inflight
    assert {chooser.choose(contract.StubRequest(), offered).name for _ in range(20)} == {"replica-2"}


def test_slow_replicas_count_as_loaded_if_configured():
    chooser = get_policy_factory("least_request")(choice_count=0, use_latency=True).build(random.Random(1))
    offered = contract.build_replicas(1, 1)
    offered[0].latency_s, offered[1].latency_s = 2.0, 0.1
    offered[1].inflight = 5
    assert chooser.choose(contract.StubRequest(), offered) is offered[1]


def test_heavy_replicas_are_interleaved():
    chooser = get_policy_factory("weighted")().build(random.Random(1))
    offered = contract.build_replicas(5, 1, 1)
    names = [chooser.choose(contract.StubRequest(), offered).name for _ in range(70)]
    assert [names.count(one.name) for one in offered] == [50, 10, 10]
    assert (
        max(len(run) for run in "".join(n[-1] for n in names).replace("1", " ").replace("2", " ").split())
        <= 5
    )


def test_options_out_of_range_are_rejected():
    for name, options in (
        ("least_request", {"choice_count": 1}),
        ("prefix_affinity", {"max_load_factor": 0.5}),
        ("session_affinity", {"max_load_factor": -1}),
    ):
        with pytest.raises(ConfigError):
            get_policy_factory(name)(**options)


def test_policy_can_be_registered_but_not_replaced():
    with pytest.raises(ConfigError, match="already"):
        register_policy("least_request", get_policy_factory("weighted"))
