"""Retry budget that all runs of a guard share."""

from __future__ import annotations

import threading
from typing import Final

from agentguard.resilience.clock import MONOTONIC
from agentguard.resilience.retry import RetryBudget, RetryBudgetOptions

_RESERVE: Final = 10.0


class SharedRetryBudget:
    """Thread-safe budget of at most ten retries, to which each success adds a share.

    The limit of a single run does not suffice. If a server is slow, the retries of many runs together can
    keep it slow.

    Args:
        ratio: retries that a success adds.
    """

    def __init__(self, ratio: float) -> None:
        options = RetryBudgetOptions(ratio=ratio, reserve=_RESERVE, per_second=0.0, burst=_RESERVE)
        self._budget = RetryBudget(options, MONOTONIC)
        self._lock = threading.Lock()

    def deposit(self) -> None:
        """Add the share of a success."""
        with self._lock:
            self._budget.deposit()

    def withdraw(self) -> bool:
        """Take a retry from the budget; return False if the budget is empty."""
        with self._lock:
            return self._budget.withdraw()
