"""Policy that chooses the least loaded replica, of all or of two random ones.

Two random choices are nearly as even as comparing all (Mitzenmacher, The Power of Two Choices in Randomized
Load Balancing, 2001). They also prevent that several proxies, each with its own view, choose the same idle
replica.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from agentguard.backends.load_balancing.base import ReplicaT, ReplicaView, RoutingRequest
from agentguard.errors import ConfigError
from agentguard.options import Options, option


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastRequestOptions(Options):
    """Options of the policy.

    Attributes:
        choice_count: number of random replicas that are compared; 0 compares all.
        use_latency: whether slower replicas count as more loaded; suits requests of similar size.
    """

    name: ClassVar[str] = "least_request"
    needs_prefix_digest: ClassVar[bool] = False

    choice_count: int = option(2, bounds=(0, 1000))
    use_latency: bool = False

    def check_consistency(self) -> None:
        """Check that one replica is never compared with itself, and that the switch is a bool."""
        if self.choice_count == 1:
            raise ConfigError("LeastRequestOptions.choice_count must be 0 (compare all) or at least 2, not 1")
        if not isinstance(self.use_latency, bool):
            raise ConfigError("LeastRequestOptions.use_latency must be true or false")

    def build(self, rng: random.Random) -> LeastRequest:
        """Create the balancer."""
        return LeastRequest(self, rng)


class LeastRequest:
    """Policy that compares loads: running requests per unit of weight, including the new request."""

    def __init__(self, options: LeastRequestOptions, rng: random.Random) -> None:
        self._choice_count, self._use_latency, self._rng = options.choice_count, options.use_latency, rng

    def choose(self, request: RoutingRequest, replicas: Sequence[ReplicaT]) -> ReplicaT:  # noqa: ARG002
        """Return the least loaded replica; ties are broken randomly."""
        count = len(replicas)
        if count == 1:
            return replicas[0]
        start = int(self._rng.random() * count)
        if self._choice_count == 2:
            return self._choose_of_two(replicas, start)
        if self._choice_count and self._choice_count < count:
            replicas, start = self._rng.sample(replicas, self._choice_count), 0
        # otherwise min would always prefer the first of equal replicas
        rotated = [*replicas[start:], *replicas[:start]]
        return min(rotated, key=self._compute_load)

    def _choose_of_two(self, replicas: Sequence[ReplicaT], start: int) -> ReplicaT:
        """Return the less loaded of two random replicas."""
        count = len(replicas)
        first = replicas[start]
        second = replicas[(start + 1 + int(self._rng.random() * (count - 1))) % count]
        if not self._use_latency and first.weight == second.weight:
            return first if first.inflight <= second.inflight else second
        return first if self._compute_load(first) <= self._compute_load(second) else second

    def _compute_load(self, replica: ReplicaView) -> float:
        load = (replica.inflight + 1) / replica.weight
        # A replica without data counts as fast, so that it is tried soon.
        return load * max(replica.latency_s, 0.001) if self._use_latency else load
