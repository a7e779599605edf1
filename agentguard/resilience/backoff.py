"""How long to wait before the next try: exponential, with full jitter.

Jitter keeps clients that failed together from coming back together. "Full" jitter, uniform from 0 to the
exponential bound, needs the fewest calls (Brooker, AWS Architecture Blog, 2015) and is gRPC's rule (A6).
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import ClassVar

from agentguard.errors import ConfigError
from agentguard.resilience.options import SECONDS, StrategyOptions, check


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff(StrategyOptions):
    """Waits before the second, third, ... attempt.

    Attributes:
        base_s: bound of the first wait, in seconds.
        factor: by how much the bound grows with each attempt.
        cap_s: largest bound.
        jitter: share of the bound that is random: 1 is full jitter, 0 none (for tests).
    """

    name: ClassVar[str] = "backoff"

    base_s: float = 0.2
    factor: float = 2.0
    cap_s: float = 10.0
    jitter: float = 1.0

    def __post_init__(self) -> None:
        check(self, base_s=SECONDS, factor=(1.0, 10.0), cap_s=SECONDS, jitter=(0.0, 1.0))
        if self.cap_s < self.base_s:
            raise ConfigError(f"Backoff.cap_s must be at least base_s ({self.base_s:g}), not {self.cap_s:g}")

    def bound(self, failed: int) -> float:
        """The longest wait after so many failed attempts (from 1), in seconds."""
        return min(self.cap_s, self.base_s * self.factor ** min(failed - 1, 64))

    def wait(self, failed: int, rng: random.Random) -> float:
        """A wait after so many failed attempts (from 1), in seconds."""
        bound = self.bound(failed)
        return bound - self.jitter * bound * rng.random()
