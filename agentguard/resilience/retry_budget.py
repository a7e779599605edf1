"""Budget for extra requests as a share of ordinary ones, so that retries cannot amplify an outage.

A token bucket after gRPC's retry throttling (A6) and Finagle's RetryBudget. Each request deposits a fraction
of a token, and each extra request withdraws one. Time refills a small reserve, so that a client with few
requests may retry.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from agentguard.errors import ConfigError
from agentguard.options import RATIO, Options, option
from agentguard.resilience.clock import Clock

_EPSILON = 1e-9  # in floating point, twenty twentieths are slightly less than one


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryBudgetOptions(Options):
    """Limits on extra requests.

    In any interval at most ``burst + ratio * requests + per_second * seconds`` extra requests are made.

    Attributes:
        ratio: tokens that a request deposits; 0.2 allows one extra request per five requests.
        reserve: initial tokens, and the level up to which time refills them.
        per_second: tokens per second by which time refills the reserve.
        burst: maximum number of tokens.
    """

    name: ClassVar[str] = "retry_budget"

    ratio: float = option(0.2, bounds=RATIO)
    reserve: float = option(10.0, bounds=(0.0, 1e6))
    per_second: float = option(10.0, bounds=(0.0, 1e6))
    burst: float = option(100.0, bounds=(0.0, 1e6))

    def check_consistency(self) -> None:
        """Check that the budget holds its reserve."""
        if self.burst < self.reserve:
            raise ConfigError(
                f"RetryBudgetOptions.burst must be at least reserve ({self.reserve:g}), not {self.burst:g}"
            )


class RetryBudget:
    """Token bucket. There is no await between check and withdrawal, so no token is lost or used twice."""

    __slots__ = ("_clock", "_options", "_refilled_at", "_tokens")

    def __init__(self, options: RetryBudgetOptions, clock: Clock) -> None:
        self._options, self._clock = options, clock
        self._tokens, self._refilled_at = options.reserve, clock.now()

    @property
    def tokens(self) -> float:
        """Return the current number of tokens."""
        self._refill()
        return self._tokens

    @property
    def has_tokens(self) -> bool:
        """Return whether an extra request is allowed now."""
        return self.tokens >= 1 - _EPSILON

    def deposit(self) -> None:
        """Deposit the share of an ordinary request."""
        options = self._options
        if self._tokens < options.reserve:  # at or above the reserve, time adds no tokens
            self._refill()
        tokens = self._tokens + options.ratio
        self._tokens = tokens if tokens < options.burst else options.burst

    def withdraw(self) -> bool:
        """Withdraw a token for an extra request; return False if there is no token."""
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
