"""Pilot: rates, verdicts, pairs and the proposed policy."""

from __future__ import annotations

import pytest
import yaml
from hypothesis import given, strategies as st

from agentguard.config.policy import Policy
from agentguard.evals.pilot import (
    OutcomeRun,
    PilotPair,
    PilotVerdict,
    estimate_interventions,
    format_policy,
    pair_runs,
    propose_policy,
    run_scripted_pilot,
)
from agentguard.guard import Guard
from agentguard.testing.guard_check import build_scenarios
from agentguard.testing.guard_check.loop_driver import run_loop_agent


def build_pairs(
    rescued: int,
    unrescued: int,
    disrupted: int,
    passed: int,
    *,
    trigger: str = "exact_loop",
    strategy: str = "hint",
) -> list[PilotPair]:
    kinds = [(True, False)] * rescued + [(True, True)] * unrescued
    kinds += [(False, True)] * disrupted + [(False, False)] * passed
    return [
        PilotPair(
            task=f"{strategy} {place}",
            failed_without=without,
            failed_with=after,
            trigger=trigger,
            strategy=strategy,
        )
        for place, (without, after) in enumerate(kinds)
    ]


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ((30, 10, 1, 9), PilotVerdict.HELPS),
        ((1, 9, 30, 60), PilotVerdict.HURTS),
        ((2, 3, 1, 4), PilotVerdict.UNDECIDED),
        ((0, 40, 0, 40), PilotVerdict.UNDECIDED),
    ],
)
def test_verdict_follows_the_intervals_of_the_rates(
    counts: tuple[int, int, int, int], verdict: PilotVerdict
) -> None:
    (cell,) = estimate_interventions(build_pairs(*counts)).interventions
    assert cell.verdict is verdict


def test_threshold_is_the_disruption_share_of_both_rates() -> None:
    (cell,) = estimate_interventions(build_pairs(3, 1, 1, 3)).interventions
    assert cell.threshold == pytest.approx(0.25 / (0.75 + 0.25))


def test_more_harmful_effects_never_help() -> None:
    pairs = [
        PilotPair(
            task=str(i),
            failed_without=True,
            failed_with=False,
            trigger="t",
            strategy="s",
            added_harm=int(i == 0),
        )
        for i in range(50)
    ]
    assert estimate_interventions(pairs).interventions[0].verdict is PilotVerdict.HURTS


@given(*[st.integers(0, 60)] * 4)
def test_decided_verdict_has_the_sign_of_the_gain(
    rescued: int, unrescued: int, disrupted: int, passed: int
) -> None:
    report = estimate_interventions(build_pairs(rescued, unrescued, disrupted, passed))
    for cell in report.interventions:
        if cell.verdict is PilotVerdict.HELPS:
            assert cell.gain > 0
        if cell.verdict is PilotVerdict.HURTS:
            assert cell.gain < 0


def test_policy_prefers_helpful_strategies_and_removes_harmful_ones() -> None:
    alternatives = [
        *build_pairs(40, 5, 0, 10, strategy="restart"),
        *build_pairs(30, 15, 0, 10, strategy="hint"),
        *build_pairs(1, 5, 40, 10, trigger="tool_error", strategy="hint"),
        *build_pairs(1, 5, 40, 10, trigger="tool_error", strategy="rollback"),
        *build_pairs(0, 45, 50, 0, strategy="stop"),
    ]
    report = estimate_interventions([], alternatives=alternatives)
    policy = propose_policy(report, Policy.parse({"detectors": {"exact_loop": {"repeat": 4}}}))
    assert policy.detectors["exact_loop"] == {
        "repeat": 4,
        "on_fail": ["restart", "hint", "escalate", {"stop": {"patience": 12}}],
    }
    assert policy.detectors["tool_error"] is False
    text = format_policy(policy, report)
    assert "# exact_loop restart: helps" in text
    assert Policy.parse(yaml.safe_load(text)) == policy
    Guard.from_policy(policy)


def test_policy_switches_off_a_step_model_that_hurts_and_keeps_the_outcome_model() -> None:
    base = Policy.parse({"live_model": {"threshold": 0.8, "step_threshold": 0.5}})
    hurts = estimate_interventions(build_pairs(1, 9, 30, 60, trigger="step_model"))
    proposed = propose_policy(hurts, base).live_model
    assert proposed is not None
    assert (proposed.threshold, proposed.step_threshold) == (0.8, None)


def test_policy_switches_off_a_live_judge_and_a_live_model_that_hurt() -> None:
    judge = {"base_url": "http://127.0.0.1:1/v1", "live": {}}
    for trigger, document in (("judge", {"judge": judge}), ("outcome_model", {"live_model": {}})):
        base = Policy.parse(document)
        hurts = estimate_interventions(build_pairs(1, 9, 30, 60, trigger=trigger))
        policy = propose_policy(hurts, base)
        assert policy.live_model is None
        assert policy.judge is None or policy.judge.live is None
        helps = estimate_interventions(build_pairs(30, 10, 1, 9, trigger=trigger))
        kept = propose_policy(helps, base)
        assert (kept.judge, kept.live_model) == (base.judge, base.live_model)


def test_policy_orders_the_strategies_of_the_acceptance_test() -> None:
    base = Policy.parse({"acceptance": {"rules": [{"contains": ["ok"]}], "on_fail": ["hint", "escalate"]}})
    pairs = [
        *build_pairs(1, 9, 30, 60, trigger="acceptance", strategy="hint"),
        *build_pairs(30, 10, 1, 9, trigger="acceptance", strategy="restart"),
    ]
    policy = propose_policy(estimate_interventions(pairs), base)
    assert policy.list_escalations() == {"acceptance": ("restart", "escalate")}
    hurts = propose_policy(estimate_interventions(pairs[:100]), base)
    assert hurts.list_escalations() == {"acceptance": ("escalate",)}


def test_runs_are_paired_by_task_in_their_order() -> None:
    without = [OutcomeRun(id=f"b{i}", task="Book  seat 4.", failed=i == 0) for i in range(2)]
    guarded = [OutcomeRun(id=f"g{i}", task="Book seat 4.", failed=False) for i in range(3)]
    pairs, alone = pair_runs([*without, OutcomeRun(id="c", task="Other.", failed=True)], guarded)
    assert [(one.task, one.failed_without) for one in pairs] == [("b0 g0", True), ("b1 g1", False)]
    assert alone == ["g2", "c"]


def test_scripted_pilot_finds_hints_helpful_and_an_immediate_stop_harmful() -> None:
    families = ("loop/", "stubborn/", "polling/")
    scenarios = [one for one in build_scenarios() if one.name.startswith(families)]
    report = run_scripted_pilot(run_loop_agent, scenarios[::2])
    verdicts = {(one.trigger, one.strategy): one.verdict for one in report.interventions}
    assert verdicts["exact_loop", "hint"] is PilotVerdict.HELPS
    assert verdicts["exact_loop", "stop"] is PilotVerdict.HURTS
    assert report.overall.disruption.count == 0
