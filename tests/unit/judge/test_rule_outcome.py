from __future__ import annotations

import pytest

from agentguard.detect.base import Finding
from agentguard.detect.cards import load_cards
from agentguard.judge.embedded.features.roles import RunLayout, analyze_layout
from agentguard.judge.embedded.model_io import load_model
from agentguard.judge.embedded.rule_outcome import (
    MAX_FALSE_CAUSE_RATE,
    SystemSigns,
    find_signs,
    fit_rule_outcome,
    select_outcome_rules,
)
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory


def build_system(
    *, failed: dict[str, int], passed: dict[str, int], failed_runs: int = 40, passed_runs: int = 40
) -> SystemSigns:
    """Build a system in which the first runs of each outcome have the given signs."""

    def build_side(counts: dict[str, int], runs: int) -> list[dict[str, float]]:
        return [{name: 1.0 for name, count in counts.items() if place < count} for place in range(runs)]

    return SystemSigns(
        failed=build_side(failed, failed_runs),
        passed=build_side(passed, passed_runs),
        failed_estimates=[0.7] * failed_runs,
        passed_estimates=[0.4] * passed_runs,
    )


def test_select_outcome_rules_drops_a_sign_of_passed_runs_in_any_system() -> None:
    systems = [
        build_system(failed={"surrender": 10, "finding:loop": 20}, passed={}),
        build_system(failed={"surrender": 4}, passed={"finding:loop": 4}),
    ]
    assert [rule.sign for rule in select_outcome_rules(systems)] == ["surrender"]


def test_selected_rules_together_stay_below_the_maximum() -> None:
    passed = {"a": 2}
    systems = [build_system(failed={"a": 20, "b": 20}, passed=passed), build_system(failed={}, passed={})]
    shifted = SystemSigns(
        failed=systems[0].failed,
        passed=[*systems[0].passed[:20], *({"b": 1.0} for _ in range(2)), *systems[0].passed[22:]],
        failed_estimates=systems[0].failed_estimates,
        passed_estimates=systems[0].passed_estimates,
    )
    rules = select_outcome_rules([shifted, systems[1]])
    assert len(rules) == 1
    share = sum(any(rule.is_true(signs) for rule in rules) for signs in shifted.passed) / len(shifted.passed)
    assert share <= MAX_FALSE_CAUSE_RATE


def test_select_outcome_rules_drops_a_sign_that_is_as_frequent_in_passed_runs() -> None:
    systems = [build_system(failed={"a": 1}, passed={"a": 1}), build_system(failed={}, passed={})]
    assert select_outcome_rules(systems) == ()


def test_detector_that_does_not_decide_alone_by_its_card_is_no_rule() -> None:
    assert load_cards()["tool_error"].least_deciding_probability is None
    assert load_cards()["exact_loop"].least_deciding_probability == 0.9
    systems = [build_system(failed={"finding:tool_error": 40, "finding:exact_loop": 9}, passed={})]
    (rule,) = select_outcome_rules(systems)
    assert (rule.sign, rule.strength) == ("finding:exact_loop", 0.9)


def test_shipped_rules_agree_with_the_cards() -> None:
    rules = load_model(None).rules
    assert rules is not None
    for rule in rules.rules:
        card = load_cards().get(rule.sign.removeprefix("finding:"))
        if card is not None:
            assert card.least_deciding_probability is not None
            assert rule.strength >= card.least_deciding_probability


def test_small_systems_count_together() -> None:
    small = [build_system(failed={"a": 10}, passed={"a": 2}, passed_runs=10) for _ in range(3)]
    assert select_outcome_rules(small) == ()


def test_fit_rule_outcome_without_both_outcomes_is_none() -> None:
    assert fit_rule_outcome([build_system(failed={}, passed={}, passed_runs=0)]) is None


def test_fit_rule_outcome_calibrates_the_estimate() -> None:
    model = fit_rule_outcome([build_system(failed={"a": 10}, passed={}), build_system(failed={}, passed={})])
    assert model is not None
    assert model.slope > 0
    assert 0.5 < model.precision < 1


def build_finding(detector: str, probability: float, step: int = 0) -> Finding:
    return Finding(detector=detector, step=step, codes=(), probability=probability, message="A fault.")


def build_layout(turns: int, *, is_open: bool, result: str = "A file.") -> RunLayout:
    """Build a run whose last turn has a result if it is open, else a closing message."""
    steps = [Step(index=0, source=Source.USER, agent="user", content="Count the files.")]
    for index in range(1, turns + 1):
        is_acting = is_open or index < turns
        call = ToolCall(id=str(index), name="list_files", arguments={"page": index})
        observation = Observation(content=result, call_id=str(index))
        steps.append(
            Step(
                index=index,
                source=Source.AGENT,
                agent="clerk",
                content="" if is_acting else "There are nine files.",
                tool_calls=(call,) if is_acting else (),
                observations=(observation,) if is_acting else (),
            )
        )
    return analyze_layout(
        Trajectory(id="run", format="event_log", task="Count the files.", steps=tuple(steps))
    )


@pytest.mark.parametrize("is_open", [True, False])
def test_find_signs_counts_the_kinds_of_repetition(is_open: bool) -> None:
    findings = [build_finding(name, 0.5) for name in ("near_loop", "near_loop", "no_progress", "tool_error")]
    signs = find_signs(build_layout(10, is_open=is_open), findings)
    assert signs["repetition_kinds"] == 2
    assert signs.get("repetition_kinds_while_acting") == (2 if is_open else None)


@pytest.mark.parametrize(("turns", "share"), [(2, 0.2), (5, 0.2), (20, 0.05)])
def test_find_signs_relates_faulty_turns_to_all_turns(turns: int, share: float) -> None:
    findings = [build_finding("tool_error", 0.5, step=step) for step in (1, 2)]
    findings += [build_finding("near_loop", 0.4, step=1), build_finding("unknown_origin", 0.9, step=2)]
    signs = find_signs(build_layout(turns, is_open=True), findings)
    assert signs["faulty_turns"] == pytest.approx(share)


def test_find_signs_of_a_run_with_reported_success_has_no_other_sign() -> None:
    layout = build_layout(3, is_open=True, result="You have won.")
    assert find_signs(layout, [build_finding("tool_error_ignored", 0.9)]) == {"success_text": 1.0}


def test_find_signs_without_findings_has_no_amounts() -> None:
    signs = find_signs(build_layout(3, is_open=True), [])
    assert set(signs) == {"truncation"}


def test_select_outcome_rules_takes_the_least_strength_that_passed_runs_rarely_reach() -> None:
    system = SystemSigns(
        failed=[{"repetition_kinds": 3.0}] * 40,
        passed=[{"repetition_kinds": 2.0}] * 40,
        failed_estimates=[0.7] * 40,
        passed_estimates=[0.4] * 40,
    )
    (rule,) = select_outcome_rules([system])
    assert (rule.sign, rule.strength) == ("repetition_kinds", 3.0)


def test_find_signs_of_a_single_faulty_turn_has_no_share() -> None:
    finding = build_finding("unknown_tool", 0.6, step=1)
    assert "faulty_turns" not in find_signs(build_layout(2, is_open=True), [finding])
