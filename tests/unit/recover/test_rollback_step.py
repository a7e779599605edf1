"""Rollback horizon: the maximum distance of rollbacks."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError
from agentguard.localize.base import Hypothesis
from agentguard.recover.actions import Restart, Rewind
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.escalation_planner import EscalationPlanner, select_standing
from agentguard.recover.plan import Recovery, RecoveryPlan, RecoveryTier
from agentguard.recover.recovery_policy import build_escalation
from agentguard.recover.rollback_step import (
    GROWTH_FACTOR,
    find_first_agent_step,
    rollback_horizon,
    select_rollback_step,
)
from agentguard.recover.strategies.restart import RestartStrategy
from agentguard.trajectory.model import Source
from tests.unit.recover.situations import run, situation


def back(at: int, to: int, tier: RecoveryTier = RecoveryTier.TRUNCATE) -> Recovery:
    """Return a rollback of a branch of ``at`` steps to before step ``to``."""
    action = Restart(note="") if tier is RecoveryTier.RESTART else Rewind(to_step=to, by="truncate")
    plan = RecoveryPlan(strategy="rollback", tier=tier, actions=(action,), step=to, undone=at - to)
    return Recovery(id=at, plan=plan, trigger="exact_loop", at_step=at)


def test_new_failure_has_minimum_horizon() -> None:
    assert rollback_horizon((), 20, min_horizon=2) == 2


def test_failed_rollback_triples_the_horizon() -> None:
    history = (back(20, 18),)
    assert rollback_horizon(history, 20, min_horizon=2) == 6
    assert rollback_horizon((*history, back(20, 14)), 21, min_horizon=2) == 18


def test_progress_resets_the_horizon() -> None:
    assert rollback_horizon((back(20, 18),), 22, min_horizon=2) == 6
    assert rollback_horizon((back(20, 18),), 23, min_horizon=2) == 2


def test_restart_resets_the_horizon() -> None:
    assert rollback_horizon((back(20, 18), back(20, 0)), 20, min_horizon=2) == 2
    assert rollback_horizon((back(20, 18), back(20, 0, RecoveryTier.RESTART)), 20, min_horizon=2) == 2
    assert rollback_horizon((back(20, 1),), 20, min_horizon=2, first_agent_step=1) == 2


def test_other_recoveries_do_not_change_the_horizon() -> None:
    hint = replace(
        back(20, 18), plan=RecoveryPlan(strategy="hint", tier=RecoveryTier.HINT, actions=(), step=18)
    )
    assert rollback_horizon((hint,), 20, min_horizon=2) == 2


def hypothesis(step: int, probability: float) -> Hypothesis:
    return Hypothesis(step=step, agent="clerk", probability=probability, reason=f"step {step}")


OWN = hypothesis(19, 0.6)
STEPS = run(20).steps


def test_likeliest_step_within_horizon_is_chosen() -> None:
    ranked = [hypothesis(1, 0.3), hypothesis(14, 0.12), hypothesis(12, 0.2), hypothesis(18, 0.3)]
    assert select_rollback_step(ranked, OWN, STEPS, 4).step == 12, (
        "18 is too near and 1 beyond the next reach"
    )


def test_step_above_half_is_chosen_beyond_horizon_unless_too_near() -> None:
    assert select_rollback_step([hypothesis(1, 0.5)], OWN, STEPS, 2).step == 1
    assert select_rollback_step([hypothesis(18, 0.9)], OWN, STEPS, 4).step == 16


def test_nearest_agent_step_is_chosen_without_likely_step() -> None:
    chosen = select_rollback_step([hypothesis(14, 0.05)], OWN, STEPS, 5)
    assert (chosen.step, chosen.reason) == (15, OWN.reason)
    told = [replace(step, source=Source.USER) if step.index in (0, 15) else step for step in STEPS]
    assert select_rollback_step([], OWN, told, 5).step == 14
    assert select_rollback_step([], OWN, told, 50).step == find_first_agent_step(told) == 1


@given(
    st.lists(st.tuples(st.integers(0, 19), st.floats(0, 1)), max_size=10),
    st.integers(1, 60),
    st.integers(0, 5),
)
def test_target_is_an_agent_step_and_not_too_near(
    ranked: list[tuple[int, float]], far: int, users: int
) -> None:
    told = [replace(step, source=Source.USER) if step.index < users else step for step in STEPS]
    chosen = select_rollback_step([hypothesis(*one) for one in ranked], OWN, told, far)
    assert users <= chosen.step <= max(users, 20 - far)


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8))
def test_repeated_failures_reach_the_start(lengths: list[int]) -> None:
    history: tuple[Recovery, ...] = ()
    for _ in range(8):
        far = rollback_horizon(history, 60, min_horizon=lengths[0])
        to = max(0, 60 - far)
        history = (*history, back(60, to))
        if to == 0:
            return
        assert rollback_horizon(history, 60) >= min(60, GROWTH_FACTOR * far)
    pytest.fail("it never came to the start")


def test_regenerated_step_is_a_new_step() -> None:
    near, far = back(20, 18), back(20, 10)
    assert select_standing((near, far)) == (far,)
    assert select_standing((far, near)) == (far, near)


def test_failed_rollback_is_followed_by_a_sufficient_one() -> None:
    here = situation(5, 4, 1, budget=RecoveryBudget(rollbacks=9))
    history = (back(6, 5),)
    decision = EscalationPlanner(build_escalation("rollback", trigger="x"), max_hypotheses=3).plan(
        replace(here, past_recoveries=history), "x"
    )
    assert decision.plan is not None
    assert decision.plan.step == 1
    assert ("rollback", 1, "a rollback to that step did not help") in decision.rejections


def test_number_of_restarts_follows_the_policy() -> None:
    budget = RecoveryBudget(rollbacks=9, rollbacks_per_step=9)
    for times in (1, 3):
        planner, here = (
            EscalationPlanner(build_escalation({"restart": {"times": times}}, trigger="x")),
            situation(2, budget=budget),
        )
        for count in range(times + 1):
            plan = planner.plan(here, "x").plan
            assert (plan is not None) == (count < times)
            if plan is not None:
                made = Recovery(id=count, plan=plan, trigger="x", at_step=6)
                here = replace(here, past_recoveries=(*here.past_recoveries, made))


@pytest.mark.parametrize("options", [{"times": 0}, {"times": True}, {"times": "2"}, {"time": 2}])
def test_invalid_number_of_restarts_is_a_config_error(options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match="restart"):
        RestartStrategy(**options)  # type: ignore[arg-type]
