"""Limits of one API key, or of all keys of one tenant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from agentguard_server.proxy.auth.shared_counters import CounterRow, SharedCounters
from agentguard_server.proxy.config.schema import ClientLimits
from agentguard_server.proxy.errors import ProxyError

if TYPE_CHECKING:
    from agentguard.trajectory.model import Usage
    from agentguard_server.proxy.auth.spending_ledger import SpendingLedger

_CONCURRENCY_RETRY_AFTER_S: Final = 1.0
_NO_RETRY: Final = -1.0


class ClientLimit:
    """Limits of one key or tenant, on its row of the shared counters.

    Args:
        limits: configured limits.
        row: counters of the key or tenant.
        subject: name of the key or tenant in the spending ledger.
        spending: ledger, if there is a budget.

    Attributes:
        is_metered: True if a limit counts the tokens that requests use.
        has_budget: True if the limits have a budget.
    """

    __slots__ = (
        "_budget",
        "_max_concurrent",
        "_requests_per_minute",
        "_row",
        "_spending",
        "_subject",
        "_tokens_per_minute",
        "has_budget",
        "is_metered",
    )  # fmt: skip

    def __init__(
        self, limits: ClientLimits, row: CounterRow, *, subject: str, spending: SpendingLedger | None
    ) -> None:
        self._row, self._subject, self._spending = row, subject, spending
        self._budget = limits.budget
        self._max_concurrent = _scale_limit(limits.max_concurrent, row.share)
        self._requests_per_minute = _scale_limit(limits.requests_per_minute, row.share)
        self._tokens_per_minute = _scale_limit(limits.tokens_per_minute, row.share)
        self.has_budget = self._budget is not None
        self.is_metered = self.has_budget or limits.tokens_per_minute is not None

    def acquire_slot(self) -> None:
        """Count a request in flight. Raises ProxyError with status 429 at the limit."""
        if self._max_concurrent is not None and not self._row.acquire(self._max_concurrent):
            raise _build_refusal("max_concurrent", _CONCURRENCY_RETRY_AFTER_S)

    def release_slot(self) -> None:
        """End a request in flight."""
        if self._max_concurrent is not None:
            self._row.release()

    def check(self, now: float) -> None:
        """Raise ProxyError with status 429 if a rate or the budget allows no request now."""
        self._check_budget()
        if self._requests_per_minute is not None and (
            wait := self._row.requests.compute_wait(now, self._requests_per_minute)
        ):
            raise _build_refusal("requests_per_minute", wait)
        if self._tokens_per_minute is not None and (
            wait := self._row.tokens.compute_wait(now, self._tokens_per_minute)
        ):
            raise _build_refusal("tokens_per_minute", wait)

    def _check_budget(self) -> None:
        budget, spending = self._budget, self._spending
        if budget is None or spending is None:
            return
        if spending.get_spent(self._subject, budget.period) >= budget.max_usd:
            wait = spending.compute_reset_s(budget.period)
            until = "" if wait is None else f"; the next {budget.period} begins in {wait:.0f} s"
            raise ProxyError(
                429,
                "insufficient_quota",
                f"this key or its tenant has spent its budget{until}",
                retry_after_s=_NO_RETRY,
            )

    def count_request(self, now: float) -> None:
        """Count a request for its rate."""
        if self._requests_per_minute is not None:
            self._row.requests.add(now, self._requests_per_minute)

    def charge(self, now: float, usage: Usage) -> None:
        """Count the tokens of a request, and their cost, at clock time ``now``."""
        if self._tokens_per_minute is not None:
            tokens = (usage.prompt_tokens or 0) + (usage.completion_tokens or 0)
            self._row.tokens.add(now, self._tokens_per_minute, tokens)
        if self._budget is not None and self._spending is not None and usage.cost_usd:
            self._spending.add(self._subject, self._budget.period, usage.cost_usd)


def create_limits(
    subject: str, limits: ClientLimits, counters: SharedCounters, spending: SpendingLedger | None
) -> tuple[ClientLimit, ...]:
    """Return the limits of a key or tenant as a tuple of one, or an empty tuple if nothing is limited."""
    if limits == ClientLimits():
        return ()
    row = counters.find_or_create(subject.encode())
    return (ClientLimit(limits, row, subject=subject, spending=spending),)


def _build_refusal(limit: str, retry_after_s: float) -> ProxyError:
    return ProxyError(
        429,
        "rate_limit_exceeded",
        f"this key or its tenant has reached its limit {limit}",
        retry_after_s=retry_after_s,
    )


def _scale_limit(limit: int | None, share: float) -> int | None:
    return None if limit is None else max(1, round(limit * share))
