"""Policies that ignore the request: round robin, weighted round robin, and fixed priority."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentguard.backends.load_balancing.base import ReplicaT, RoutingRequest
from agentguard.options import Options


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobinOptions(Options):
    """Round robin."""

    name: ClassVar[str] = "round_robin"
    needs_prefix_digest: ClassVar[bool] = False

    def build(self, rng: random.Random) -> RoundRobin:
        """Create the balancer."""
        return RoundRobin(rng)


class RoundRobin:
    """Counter with a random start, so that several workers start with different replicas."""

    def __init__(self, rng: random.Random) -> None:
        self._turn = rng.randrange(1_000_000)

    def choose(self, request: RoutingRequest, replicas: Sequence[ReplicaT]) -> ReplicaT:  # noqa: ARG002
        """Return the next replica."""
        self._turn += 1
        return replicas[self._turn % len(replicas)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedRoundRobinOptions(Options):
    """Smooth weighted round robin, as in nginx.

    Each choice adds every replica's weight to its credit. The replica with the highest credit is chosen, and
    the sum of the weights is subtracted from its credit. So the turns of a heavy replica are spread over the
    round.
    """

    name: ClassVar[str] = "weighted"
    needs_prefix_digest: ClassVar[bool] = False

    def build(self, rng: random.Random) -> WeightedRoundRobin:
        """Create the balancer."""
        return WeightedRoundRobin(rng)


class WeightedRoundRobin:
    """Policy with a credit for each replica."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._credit: dict[str, float] = {}

    def choose(self, request: RoutingRequest, replicas: Sequence[ReplicaT]) -> ReplicaT:  # noqa: ARG002
        """Return the replica with the highest credit."""
        credit, total = self._credit, 0.0
        best, max_credit = replicas[0], float("-inf")
        for replica in replicas:
            total += replica.weight
            # The first credit is random, so that workers that start together do not choose in lockstep.
            replica_credit = credit.get(replica.name, -self._rng.random() * replica.weight) + replica.weight
            credit[replica.name] = replica_credit
            if replica_credit > max_credit:
                best, max_credit = replica, replica_credit
        credit[best.name] = max_credit - total
        if len(credit) > 2 * len(replicas) + 100:  # drop removed replicas
            names = {replica.name for replica in replicas}
            self._credit = {name: value for name, value in credit.items() if name in names}
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedPriorityOptions(Options):
    """Policy of active and passive replicas: the first available replica in configuration order."""

    name: ClassVar[str] = "priority"
    needs_prefix_digest: ClassVar[bool] = False

    def build(self, rng: random.Random) -> FixedPriority:  # noqa: ARG002
        """Create the balancer."""
        return FixedPriority()


class FixedPriority:
    """Balancer without state."""

    def choose(self, request: RoutingRequest, replicas: Sequence[ReplicaT]) -> ReplicaT:  # noqa: ARG002
        """Return the first replica."""
        return replicas[0]
