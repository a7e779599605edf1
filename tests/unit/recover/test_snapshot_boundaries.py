"""Forks with sparse snapshots: their target, their message, and their verification."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentguard.detect.base import Finding
from agentguard.recover.actions import Compensate, Rewind, SendMessage
from agentguard.recover.capabilities import Capabilities
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.effect_store import Effect
from agentguard.recover.outcome_verification import OutcomeVerification, get_plan_resume_step
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryPlan, RecoveryTier
from agentguard.recover.strategies.rollback import CompensateStrategy, RollbackStrategy
from agentguard.trajectory.model import Source, Step, Trajectory
from tests.unit.recover.situations import ALL, TOOLS, situation

FORKS = Capabilities(fork=True, compensate=True)


def rewind(plan: RecoveryPlan | None) -> tuple[int, str]:
    assert plan is not None
    (found,) = [action for action in plan.actions if isinstance(action, Rewind)]
    return found.to_step, found.by


def text(plan: RecoveryPlan | None) -> str:
    assert plan is not None
    return next(action.text for action in plan.actions if isinstance(action, SendMessage))


def booked(*seats: int) -> EffectLedger:
    ledger = EffectLedger(tools=TOOLS)
    for seat in seats:
        claim = ledger.claim_call("book", {"seat": seat}, step=seat)
        ledger.mark_done(claim.effect, "yours")
    return ledger


@pytest.mark.parametrize(
    ("saved", "back", "undone"),
    [(None, 4, 2), ((0, 1, 2, 3, 4, 5), 4, 2), ((0, 3, 5), 3, 3), ((1,), 1, 5), ((0, 4), 4, 2)],
)
def test_fork_goes_to_nearest_boundary_at_or_before_the_step(
    saved: tuple[int, ...] | None, back: int, undone: int
) -> None:
    plan = RollbackStrategy(prefer="fork").plan(situation(4, restorable_steps=saved))
    assert rewind(plan) == (back, "fork")
    assert plan is not None
    assert (plan.step, plan.undone, plan.tier) == (4, undone, RecoveryTier.FORK)


def test_fork_without_earlier_snapshot_falls_back_to_truncation() -> None:
    given = situation(4, restorable_steps=(5,))
    assert rewind(RollbackStrategy(prefer="fork").plan(given)) == (4, "truncate")
    assert RollbackStrategy(prefer="fork").plan(replace(given, capabilities=FORKS)) is None


def test_truncation_ignores_snapshots() -> None:
    assert rewind(RollbackStrategy().plan(situation(4, restorable_steps=()))) == (4, "truncate")


def test_hint_names_the_step_and_effects_since_the_boundary() -> None:
    ledger = booked(0, 1, 2, 3, 4, 5)
    said = text(RollbackStrategy(prefer="fork").plan(situation(4, restorable_steps=(2,), ledger=ledger)))
    assert "because step 3 after this point led to a failure" in said
    assert [f'"seat":{seat}' in said for seat in range(6)] == [False, False, True, True, True, True]
    near = text(RollbackStrategy(prefer="fork").plan(situation(4, ledger=ledger)))
    assert "because the step after this point led to a failure" in near
    assert '"seat":3' not in near


def test_effects_are_undone_from_the_boundary_on() -> None:
    plan = CompensateStrategy(prefer="fork").plan(
        situation(4, restorable_steps=(2,), ledger=booked(1, 2, 3, 4, 5), capabilities=FORKS)
    )
    assert plan is not None
    (undoes,) = [action for action in plan.actions if isinstance(action, Compensate)]
    assert [effect.arguments["seat"] for effect in undoes.effects] == [5, 4, 3, 2]
    assert plan.undone == 4


def build_trajectory(length: int) -> Trajectory:
    steps = (
        Step(index=i, source=Source.ENVIRONMENT, agent="tool", content=f"result {i}") for i in range(length)
    )
    return Trajectory(id="r", format="event_log", task="t", steps=tuple(steps))


def test_fork_is_confirmed_only_after_the_failed_step() -> None:
    plan = RecoveryPlan(
        strategy="rollback", tier=RecoveryTier.FORK, actions=(Rewind(to_step=2, by="fork"),), step=8, undone=8
    )
    given = Recovery(id=0, plan=plan, trigger="loop", at_step=10)
    verify = OutcomeVerification(window=3)
    again = Finding(detector="loop", step=9, codes=("c",), probability=1.0, message="")
    assert verify.determine_outcome(given, (), build_trajectory(10)) is RecoveryOutcome.PENDING
    assert verify.determine_outcome(given, (), build_trajectory(11)) is RecoveryOutcome.CONFIRMED
    assert verify.determine_outcome(given, (again,), build_trajectory(10)) is RecoveryOutcome.REFUTED
    assert get_plan_resume_step(plan, default=5) == 2
    assert get_plan_resume_step(replace(plan, actions=()), default=5) == 5


@pytest.mark.parametrize("can", [ALL, FORKS])
def test_unknown_boundaries_default_to_all_steps(can: Any) -> None:
    assert situation(3, capabilities=can).find_restorable_step(3) == 3
    assert situation(3, capabilities=can, restorable_steps=()).find_restorable_step(3) is None


def test_effects_have_their_step() -> None:
    ledger = booked(4)
    assert [effect.step for effect in ledger.list_active_since(0) if isinstance(effect, Effect)] == [4]
