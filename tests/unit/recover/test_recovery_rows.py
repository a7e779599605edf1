"""Lossless round trip of recoveries through rows."""

from __future__ import annotations

from typing import Any, get_args

import pytest

from agentguard.detect.base import Evidence
from agentguard.errors import FormatError
from agentguard.recover.actions import (
    Compensate,
    DisableTools,
    Escalate,
    RecoveryAction,
    Reject,
    Repair,
    Restart,
    Rewind,
    Sample,
    SendMessage,
    Stop,
)
from agentguard.recover.budget import BudgetAccount, BudgetUsage, RecoveryBudget
from agentguard.recover.effect_store import Effect, EffectState
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryPlan, RecoveryTier
from agentguard.recover.recovery_rows import decode_recovery, encode_recovery, to_recovery_row

EFFECT = Effect(key="k", occurrence=1, tool="t", arguments={"a": [1]}, state=EffectState.DONE, result="r")
ACTIONS: tuple[Any, ...] = (
    SendMessage(text="x"),
    Reject(),
    Rewind(to_step=2, by="fork"),
    Compensate(effects=(EFFECT,)),
    DisableTools(tools=("a",)),
    Restart(note="n"),
    Repair(step=1, field="content", text="z"),
    Sample(n=3, quorum=2, models=("m",), temperatures=(0.5,)),
    Escalate(question="q"),
    Stop(reason="s"),
)


def recovery() -> Recovery:
    plan = RecoveryPlan(
        strategy="s",
        tier=RecoveryTier.FORK,
        actions=ACTIONS,
        step=2,
        hypothesis=1,
        codes=("agent_error:planning",),
        reason="because",
        evidence=(Evidence(step=1, field="content", quote="q", start=0, end=1),),
        undone=3,
    )
    return Recovery(
        run="r",
        id=3,
        plan=plan,
        trigger="loop",
        at_step=5,
        outcome=RecoveryOutcome.REFUTED,
        cost={"steps": 1.0},
        schemata=("x",),
        spent=BudgetUsage(rollbacks=1, tokens=7),
    )


def test_samples_cover_every_action() -> None:
    assert {type(action) for action in ACTIONS} == set(get_args(RecoveryAction))


def test_recovery_round_trips() -> None:
    assert decode_recovery(encode_recovery(recovery())) == recovery()
    assert decode_recovery(to_recovery_row(recovery()).data) == recovery()


def test_recovery_of_earlier_version_has_no_account() -> None:
    data = encode_recovery(recovery())
    del data["spent"]
    assert decode_recovery(data).spent is None


@pytest.mark.parametrize(
    "wrong",
    [
        {"plan": None},
        {"plan": {}},
        {"plan": {"actions": [{"action": "Fly"}], "tier": "fork"}},
        {"plan": {"actions": [], "tier": "deep"}},
        {"id": "three"},
        {"outcome": "perhaps"},
    ],
)
def test_invalid_recovery_error_names_the_field(wrong: dict[str, Any]) -> None:
    with pytest.raises(FormatError, match=r"recovery\."):
        decode_recovery({**encode_recovery(recovery()), **wrong})


def test_account_is_restored() -> None:
    account = BudgetAccount(RecoveryBudget(rollbacks=2, rollbacks_per_step=1))
    account.restore(BudgetUsage(rollbacks=1, tokens=5), {4: 1})
    assert account.count_rollbacks_to(4) == 1
    assert account.spend(rollback_to=4) == "rollbacks_per_step"
    assert account.spend(rollback_to=5) is None
    assert account.spend(rollback_to=6) == "rollbacks"
    assert account.usage == BudgetUsage(rollbacks=2, tokens=5)


def test_former_names_of_strategy_and_tier_are_read() -> None:
    data = encode_recovery(recovery())
    data["plan"] |= {"strategy": "hand_over", "tier": "hand_over"}
    plan = decode_recovery(data).plan
    assert (plan.strategy, plan.tier) == ("escalate", RecoveryTier.ESCALATE)
