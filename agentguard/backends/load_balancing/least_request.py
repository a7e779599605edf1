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

from agentguard.backends.load_balancing.base import ReplicaView, RoutingRequest, V
from agentguard.errors import ConfigError
from agentguard.resilience.options import StrategyOptions, check


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastLoad(StrategyOptions):
    """Options of the policy.

    Attributes:
        choices: how many replicas chance picks to be compared; 0 compares all.
        latency: whether a replica counts as more loaded the slower it answers; for requests that are alike.
    """

    name: ClassVar[str] = "least_load"

    choices: int = 2
    latency: bool = False

    def __post_init__(self) -> None:
        check(self, choices=(0, 1000))
        if self.choices == 1:
            raise ConfigError("LeastLoad.choices must be 0 (compare all) or at least 2, not 1")
        if not isinstance(self.latency, bool):
            raise ConfigError("LeastLoad.latency must be true or false")

    def build(self, rng: random.Random) -> LeastRequestBalancer:
        """Make the part at work."""
        return LeastRequestBalancer(self, rng)


class LeastRequestBalancer:
    """Compares loads: requests under way for each unit of weight, with the one that is to come."""

    def __init__(self, options: LeastLoad, rng: random.Random) -> None:
        self._choices, self._latency, self._rng = options.choices, options.latency, rng

    def choose(self, asked: RoutingRequest, offered: Sequence[V]) -> V:  # noqa: ARG002
        """The least loaded; chance decides between equals."""
        count = len(offered)
        if count == 1:
            return offered[0]
        start = int(self._rng.random() * count)
        if self._choices == 2:
            return self._lighter(offered, start)
        if self._choices and self._choices < count:
            offered, start = self._rng.sample(offered, self._choices), 0
        rotated = [*offered[start:], *offered[:start]]  # so that equals do not always mean the first
        return min(rotated, key=self._load)

    def _lighter(self, offered: Sequence[V], start: int) -> V:
        """The lighter of one replica and another one, both by chance."""
        count = len(offered)
        one = offered[start]
        other = offered[(start + 1 + int(self._rng.random() * (count - 1))) % count]
        if not self._latency and one.weight == other.weight:
            return one if one.inflight <= other.inflight else other
        return one if self._load(one) <= self._load(other) else other

    def _load(self, one: ReplicaView) -> float:
        load = (one.inflight + 1) / one.weight
        # A millisecond stands for what is not known yet: a new replica is tried soon.
        return load * max(one.latency_s, 0.001) if self._latency else load
