"""The planner escalates, tries the next hypothesis, and stays within the budget."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError
from agentguard.localize.base import Diagnosis
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.escalation_planner import EscalationPlanner, compute_plan_cost
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryPlan, RecoveryTier
from agentguard.recover.strategy import RecoveryContext, strategies
from agentguard.verdict import Verdict
from tests.unit.recover.situations import situation

RUNGS = ("hint", "rollback", "restart", "stop")


def planner(*names: str, **more: object) -> EscalationPlanner:
    return EscalationPlanner([strategies().get(name)() for name in names or RUNGS], **more)  # type: ignore[arg-type]


def after(
    here: RecoveryContext, plan: RecoveryPlan, outcome: RecoveryOutcome = RecoveryOutcome.REFUTED
) -> RecoveryContext:
    assert here.account.spend(**compute_plan_cost(plan)) is None, "a plan that is chosen can be paid"
    done = Recovery(
        id=len(here.past_recoveries),
        plan=plan,
        trigger="exact_loop",
        at_step=here.last_step + 1,
        outcome=outcome,
    )
    return replace(here, past_recoveries=(*here.past_recoveries, done))


def climb(here: RecoveryContext, chosen: EscalationPlanner) -> list[tuple[str, int]]:
    """Return strategies and steps in their order, if none of them helps."""
    taken = []
    for _ in range(20):
        plan = chosen.plan(here, "exact_loop").plan
        if plan is None:
            break
        taken.append((plan.strategy, plan.step))
        here = after(here, plan)
        if plan.tier is RecoveryTier.STOP:
            break
    return taken


def test_every_hypothesis_is_tried_before_escalation() -> None:
    budget = RecoveryBudget(rollbacks=10, hints=10)
    assert climb(situation(4, 2, 3, budget=budget), planner()) == [
        ("hint", 4),
        ("rollback", 4),
        ("rollback", 2),
        ("rollback", 3),
        ("restart", 4),
        ("stop", 4),
    ]


def test_only_the_top_k_hypotheses_are_tried() -> None:
    taken = climb(
        situation(4, 2, 3, 1, budget=RecoveryBudget(rollbacks=10)),
        planner("rollback", "stop", max_hypotheses=2),
    )
    assert taken == [("rollback", 4), ("rollback", 2), ("stop", 4)]


def test_exhausted_budget_is_named_and_stops() -> None:
    here = situation(4, 2, budget=RecoveryBudget(rollbacks=1))
    first = planner("rollback", "stop").plan(here).plan
    assert first is not None
    decision = planner("rollback", "stop").plan(after(here, first))
    assert decision.plan is not None
    assert decision.plan.tier is RecoveryTier.STOP
    assert ("rollback", 1, "would exceed the budget 'rollbacks'") in decision.rejections


def test_confirmed_strategy_may_be_repeated() -> None:
    here = situation(4, budget=RecoveryBudget(rollbacks=5, rollbacks_per_step=5))
    plan = planner("rollback").plan(here).plan
    assert plan is not None
    again = planner("rollback").plan(after(here, plan, RecoveryOutcome.CONFIRMED)).plan
    assert again is not None
    assert planner("rollback").plan(after(here, plan, RecoveryOutcome.PENDING)).plan is None


def test_detector_may_have_its_own_escalation() -> None:
    own = planner("hint", escalations={"exact_loop": [strategies().get("stop")()]})
    here = situation(4)
    assert own.plan(here, "exact_loop").plan.strategy == "stop"  # type: ignore[union-attr]
    assert own.plan(here, "goal_drift").plan.strategy == "hint"  # type: ignore[union-attr]


def test_no_hypothesis_gives_no_plan() -> None:
    nothing = Diagnosis(trajectory_id="r", method="test", verdict=Verdict.UNDECIDED, probability=0.5)
    decision = planner().plan(situation(diagnosis=nothing))
    assert decision.plan is None
    assert decision.rejections


@pytest.mark.parametrize("wrong", [{"max_hypotheses": 0}, {"escalations": {"exact_loop": []}}])
def test_invalid_escalation_is_an_error(wrong: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="recover"):
        planner("stop", **wrong)
    with pytest.raises(ConfigError, match="of all is empty"):
        EscalationPlanner([])


@given(
    st.lists(st.integers(0, 5), min_size=1, max_size=6, unique=True),
    st.integers(0, 4),
    st.integers(0, 3),
)
def test_planning_terminates_within_budget(steps: list[int], rollbacks: int, hints: int) -> None:
    here = situation(*steps, budget=RecoveryBudget(rollbacks=rollbacks, hints=hints, rollbacks_per_step=1))
    taken = climb(here, planner(max_hypotheses=6))
    assert taken[-1][0] == "stop"
    assert here.account.usage.rollbacks <= rollbacks
    assert here.account.usage.hints <= hints
    assert len(set(taken)) == len(taken)
