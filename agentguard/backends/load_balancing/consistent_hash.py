"""Policies that keep what belongs together on one replica, for the sake of its caches.

Rendezvous hashing (Thaler and Ravishankar, 1998): every replica has a score for every key, and the highest
wins. Whoever comes takes only what is its share, and what a leaver had goes to all others; proxies that know
the same replicas agree without a word. Scores are weighted as in Schindelhauer and Schomaker (2005).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

from agentguard.backends.load_balancing.base import ReplicaT, RoutingRequest
from agentguard.backends.load_balancing.least_request import LeastRequest, LeastRequestBalancer
from agentguard.errors import ConfigError
from agentguard.resilience.options import StrategyOptions, check_ranges

_HASH_SPACE = float(1 << 64)


def compute_score(key: bytes, name: str, weight: float) -> float:
    """A replica's score for a key; the highest wins. The same in every process and on every machine."""
    digest = blake2b(b"%b\0%b" % (name.encode(), key), digest_size=8).digest()
    share = (int.from_bytes(digest, "big") + 0.5) / _HASH_SPACE  # never 0, nor quite 1 before rounding
    return -weight / math.log(min(share, 1 - 1e-16))


def rank_by_score(key: bytes, replicas: Sequence[ReplicaT]) -> list[ReplicaT]:
    """The replicas by their scores for a key, the highest first."""
    return sorted(replicas, key=lambda one: compute_score(key, one.name, one.weight), reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAffinity(StrategyOptions):
    """A run's requests go to one replica; a request of no run goes to the least loaded.

    Attributes:
        max_load_factor: how many times its fair share of what is under way a replica may have before a run goes to its
            next one; 0 is no bound.
    """

    name: ClassVar[str] = "session_affinity"

    max_load_factor: float = 0.0

    def __post_init__(self) -> None:
        _check_max_load_factor(self)

    def build(self, rng: random.Random) -> ConsistentHashBalancer:
        """Make the part at work."""
        return ConsistentHashBalancer(self.max_load_factor, rng, by_prefix=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixAffinity(StrategyOptions):
    """Prompts that begin alike go to one replica, whose prefix cache has the beginning (vLLM, SGLang).

    A prefix that everybody has would drown its replica, so the load is bounded (Mirrokni, Thorup and
    Zadimoghaddam, Consistent Hashing with Bounded Loads, 2018).

    Attributes:
        max_load_factor: how many times its fair share of what is under way a replica may have before a prefix goes to
            its next one; 0 is no bound.
    """

    name: ClassVar[str] = "prefix_affinity"

    max_load_factor: float = 1.25

    def __post_init__(self) -> None:
        _check_max_load_factor(self)

    def build(self, rng: random.Random) -> ConsistentHashBalancer:
        """Make the part at work."""
        return ConsistentHashBalancer(self.max_load_factor, rng, by_prefix=True)


class ConsistentHashBalancer:
    """Ranks replicas for a request's key."""

    def __init__(self, max_load_factor: float, rng: random.Random, *, by_prefix: bool) -> None:
        self._max_load_factor, self._by_prefix = max_load_factor, by_prefix
        self._fallback = LeastRequestBalancer(LeastRequest(), rng)

    def choose(self, request: RoutingRequest, replicas: Sequence[ReplicaT]) -> ReplicaT:
        """The key's replica, or the next in its order where that has its share."""
        key = request.prefix_digest if self._by_prefix else request.session_id.encode()
        if not key:
            return self._fallback.choose(request, replicas)
        if not self._max_load_factor:
            return max(replicas, key=lambda one: compute_score(key, one.name, one.weight))
        running = sum(one.inflight for one in replicas) + 1
        weights = sum(one.weight for one in replicas)
        for one in rank_by_score(key, replicas):
            if one.inflight < math.ceil(self._max_load_factor * running * one.weight / weights):
                return one
        return self._fallback.choose(request, replicas)  # where rounding left no room


def _check_max_load_factor(options: SessionAffinity | PrefixAffinity) -> None:
    check_ranges(options, max_load_factor=(0.0, 100.0))
    if 0 < options.max_load_factor < 1:
        raise ConfigError(f"{type(options).__name__}.max_load_factor must be 0 (none) or from 1 to 100")
