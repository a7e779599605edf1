"""Interface of load balancing policies, which choose one of the available replicas for a request.

A policy is a set of immutable options, like a strategy of `agentguard.resilience`. It can be printed and
compared, and ``build`` creates its balancer. Ejected, failing, full and draining replicas are never offered
to a policy. `agentguard.testing.contracts.load_balancing` checks the contract of a policy.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from agentguard.plugins import Registry


class ReplicaView(Protocol):
    """Properties of a replica that a policy can use."""

    @property
    def name(self) -> str:
        """Return the name in the configuration."""
        ...

    @property
    def weight(self) -> float:
        """Return the relative share of the load, greater than 0."""
        ...

    @property
    def inflight(self) -> int:
        """Return the number of running requests; a stream counts until its end."""
        ...

    @property
    def latency_s(self) -> float:
        """Return the moving mean of the seconds to the head or first token; 0 without data."""
        ...


class RoutingRequest(Protocol):
    """Properties of a request that a policy can use, see `agentguard.backends.base.BackendRequest`."""

    @property
    def session_id(self) -> str:
        """Return the ID of the run, or an empty string."""
        ...

    @property
    def prefix_digest(self) -> bytes:
        """Return a digest of the prompt's prefix, or empty bytes."""
        ...


ReplicaT = TypeVar("ReplicaT", bound=ReplicaView)


class LoadBalancingPolicy(Protocol):
    """Balancer with its state."""

    def choose(self, request: RoutingRequest, replicas: Sequence[ReplicaT]) -> ReplicaT:
        """Choose one of at least one replicas, which are in configuration order. Never waits."""
        ...


class LoadBalancingOptions(Protocol):
    """Options of a policy."""

    @property
    def name(self) -> str:
        """Return the name in the configuration."""
        ...

    @property
    def needs_prefix_digest(self) -> bool:
        """Return True if the policy reads the digest of a prompt's prefix, which costs time to compute."""
        ...

    def describe(self) -> str:
        """Return the name and every option in one line."""
        ...

    def build(self, rng: random.Random) -> LoadBalancingPolicy:
        """Create the balancer; ``rng`` is its only source of randomness, so that runs are reproducible."""
        ...


PolicyFactory = Callable[..., LoadBalancingOptions]
"""Immutable dataclass of options; see `agentguard.options.Options`."""


def _list_builtin() -> dict[str, str]:
    package = "agentguard.backends.load_balancing"
    return {
        "least_request": f"{package}.least_request:LeastRequestOptions",
        "prefix_affinity": f"{package}.consistent_hash:PrefixAffinityOptions",
        "priority": f"{package}.round_robin:FixedPriorityOptions",
        "round_robin": f"{package}.round_robin:RoundRobinOptions",
        "session_affinity": f"{package}.consistent_hash:SessionAffinityOptions",
        "weighted": f"{package}.round_robin:WeightedRoundRobinOptions",
    }


_REGISTRY: Registry[PolicyFactory] = Registry(
    "backend policy", group="agentguard.backend_policies", builtin=_list_builtin()
)


def list_policies() -> tuple[str, ...]:
    """Return the names of all policies, sorted."""
    return _REGISTRY.names()


def get_policy_factory(name: str) -> PolicyFactory:
    """Return the factory of a policy. Raises UnknownPlugin with the known names."""
    return _REGISTRY.get(name)


def register_policy(name: str, factory: PolicyFactory) -> None:
    """Register a policy from code. Raises ConfigError if the name is taken."""
    _REGISTRY.register(name, factory)
