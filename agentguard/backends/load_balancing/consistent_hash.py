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

from agentguard.backends.load_balancing.base import RoutingRequest, V
from agentguard.backends.load_balancing.least_request import LeastLoad, LeastRequestBalancer
from agentguard.errors import ConfigError
from agentguard.resilience.options import StrategyOptions, check

_WHOLE = float(1 << 64)


def score(key: bytes, name: str, weight: float) -> float:
    """A replica's score for a key; the highest wins. The same in every process and on every machine."""
    digest = blake2b(b"%b\0%b" % (name.encode(), key), digest_size=8).digest()
    share = (int.from_bytes(digest, "big") + 0.5) / _WHOLE  # never 0, nor quite 1 before rounding
    return -weight / math.log(min(share, 1 - 1e-16))


def ranked(key: bytes, offered: Sequence[V]) -> list[V]:
    """The replicas by their scores for a key, the highest first."""
    return sorted(offered, key=lambda one: score(key, one.name, one.weight), reverse=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionAffinity(StrategyOptions):
    """A run's requests go to one replica; a request of no run goes to the least loaded.

    Attributes:
        bound: how many times its fair share of what is under way a replica may have before a run goes to its
            next one; 0 is no bound.
    """

    name: ClassVar[str] = "session"

    bound: float = 0.0

    def __post_init__(self) -> None:
        _check_bound(self)

    def build(self, rng: random.Random) -> ConsistentHashBalancer:
        """Make the part at work."""
        return ConsistentHashBalancer(self.bound, rng, by_prefix=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix(StrategyOptions):
    """Prompts that begin alike go to one replica, whose prefix cache has the beginning (vLLM, SGLang).

    A prefix that everybody has would drown its replica, so the load is bounded (Mirrokni, Thorup and
    Zadimoghaddam, Consistent Hashing with Bounded Loads, 2018).

    Attributes:
        bound: how many times its fair share of what is under way a replica may have before a prefix goes to
            its next one; 0 is no bound.
    """

    name: ClassVar[str] = "prefix"

    bound: float = 1.25

    def __post_init__(self) -> None:
        _check_bound(self)

    def build(self, rng: random.Random) -> ConsistentHashBalancer:
        """Make the part at work."""
        return ConsistentHashBalancer(self.bound, rng, by_prefix=True)


class ConsistentHashBalancer:
    """Ranks replicas for a request's key."""

    def __init__(self, bound: float, rng: random.Random, *, by_prefix: bool) -> None:
        self._bound, self._by_prefix = bound, by_prefix
        self._keyless = LeastRequestBalancer(LeastLoad(), rng)

    def choose(self, asked: RoutingRequest, offered: Sequence[V]) -> V:
        """The key's replica, or the next in its order where that has its share."""
        key = asked.prefix if self._by_prefix else asked.session.encode()
        if not key:
            return self._keyless.choose(asked, offered)
        if not self._bound:
            return max(offered, key=lambda one: score(key, one.name, one.weight))
        running = sum(one.inflight for one in offered) + 1
        weights = sum(one.weight for one in offered)
        for one in ranked(key, offered):
            if one.inflight < math.ceil(self._bound * running * one.weight / weights):
                return one
        return self._keyless.choose(asked, offered)  # where rounding left no room


def _check_bound(options: SessionAffinity | Prefix) -> None:
    check(options, bound=(0.0, 100.0))
    if 0 < options.bound < 1:
        raise ConfigError(f"{type(options).__name__}.bound must be 0 (none) or from 1 to 100")
