"""A run cannot exceed its recovery budget."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from agentguard.errors import ConfigError
from agentguard.recover.budget import BudgetAccount, RecoveryBudget


@pytest.mark.parametrize(
    "limits",
    [{"rollbacks": -1}, {"rollbacks_per_step": 1.5}, {"seconds": float("nan")}, {"extra_tokens": True}],
)
def test_limits_are_validated(limits: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=next(iter(limits))):
        RecoveryBudget(**limits)  # type: ignore[arg-type]


def test_exhausted_rollbacks_refuse_without_spending() -> None:
    account = BudgetAccount(RecoveryBudget(rollbacks=2, rollbacks_per_step=1))
    assert account.spend(rollback_to=3) is None
    assert account.spend(rollback_to=3) == "rollbacks_per_step"
    assert account.spend(rollback_to=1) is None
    assert account.spend(rollback_to=0) == "rollbacks"
    assert (account.usage.rollbacks, account.count_rollbacks_to(3), account.count_rollbacks_to(0)) == (
        2,
        1,
        0,
    )


def test_spent_tokens_time_and_calls_forbid_more() -> None:
    account = BudgetAccount(RecoveryBudget(extra_tokens=100, extra_calls=5, seconds=1.0))
    account.charge(tokens=99, calls=4, seconds=0.9)
    assert account.find_exceeded_limit() is None
    account.charge(tokens=-50)
    assert account.usage.tokens == 99
    account.charge(tokens=1)
    assert account.spend(hint=True) == "extra_tokens"
    assert account.usage.hints == 0


def test_unlimited_budget_refuses_nothing() -> None:
    account = BudgetAccount(
        RecoveryBudget(rollbacks=None, rollbacks_per_step=None, hints=None, extra_tokens=None)
    )
    assert all(account.spend(rollback_to=0, hint=True) is None for _ in range(100))


def test_threads_cannot_overspend() -> None:
    account = BudgetAccount(RecoveryBudget(rollbacks=50, rollbacks_per_step=None))
    with ThreadPoolExecutor(8) as pool:
        taken = list(pool.map(lambda i: account.spend(rollback_to=i % 3), range(400)))
    assert taken.count(None) == account.usage.rollbacks == 50
