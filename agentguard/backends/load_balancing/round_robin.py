"""Policies that look at no request: in turn, in turn by weight, always the first."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentguard.backends.load_balancing.base import ReplicaT, RoutingRequest
from agentguard.resilience.options import StrategyOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRobin(StrategyOptions):
    """One after the other."""

    name: ClassVar[str] = "round_robin"

    def build(self, rng: random.Random) -> RoundRobinBalancer:
        """Make the part at work."""
        return RoundRobinBalancer(rng)


class RoundRobinBalancer:
    """Counts; several workers do not begin with the same replica."""

    def __init__(self, rng: random.Random) -> None:
        self._turn = rng.randrange(1_000_000)

    def choose(self, request: RoutingRequest, replicas: Sequence[ReplicaT]) -> ReplicaT:  # noqa: ARG002
        """The next."""
        self._turn += 1
        return replicas[self._turn % len(replicas)]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightedRoundRobin(StrategyOptions):
    """In turn, by weight: smooth weighted round robin, as nginx does it.

    Each choice adds every replica's weight to its credit; the one with the most is taken and pays the sum of
    the weights. So a heavy replica's turns are spread over the round and do not come one after the other.
    """

    name: ClassVar[str] = "weighted"

    def build(self, rng: random.Random) -> WeightedRoundRobinBalancer:
        """Make the part at work."""
        return WeightedRoundRobinBalancer(rng)


class WeightedRoundRobinBalancer:
    """Keeps each replica's credit."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._credit: dict[str, float] = {}

    def choose(self, request: RoutingRequest, replicas: Sequence[ReplicaT]) -> ReplicaT:  # noqa: ARG002
        """The one whose turn it is."""
        credit, total = self._credit, 0.0
        best, most = replicas[0], float("-inf")
        for one in replicas:
            total += one.weight
            # The first credit is random, so that workers that start together do not go in step.
            now = credit.get(one.name, -self._rng.random() * one.weight) + one.weight
            credit[one.name] = now
            if now > most:
                best, most = one, now
        credit[best.name] = most - total
        if len(credit) > 2 * len(replicas) + 100:  # replicas come and go
            kept = {one.name for one in replicas}
            self._credit = {name: value for name, value in credit.items() if name in kept}
        return best


@dataclass(frozen=True, slots=True, kw_only=True)
class PriorityOptions(StrategyOptions):
    """Always the first in the configuration's order that may be used: active and passive ones."""

    name: ClassVar[str] = "priority"

    def build(self, rng: random.Random) -> PriorityBalancer:  # noqa: ARG002
        """Make the part at work."""
        return PriorityBalancer()


class PriorityBalancer:
    """Has no state."""

    def choose(self, request: RoutingRequest, replicas: Sequence[ReplicaT]) -> ReplicaT:  # noqa: ARG002
        """The first."""
        return replicas[0]
