"""Policies that route related requests to the same replica, which improves the hit rate of its caches.

Rendezvous hashing (Thaler and Ravishankar, 1998): every replica has a score for every key, and the highest
score wins. A new replica takes over only its share, and the keys of a removed one are spread over all others.
Proxies with the same replicas agree without communication. Scores are weighted after Schindelhauer and
Schomaker (2005).
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import ClassVar

from agentguard.backends.load_balancing.base import ReplicaT, RoutingRequest
from agentguard.backends.load_balancing.least_request import LeastRequest, LeastRequestOptions
from agentguard.errors import ConfigError
from agentguard.options import Options, option

_HASH_SPACE = float(1 << 64)
_LOAD_FACTOR_RANGE = (0.0, 100.0)


def compute_score(key: bytes, name: str, weight: float) -> float:
    """Compute a replica's score for a key; the result is the same in every process and on every machine."""
    digest = blake2b(b"%b\0%b" % (name.encode(), key), digest_size=8).digest()
    share = (int.from_bytes(digest, "big") + 0.5) / _HASH_SPACE  # never 0, and below 1 before rounding
    return -weight / math.log(min(share, 1 - 1e-16))


def rank_by_score(key: bytes, replicas: Sequence[ReplicaT]) -> list[ReplicaT]:
    """Return the replicas sorted by their scores for a key, the highest first."""
    return sorted(replicas, key=lambda one: compute_score(key, one.name, one.weight), reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAffinityOptions(Options):
    """Policy that routes a run's requests to one replica, and requests without a run to the least loaded one.

    Attributes:
        max_load_factor: multiple of its fair share of running requests that a replica may have before a run
            moves to its next replica; 0 disables the bound.
    """

    name: ClassVar[str] = "session_affinity"
    needs_prefix_digest: ClassVar[bool] = False

    max_load_factor: float = option(0.0, bounds=_LOAD_FACTOR_RANGE)

    def check_consistency(self) -> None:
        """Check that the factor is 0 or at least 1."""
        _check_max_load_factor(self)

    def build(self, rng: random.Random) -> ConsistentHash:
        """Create the balancer."""
        return ConsistentHash(self.max_load_factor, rng, by_prefix=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixAffinityOptions(Options):
    """Policy that routes prompts with a common prefix to the replica whose cache has it (vLLM, SGLang).

    A prefix that all prompts share would overload its replica, so the load is bounded (Mirrokni, Thorup and
    Zadimoghaddam, Consistent Hashing with Bounded Loads, 2018).

    Attributes:
        max_load_factor: multiple of its fair share of running requests that a replica may have before a
            prefix moves to its next replica; 0 disables the bound.
    """

    name: ClassVar[str] = "prefix_affinity"
    needs_prefix_digest: ClassVar[bool] = True

    max_load_factor: float = option(1.25, bounds=_LOAD_FACTOR_RANGE)

    def check_consistency(self) -> None:
        """Check that the factor is 0 or at least 1."""
        _check_max_load_factor(self)

    def build(self, rng: random.Random) -> ConsistentHash:
        """Create the balancer."""
        return ConsistentHash(self.max_load_factor, rng, by_prefix=True)


class ConsistentHash:
    """Policy that ranks replicas by the key of a request."""

    def __init__(self, max_load_factor: float, rng: random.Random, *, by_prefix: bool) -> None:
        self._max_load_factor, self._by_prefix = max_load_factor, by_prefix
        self._fallback = LeastRequest(LeastRequestOptions(), rng)

    def choose(self, request: RoutingRequest, replicas: Sequence[ReplicaT]) -> ReplicaT:
        """Return the key's replica, or the next in its ranking below the load bound."""
        key = request.prefix_digest if self._by_prefix else request.session_id.encode()
        if not key:
            return self._fallback.choose(request, replicas)
        if not self._max_load_factor:
            return max(replicas, key=lambda one: compute_score(key, one.name, one.weight))
        running_count = sum(one.inflight for one in replicas) + 1
        weights = sum(one.weight for one in replicas)
        for one in rank_by_score(key, replicas):
            if one.inflight < math.ceil(self._max_load_factor * running_count * one.weight / weights):
                return one
        return self._fallback.choose(request, replicas)  # rounding can leave every replica at its bound


def _check_max_load_factor(options: SessionAffinityOptions | PrefixAffinityOptions) -> None:
    if 0 < options.max_load_factor < 1:
        raise ConfigError(f"{type(options).__name__}.max_load_factor must be 0 (none) or from 1 to 100")
