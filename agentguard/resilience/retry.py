"""Try again: at most so many times, only what may be, with jitter, under a budget, when the server allows."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agentguard.errors import ConfigError, DeadlineExceeded, ResilienceError, RetriesExhausted
from agentguard.resilience.base import RETRYABLE_STATUSES, Response, Runtime, Send, is_retryable
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.options import SECONDS, StrategyOptions, check_ranges
from agentguard.resilience.retry_budget import RetryBudget, RetryBudgetOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff(StrategyOptions):
    """Waits before the second, third, ... attempt.

    Attributes:
        initial_delay_s: bound of the first wait, in seconds.
        factor: by how much the bound grows with each attempt.
        max_delay_s: largest bound.
        jitter: share of the bound that is random: 1 is full jitter, 0 none (for tests).
    """

    name: ClassVar[str] = "backoff"

    initial_delay_s: float = 0.2
    factor: float = 2.0
    max_delay_s: float = 10.0
    jitter: float = 1.0

    def __post_init__(self) -> None:
        check_ranges(
            self, initial_delay_s=SECONDS, factor=(1.0, 10.0), max_delay_s=SECONDS, jitter=(0.0, 1.0)
        )
        if self.max_delay_s < self.initial_delay_s:
            raise ConfigError(
                f"Backoff.max_delay_s must be at least initial_delay_s ({self.initial_delay_s:g}), not {self.max_delay_s:g}"
            )

    def compute_max_delay(self, failed_attempts: int) -> float:
        """The longest wait after so many failed attempts (from 1), in seconds."""
        return min(self.max_delay_s, self.initial_delay_s * self.factor ** min(failed_attempts - 1, 64))

    def sample_delay(self, failed_attempts: int, rng: random.Random) -> float:
        """A wait after so many failed attempts (from 1), in seconds."""
        bound = self.compute_max_delay(failed_attempts)
        return bound - self.jitter * bound * rng.random()


_BUDGET_EXHAUSTED = "no retry left in the budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(StrategyOptions):
    """Options of retries.

    Attributes:
        max_attempts: most attempts of a request, the first one included.
        backoff: the waits between them, where the server does not say.
        budget: most retries, as a share of the requests of all callers together.
        statuses: HTTP statuses after which another attempt may help.
    """

    name: ClassVar[str] = "retry"

    max_attempts: int = 3
    backoff: Backoff = field(default_factory=Backoff)
    budget: RetryBudgetOptions = field(default_factory=RetryBudgetOptions)
    statuses: frozenset[int] = RETRYABLE_STATUSES

    def __post_init__(self) -> None:
        check_ranges(self, max_attempts=(1, 10))
        wrong = sorted(s for s in self.statuses if not 400 <= s <= 599)
        if wrong:
            raise ConfigError(f"Retry.statuses must be from 400 to 599, not {wrong}")

    def build(self, inner: Send, runtime: Runtime) -> Retrier:
        """Make the working part."""
        return Retrier(self, inner, runtime)


class Retrier:
    """Sends until it works or may not be tried again.

    An error that no retry could help with passes unchanged; after one that a retry could have helped with,
    `RetriesExhausted` says why there was none.
    """

    def __init__(self, options: Retry, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime
        self.budget = RetryBudget(options.budget, runtime.clock)

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send, wait and send again, within the deadline."""
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
                # Taken with no await before the next attempt, so that a cancelled wait can't lose a token.
                self._raise_if_stopped(None if self.budget.withdraw() else _BUDGET_EXHAUSTED, error, attempt)
            attempt += 1

    def _compute_delay(self, error: ResilienceError, attempt: int) -> float:
        """Seconds to the next attempt: what the server asked for, with some jitter on top, or our own."""
        own = self._options.backoff.sample_delay(attempt, self._runtime.rng)
        asked = error.retry_after_s
        # Nobody who was asked to wait comes early; spread, so that not all come back in the same instant.
        return own if asked is None else asked + min(own, 0.1 * asked)

    def _find_stop_reason(
        self, error: ResilienceError, attempt: int, delay_s: float, deadline: Deadline
    ) -> str | None:
        """Why there is no other attempt, None if there is one."""
        if error.retry_after_s is not None and error.retry_after_s < 0:
            return "the server asked not to be tried again"
        if attempt >= self._options.max_attempts:
            return "no attempt left"
        if delay_s >= deadline.remaining():
            return "the next attempt would come after the deadline"
        return None if self.budget.has_tokens else _BUDGET_EXHAUSTED

    def _raise_if_stopped(self, reason: str | None, error: ResilienceError, attempt: int) -> None:
        if reason is not None:
            self._runtime.emit_event(EventKind.GAVE_UP, self._options.name, reason=reason, attempt=attempt)
            raise RetriesExhausted(reason, attempts=attempt, last=error) from error


def _is_deadline_over(error: ResilienceError, deadline: Deadline) -> bool:
    """Whether the time for all attempts is up, and not only that for this one."""
    return isinstance(error, DeadlineExceeded) and deadline.is_expired
