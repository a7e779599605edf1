"""A budget for extra requests, as a share of the ordinary ones: retries and hedges can't multiply an outage.

A token bucket after gRPC's retry throttling (A6) and Finagle's RetryBudget: each request pays in a share of
a token, each extra request takes one out; a small reserve refills with time, so that a quiet client may
retry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agentguard.errors import ConfigError
from agentguard.resilience.clock import Clock
from agentguard.resilience.options import RATIO, StrategyOptions, check_ranges

_EPSILON = 1e-9  # twenty twentieths are not quite one in floating point


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudgetOptions(StrategyOptions):
    """How many extra requests are allowed.

    In any stretch of time no more are made than ``burst + ratio * requests + per_second * seconds``.

    Attributes:
        ratio: tokens that a request pays in; 0.2 allows one extra request to five.
        reserve: tokens there are at the start, and up to which time refills.
        per_second: how fast time refills the reserve.
        burst: most tokens that can be saved up.
    """

    name: ClassVar[str] = "retry_budget"

    ratio: float = 0.2
    reserve: float = 3.0
    per_second: float = 10.0
    burst: float = 100.0

    def __post_init__(self) -> None:
        check_ranges(self, ratio=RATIO, reserve=(0.0, 1e6), per_second=(0.0, 1e6), burst=(0.0, 1e6))
        if self.burst < self.reserve:
            raise ConfigError(
                f"RetryBudgetOptions.burst must be at least reserve ({self.reserve:g}), not {self.burst:g}"
            )


class RetryBudget:
    """A bucket of tokens. Nothing awaits between look and withdrawal, so no token is lost or doubled."""

    __slots__ = ("_clock", "_options", "_refilled_at", "_tokens")

    def __init__(self, options: RetryBudgetOptions, clock: Clock) -> None:
        self._options, self._clock = options, clock
        self._tokens, self._refilled_at = options.reserve, clock.now()

    @property
    def tokens(self) -> float:
        """Tokens there are now."""
        self._refill()
        return self._tokens

    @property
    def has_tokens(self) -> bool:
        """Whether an extra request is allowed now."""
        return self.tokens >= 1 - _EPSILON

    def deposit(self) -> None:
        """An ordinary request was made."""
        options = self._options
        if self._tokens < options.reserve:  # else the time gives nothing, until some are taken
            self._refill()
        tokens = self._tokens + options.ratio
        self._tokens = tokens if tokens < options.burst else options.burst

    def withdraw(self) -> bool:
        """Take a token for an extra request; False if there is none."""
        if not self.has_tokens:
            return False
        self._tokens = max(0.0, self._tokens - 1)
        return True

    def _refill(self) -> None:
        now, options = self._clock.now(), self._options
        if self._tokens < options.reserve:
            earned = options.per_second * (now - self._refilled_at)
            self._tokens = min(options.reserve, self._tokens + earned)
        self._refilled_at = now
