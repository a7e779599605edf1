"""Strategies that request candidates, and call repair: their plans and the supported options."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentguard.errors import ConfigError, RecoveryError
from agentguard.recover.actions import Repair, Rewind, Sample, SendMessage
from agentguard.recover.budget import BudgetAccount, RecoveryBudget
from agentguard.recover.effect_ledger import EffectLedger
from agentguard.recover.escalation_planner import EscalationPlanner, compute_plan_cost
from agentguard.recover.plan import Recovery, RecoveryOutcome, RecoveryPlan, RecoveryTier
from agentguard.recover.recovery_policy import RecoveryPolicy, build_escalation
from agentguard.recover.selective_redundancy import SelectiveRedundancy
from agentguard.recover.strategy import RecoveryContext, strategies
from agentguard.recover.tool_effects import EffectClass, ToolEffect
from agentguard.trajectory.model import Observation, Source, Step, ToolCall
from tests.unit.recover.situations import ALL, run, situation


def made(name: str, **options: Any) -> Any:
    return strategies().get(name)(**options)


def proposed(**changes: Any) -> RecoveryContext:
    return situation(5, is_committed=False, **changes)


def test_vote_on_proposed_turn_needs_no_rollback() -> None:
    plan = made("vote").plan(proposed())
    assert plan.actions == (Sample(n=3, quorum=2),)
    assert (plan.tier, plan.undone) == (RecoveryTier.REJECT, 0)
    assert compute_plan_cost(plan) == {"samples": 2}


def test_vote_on_committed_step_rolls_back_first() -> None:
    plan = made("vote", n=5, quorum=4).plan(situation(2))
    rewind, told, sample = plan.actions
    assert rewind == Rewind(to_step=2, by="truncate")
    assert isinstance(told, SendMessage)
    assert sample == Sample(n=5, quorum=4)
    assert compute_plan_cost(plan) == {"samples": 4, "rollback_to": 2}
    assert made("vote").plan(situation(2, capabilities=replace(ALL, truncate=False, fork=False))) is None


def test_other_models_vote_with_the_turn_of_the_agent() -> None:
    plan = made("n_version", models=["a", "b"]).plan(proposed())
    assert plan.actions == (Sample(n=3, quorum=2, models=("a", "b")),)
    assert plan.tier is RecoveryTier.SUBSTITUTE


def test_recovery_block_tries_as_often_as_its_longest_list() -> None:
    sample = made("recovery_block", models=["a"], prompts=["x", "y"], temperatures=[0, 0.5, 1]).sample
    assert (sample.n, sample.quorum) == (4, 1)
    assert [v.instruction for v in sample.build_variants()] == ["x", "y", "x"]
    assert made("recovery_block").sample.n == 2
    assert made("recovery_block", tries=5).sample.n == 6


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("vote", {"n": 1}),
        ("vote", {"n": 16}),
        ("vote", {"n": 4, "quorum": 2}),
        ("vote", {"n": 3, "quorum": 4}),
        ("vote", {"n": True}),
        ("vote", {"ignore": "note"}),
        ("n_version", {}),
        ("n_version", {"models": "large"}),
        ("n_version", {"models": [""]}),
        ("n_version", {"models": ["a", "b"], "quorum": 1}),
        ("recovery_block", {"tries": 0}),
        ("recovery_block", {"temperatures": [3]}),
        ("recovery_block", {"accept": "yes"}),
        ("roll_forward", {"acts_from": 0}),
        ("roll_forward", {"repair": "yes"}),
    ],
)
def test_invalid_option_is_an_error(name: str, options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=name):
        made(name, **options)


def wrong(*calls: ToolCall) -> RecoveryContext:
    steps = run().steps
    return proposed(run=replace(run(), steps=(*steps[:-1], replace(steps[-1], tool_calls=calls))))


def test_roll_forward_repairs_calls_of_proposed_turn() -> None:
    here = wrong(ToolCall(id="c", name="Book", arguments={"seat": "4"}))
    plan = made("roll_forward").plan(here)
    assert (plan.tier, plan.undone, compute_plan_cost(plan)) == (RecoveryTier.REPAIR, 0, {"repair": True})
    name, arguments, told = plan.actions
    assert name == Repair(step=5, field="tool_calls[0].name", text="book")
    assert arguments == Repair(step=5, field="tool_calls[0]", text='{"seat":4}')
    assert 'seat was changed from "4" to 4' in told.text
    assert made("roll_forward", calls=False).plan(here) is None
    assert made("roll_forward").plan(replace(here, is_committed=True)) is None
    assert made("roll_forward").plan(proposed()) is None, "nothing is wrong that the schema tells of"


def test_custom_repair_takes_priority_and_is_checked() -> None:
    def repair(field: str, text: str = "x") -> Any:
        return made("roll_forward", repair=lambda trajectory, held: (field, text))

    seen = replace(run().steps[2], observations=(Observation(content="503"),))
    committed = situation(2, run=replace(run(), steps=(*run().steps[:2], seen, *run().steps[3:])))
    plan = repair("observations[0]", "seat 4").plan(committed)
    assert plan.actions[0] == Repair(step=2, field="observations[0]", text="seat 4")
    assert repair("content").plan(proposed()).actions[0].field == "content"
    for strategy, here in (
        (repair("content"), committed),
        (repair("tool_calls[0]", "{}"), committed),
        (repair("observations[0]"), proposed()),
    ):
        assert strategy.plan(here) is None, "not at this point"
    for strategy, here in (
        (repair("observations[1]"), committed),
        (repair("tool_calls[0]", "no JSON"), proposed()),
    ):
        with pytest.raises(RecoveryError, match="repair"):
            strategy.plan(here)


def test_default_repair_is_used_without_custom_one() -> None:
    here = proposed(repair_function=lambda trajectory, held: ("content", f"step {held.step}"))
    assert made("roll_forward").plan(here).actions[0].text == "step 5"
    assert made("roll_forward", repair=lambda *_: None).plan(here) is None


def planned(planner: EscalationPlanner, here: RecoveryContext, **more: Any) -> RecoveryPlan | None:
    return planner.plan(here, "t", **more).plan


def after(plan: RecoveryPlan, outcome: RecoveryOutcome) -> Recovery:
    return Recovery(id=0, plan=plan, trigger="t", at_step=5, outcome=outcome)


def test_failed_vote_is_not_repeated_on_the_same_turn() -> None:
    planner = EscalationPlanner(
        build_escalation(["vote", {"n_version": {"models": ["a"]}}, "reprompt"], trigger="t")
    )
    history: tuple[Recovery, ...] = ()
    for expected in ("vote", "n_version", "reprompt", "vote"):
        plan = planned(planner, proposed(past_recoveries=history))
        assert plan is not None
        assert plan.strategy == expected
        outcome = RecoveryOutcome.PENDING if expected == "reprompt" else RecoveryOutcome.REFUTED
        history = (*history, after(plan, outcome))


def test_acts_from_allows_findings_below_the_threshold() -> None:
    planner = EscalationPlanner(
        build_escalation(["reprompt", {"roll_forward": {"acts_from": 0.3}}], trigger="t")
    )
    here = wrong(ToolCall(id="c", name="book", arguments={"seat": "4"}))
    assert planner.get_min_confidence("t") == 0.3
    for below, strategy in ((None, "reprompt"), (0.35, "roll_forward"), (0.2, None)):
        plan = planned(planner, here, trigger_probability=below)
        assert (None if plan is None else plan.strategy) == strategy


def test_candidates_are_limited_by_budget() -> None:
    planner = EscalationPlanner(build_escalation(["vote"], trigger="t"))
    account = BudgetAccount(RecoveryBudget(resamples=3))
    assert planned(planner, proposed(account=account)) is not None
    account.charge(samples=2)
    assert account.find_exceeded_limit(samples=1) is None
    assert planned(planner, proposed(account=account)) is None, "half a vote decides nothing"
    assert planned(planner, proposed(account=BudgetAccount(RecoveryBudget(extra_calls=1)))) is None
    assert planned(planner, proposed(account=BudgetAccount(RecoveryBudget(extra_calls=2)))) is not None


def test_repairs_are_limited_by_budget() -> None:
    account = BudgetAccount(RecoveryBudget(repairs=1))
    assert account.spend(repair=True) is None
    assert account.spend(repair=True) == "repairs"
    assert account.usage.repairs == 1


def test_models_of_policy_are_collected() -> None:
    recover = RecoveryPolicy(
        escalations={"x": [{"n_version": {"models": ["a"]}}]},
        redundancy=SelectiveRedundancy(strategy={"recovery_block": {"models": ["b"]}}),
    )
    assert recover.build_planner().models == {"a", "b"}


def turn(*tools: str) -> Step:
    calls = tuple(ToolCall(id=name, name=name, arguments={}) for name in tools)
    return Step(index=0, source=Source.AGENT, agent="clerk", tool_calls=calls)


TOOLS = {
    "book": ToolEffect(effect=EffectClass.WRITE),
    "look": ToolEffect(effect=EffectClass.READ),
}


@pytest.mark.parametrize(
    ("options", "tools", "uncertainty", "why"),
    [
        ({}, ("look", "book"), 0.0, "put to a vote"),
        ({}, ("unknown",), 0.0, "destructive"),
        ({}, ("look",), 0.9, None),
        ({"effects": ["destructive"]}, ("book",), 0.9, None),
        ({"uncertainty_threshold": 0.3}, ("look",), 0.3, "uncertain"),
        ({"uncertainty_threshold": 0.3}, ("look",), 0.29, None),
        ({"effects": [], "uncertainty_threshold": 0.3}, ("book",), 0.1, None),
        ({"effects": ["read"]}, ("look",), 0.0, "read"),
    ],
)
def test_risky_and_effectful_turns_get_a_vote(
    options: dict[str, Any], tools: tuple[str, ...], uncertainty: float, why: str | None
) -> None:
    found = SelectiveRedundancy(**options).explain(turn(*tools), EffectLedger(tools=TOOLS), uncertainty)
    assert (found is None) if why is None else (found is not None and why in found)


@pytest.mark.parametrize(
    "options",
    [
        {"effects": []},
        {"effects": ["wild"]},
        {"uncertainty_threshold": 1},
        {"uncertainty_threshold": 0},
        {"ask_localizer": True},
    ],
)
def test_redundancy_without_selected_turns_is_an_error(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="redundancy"):
        SelectiveRedundancy(**options)


def test_invalid_quorum_is_an_error_at_construction() -> None:
    with pytest.raises(ConfigError, match="quorum"):
        RecoveryPolicy(redundancy=SelectiveRedundancy(candidates=5, quorum=2)).build_planner()
