"""Budget of the retried reads of all runs of a guard."""

from __future__ import annotations

import threading
from typing import Final

from agentguard.resilience.clock import MONOTONIC
from agentguard.resilience.retry_budget import RetryBudget, RetryBudgetOptions

_OPTIONS: Final = RetryBudgetOptions(ratio=0.1, reserve=10.0, per_second=0.0, burst=10.0)


class ReadRetryBudget:
    """Thread-safe budget of at most ten retries; ten reads without a fault add a retry.

    The limit of a single run does not suffice. If a server is slow, the retries of many runs together can
    keep it slow.
    """

    def __init__(self) -> None:
        self._budget = RetryBudget(_OPTIONS, MONOTONIC)
        self._lock = threading.Lock()

    def deposit(self) -> None:
        """Add the share of a read without a fault."""
        with self._lock:
            self._budget.deposit()

    def withdraw(self) -> bool:
        """Take a retry from the budget; return False if the budget is empty."""
        with self._lock:
            return self._budget.withdraw()
