"""The replica with the least to do, of all or of two that chance picks.

Two random choices are nearly as even as looking at all (Mitzenmacher, The Power of Two Choices in Randomized
Load Balancing, 2001), and do not send everybody to the same idle replica when several proxies choose with
what each of them knows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentguard.backends.load_balancing.base import ReplicaT, ReplicaView, RoutingRequest
from agentguard.errors import ConfigError
from agentguard.resilience.options import StrategyOptions, check_ranges


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastRequest(StrategyOptions):
    """Options of the policy.

    Attributes:
        choice_count: how many replicas chance picks to be compared; 0 compares all.
        use_latency: whether a replica counts as more loaded the slower it answers; for requests that are alike.
    """

    name: ClassVar[str] = "least_request"

    choice_count: int = 2
    use_latency: bool = False

    def __post_init__(self) -> None:
        check_ranges(self, choice_count=(0, 1000))
        if self.choice_count == 1:
            raise ConfigError("LeastRequest.choice_count must be 0 (compare all) or at least 2, not 1")
        if not isinstance(self.use_latency, bool):
            raise ConfigError("LeastRequest.use_latency must be true or false")

    def build(self, rng: random.Random) -> LeastRequestBalancer:
        """Make the part at work."""
        return LeastRequestBalancer(self, rng)


class LeastRequestBalancer:
    """Compares loads: requests under way for each unit of weight, with the one that is to come."""

    def __init__(self, options: LeastRequest, rng: random.Random) -> None:
        self._choice_count, self._use_latency, self._rng = options.choice_count, options.use_latency, rng

    def choose(self, request: RoutingRequest, replicas: Sequence[ReplicaT]) -> ReplicaT:  # noqa: ARG002
        """The least loaded; chance decides between equals."""
        count = len(replicas)
        if count == 1:
            return replicas[0]
        start = int(self._rng.random() * count)
        if self._choice_count == 2:
            return self._choose_of_two(replicas, start)
        if self._choice_count and self._choice_count < count:
            replicas, start = self._rng.sample(replicas, self._choice_count), 0
        rotated = [*replicas[start:], *replicas[:start]]  # so that equals do not always mean the first
        return min(rotated, key=self._compute_load)

    def _choose_of_two(self, replicas: Sequence[ReplicaT], start: int) -> ReplicaT:
        """The lighter of one replica and another one, both by chance."""
        count = len(replicas)
        one = replicas[start]
        other = replicas[(start + 1 + int(self._rng.random() * (count - 1))) % count]
        if not self._use_latency and one.weight == other.weight:
            return one if one.inflight <= other.inflight else other
        return one if self._compute_load(one) <= self._compute_load(other) else other

    def _compute_load(self, replica: ReplicaView) -> float:
        load = (replica.inflight + 1) / replica.weight
        # A millisecond stands for what is not known yet: a new replica is tried soon.
        return load * max(replica.latency_s, 0.001) if self._use_latency else load
