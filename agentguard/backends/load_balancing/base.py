"""The seam of policies: which of the replicas that may be used gets a request.

A policy is frozen options, like a strategy of `agentguard.resilience`: it can be printed and compared, and
``build`` makes the part at work. What may be used is not its concern: ejected, failing, full and draining
replicas are never offered. `agentguard.testing.contracts.load_balancing` says what each must keep to.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from agentguard.plugins import Registry


class ReplicaView(Protocol):
    """What a policy may know of a replica."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        ...

    @property
    def weight(self) -> float:
        """Its share of the work beside the others', over 0."""
        ...

    @property
    def inflight(self) -> int:
        """Requests that run on it now, streams until their end."""
        ...

    @property
    def latency_s(self) -> float:
        """Moving mean of the seconds to its heads or first tokens; 0 while nothing is known."""
        ...


class RoutingRequest(Protocol):
    """What a policy may know of a request; `agentguard.backends.base.BackendRequest` has it."""

    @property
    def session_id(self) -> str:
        """The run that it belongs to, or empty."""
        ...

    @property
    def prefix_digest(self) -> bytes:
        """A digest of how its prompt begins, or empty."""
        ...


ReplicaT = TypeVar("ReplicaT", bound=ReplicaView)


class LoadBalancingPolicy(Protocol):
    """A policy at work, with its state."""

    def choose(self, request: RoutingRequest, replicas: Sequence[ReplicaT]) -> ReplicaT:
        """One of those that are offered: at least one, in the order of the configuration. Never waits."""
        ...


class LoadBalancingOptions(Protocol):
    """A policy as data."""

    @property
    def name(self) -> str:
        """Its name in the configuration."""
        ...

    def describe(self) -> str:
        """One line: the name and every option."""
        ...

    def build(self, rng: random.Random) -> LoadBalancingPolicy:
        """Make the part at work; all chance comes from ``rng``, so that a run can be repeated."""
        ...


PolicyFactory = Callable[..., LoadBalancingOptions]
"""A frozen dataclass of options; see `agentguard.resilience.options.StrategyOptions`."""


def _list_builtin() -> dict[str, str]:
    room = "agentguard.backends.load_balancing"
    return {
        "least_request": f"{room}.least_request:LeastRequest",
        "prefix_affinity": f"{room}.consistent_hash:PrefixAffinity",
        "priority": f"{room}.round_robin:PriorityOptions",
        "round_robin": f"{room}.round_robin:RoundRobin",
        "session_affinity": f"{room}.consistent_hash:SessionAffinity",
        "weighted": f"{room}.round_robin:WeightedRoundRobin",
    }


_REGISTRY: Registry[PolicyFactory] = Registry(
    "backend policy", group="agentguard.backend_policies", builtin=_list_builtin()
)


def list_policies() -> tuple[str, ...]:
    """The names of all policies, sorted."""
    return _REGISTRY.names()


def get_policy_factory(name: str) -> PolicyFactory:
    """What makes the policy of a name. Raises UnknownPlugin with the names there are."""
    return _REGISTRY.get(name)


def register_policy(name: str, factory: PolicyFactory) -> None:
    """Add a policy from code. Raises ConfigError if the name is taken."""
    _REGISTRY.register(name, factory)
