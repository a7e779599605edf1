"""Try again: at most so many times, only what may be, with jitter, under a budget, when the server allows."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from agentguard.errors import ConfigError, DeadlineExceeded, ResilienceError, RetriesExhausted
from agentguard.resilience.backoff import Backoff
from agentguard.resilience.base import RETRYABLE, Response, Runtime, Send, retryable
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.options import StrategyOptions, check
from agentguard.resilience.retry_budget import BudgetOptions, RetryBudget

_SPENT = "no retry left in the budget"


@dataclass(frozen=True, slots=True, kw_only=True)
class Retry(StrategyOptions):
    """Options of retries.

    Attributes:
        attempts: most attempts of a request, the first one included.
        backoff: the waits between them, where the server does not say.
        budget: most retries, as a share of the requests of all callers together.
        statuses: HTTP statuses after which another attempt may help.
    """

    name: ClassVar[str] = "retry"

    attempts: int = 3
    backoff: Backoff = field(default_factory=Backoff)
    budget: BudgetOptions = field(default_factory=BudgetOptions)
    statuses: frozenset[int] = RETRYABLE

    def __post_init__(self) -> None:
        check(self, attempts=(1, 10))
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
                if not retryable(error, request, self._options.statuses) or _over(error, deadline):
                    raise
                wait = self._wait(error, attempt)
                self._refuse(self._why_not(error, attempt, wait, deadline), error, attempt)
                self._runtime.tell(
                    EventKind.RETRY, self._options.name, reason=error.code, attempt=attempt, seconds=wait
                )
                await self._runtime.clock.sleep(wait)
                # Taken with no await before the next attempt, so that a cancelled wait can't lose a token.
                self._refuse(None if self.budget.withdraw() else _SPENT, error, attempt)
            attempt += 1

    def _wait(self, failed: ResilienceError, attempt: int) -> float:
        """Seconds to the next attempt: what the server asked for, with some jitter on top, or our own."""
        own = self._options.backoff.wait(attempt, self._runtime.rng)
        asked = failed.retry_after_s
        # Nobody who was asked to wait comes early; spread, so that not all come back in the same instant.
        return own if asked is None else asked + min(own, 0.1 * asked)

    def _why_not(self, failed: ResilienceError, attempt: int, wait: float, deadline: Deadline) -> str | None:
        """Why there is no other attempt, None if there is one."""
        if failed.retry_after_s is not None and failed.retry_after_s < 0:
            return "the server asked not to be tried again"
        if attempt >= self._options.attempts:
            return "no attempt left"
        if wait >= deadline.remaining():
            return "the next attempt would come after the deadline"
        return None if self.budget.available else _SPENT

    def _refuse(self, reason: str | None, failed: ResilienceError, attempt: int) -> None:
        if reason is not None:
            self._runtime.tell(EventKind.GAVE_UP, self._options.name, reason=reason, attempt=attempt)
            raise RetriesExhausted(reason, attempts=attempt, last=failed) from failed


def _over(failed: ResilienceError, deadline: Deadline) -> bool:
    """Whether the time for all attempts is up, and not only that for this one."""
    return isinstance(failed, DeadlineExceeded) and deadline.expired
