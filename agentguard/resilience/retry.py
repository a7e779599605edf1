"""Retries: limited in number, with jitter, under a budget, and not before the server's delay.

The budget for extra requests is a share of ordinary ones, so that retries cannot amplify an outage. It is a
token bucket after gRPC's retry throttling (A6) and Finagle's RetryBudget. Each request deposits a fraction of
a token, and each extra request withdraws one. Time refills a small reserve, so that a client with few
requests may retry. `agentguard.resilience.base.is_retryable` decides which errors qualify.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agentguard.errors import ConfigError, DeadlineExceeded, ResilienceError, RetriesExhausted
from agentguard.options import RATIO, SECONDS, Options, option
from agentguard.resilience.base import RETRYABLE_STATUSES, Response, Runtime, Send, is_retryable
from agentguard.resilience.clock import Clock
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff(Options):
    """Delays between attempts: exponential backoff with jitter.

    Attributes:
        initial_delay_s: upper bound of the first delay, in seconds.
        factor: growth of the upper bound per attempt.
        max_delay_s: largest upper bound.
        jitter: random share of the delay; 1 means full jitter, 0 means none (for tests).
    """

    name: ClassVar[str] = "backoff"

    initial_delay_s: float = option(0.2, bounds=SECONDS)
    factor: float = option(2.0, bounds=(1.0, 10.0))
    max_delay_s: float = option(10.0, bounds=SECONDS)
    jitter: float = option(1.0, bounds=RATIO)

    def check_consistency(self) -> None:
        """Check that the largest delay is not below the first one."""
        if self.max_delay_s < self.initial_delay_s:
            raise ConfigError(
                "Backoff.max_delay_s must be at least initial_delay_s "
                f"({self.initial_delay_s:g}), not {self.max_delay_s:g}"
            )

    def compute_max_delay(self, failed_attempts: int) -> float:
        """Return the upper bound of the delay after ``failed_attempts`` attempts (from 1), in seconds."""
        return min(self.max_delay_s, self.initial_delay_s * self.factor ** min(failed_attempts - 1, 64))

    def sample_delay(self, failed_attempts: int, rng: random.Random) -> float:
        """Return a random delay after ``failed_attempts`` attempts (from 1), in seconds."""
        max_delay = self.compute_max_delay(failed_attempts)
        return max_delay - self.jitter * max_delay * rng.random()


_BUDGET_EXHAUSTED = "the retry budget is used up"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryOptions(Options):
    """Options of retries.

    Attributes:
        max_attempts: maximum number of attempts of a request, including the first.
        backoff: delays between attempts, if the server sends no delay.
        budget: upper bound on retries, as a share of the requests of all callers together.
        statuses: HTTP statuses after which a retry may succeed.
    """

    name: ClassVar[str] = "retry"

    max_attempts: int = option(3, bounds=(1, 10))
    backoff: Backoff = field(default_factory=Backoff)
    budget: RetryBudgetOptions = field(default_factory=RetryBudgetOptions)
    statuses: frozenset[int] = RETRYABLE_STATUSES

    def check_consistency(self) -> None:
        """Check that all statuses are errors."""
        invalid_statuses = sorted(s for s in self.statuses if not 400 <= s <= 599)
        if invalid_statuses:
            raise ConfigError(f"RetryOptions.statuses must be from 400 to 599, not {invalid_statuses}")

    def build(self, inner: Send, runtime: Runtime) -> Retry:
        """Bind the strategy to the ``send`` of the next one."""
        return Retry(self, inner, runtime)


class Retry:
    """Strategy that sends a request until it succeeds or may not be retried.

    An error that is not retryable is raised unchanged. After a retryable error, `RetriesExhausted` gives the
    reason for the missing retry.
    """

    def __init__(self, options: RetryOptions, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime
        self.budget = RetryBudget(options.budget, runtime.clock)

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send the request, and retry within the deadline."""
        self.budget.deposit()
        attempt = 1
        while True:
            try:
                return await self._inner(request, deadline)
            except ResilienceError as error:
                if not is_retryable(error, request, self._options.statuses) or _is_deadline_over(
                    error, deadline
                ):
                    raise
                wait = self._compute_delay(error, attempt)
                self._raise_if_stopped(self._find_stop_reason(error, attempt, wait, deadline), error, attempt)
                self._runtime.emit_event(
                    EventKind.RETRY, self._options.name, reason=error.code, attempt=attempt, seconds=wait
                )
                await self._runtime.clock.sleep(wait)
                # No await between the withdrawal and the next attempt: a cancelled wait cannot lose a token.
                self._raise_if_stopped(None if self.budget.withdraw() else _BUDGET_EXHAUSTED, error, attempt)
            attempt += 1

    def _compute_delay(self, error: ResilienceError, attempt: int) -> float:
        """Return the seconds until the next attempt: the server's delay with some jitter, or the backoff."""
        backoff_s = self._options.backoff.sample_delay(attempt, self._runtime.rng)
        retry_after_s = error.retry_after_s
        # Never retry before the server's delay; the jitter keeps clients from retrying at the same instant.
        return backoff_s if retry_after_s is None else retry_after_s + min(backoff_s, 0.1 * retry_after_s)

    def _find_stop_reason(
        self, error: ResilienceError, attempt: int, delay_s: float, deadline: Deadline
    ) -> str | None:
        """Return the reason to stop retrying; None for another attempt."""
        if error.retry_after_s is not None and error.retry_after_s < 0:
            return "the server forbids a retry"
        if attempt >= self._options.max_attempts:
            return "all attempts are used"
        if delay_s >= deadline.remaining():
            return "the next attempt would come after the deadline"
        return None if self.budget.has_tokens else _BUDGET_EXHAUSTED

    def _raise_if_stopped(self, reason: str | None, error: ResilienceError, attempt: int) -> None:
        if reason is not None:
            self._runtime.emit_event(EventKind.GAVE_UP, self._options.name, reason=reason, attempt=attempt)
            raise RetriesExhausted(reason, attempts=attempt, last=error) from error


def _is_deadline_over(error: ResilienceError, deadline: Deadline) -> bool:
    """Return whether the deadline of all attempts has passed, not only the timeout of this attempt."""
    return isinstance(error, DeadlineExceeded) and deadline.is_expired
