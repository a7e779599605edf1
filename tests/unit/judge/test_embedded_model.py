from __future__ import annotations

import numpy as np
import pytest

from agentguard.detect.base import Finding
from agentguard.judge.embedded.conditional_logit import (
    fit_kernel,
    fit_linear,
    softmax_by_run,
    standardize_within_run,
)
from agentguard.judge.embedded.features.catalogue import COLUMN_BY_NAME, FEATURE_NAMES
from agentguard.judge.embedded.features.table import build_step_table, clear_cache
from agentguard.judge.embedded.forest import fit_forest
from agentguard.judge.embedded.log_kind import build_log_kind, build_structure_key
from agentguard.judge.embedded.outcome_model import OutcomeModel, estimate_failure
from agentguard.judge.embedded.ranker import fit_ranker, softmax
from agentguard.judge.embedded.training import build_untrained_model
from agentguard.judge.embedded.transfer_ranker import (
    BEHAVIOURS,
    SINGLE_AGENT_GROUPS,
    build_untrained_ranker,
    compute_structural_prior,
    fit_transfer_ranker,
)
from agentguard.localize.explanation import EXPLANATION_RULES, explain_step
from agentguard.trajectory.model import Trajectory
from tests.unit.judge.runs import dialogue, group_chat, steered


def choices(runs: int = 40, rows: int = 5, columns: int = 6) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(runs * rows, columns))
    numbers = np.repeat(np.arange(runs), rows)
    chosen = np.zeros(len(values))
    for run in range(runs):
        held = np.flatnonzero(numbers == run)
        chosen[held[values[held, 2].argmax()]] = 1
    return values, chosen, numbers


def hits(score: np.ndarray, chosen: np.ndarray, runs: np.ndarray) -> float:
    return float(
        np.mean([chosen[runs == run][score[runs == run].argmax()] for run in range(int(runs.max()) + 1)])
    )


def test_softmax_sums_to_one_per_run_and_accepts_large_scores() -> None:
    p = softmax_by_run(np.array([1e4, 0.0, -1e4, 5.0]), np.array([0, 0, 1, 1]))
    assert p[:2].sum() == pytest.approx(1)
    assert p[2:].sum() == pytest.approx(1)


def test_linear_and_kernel_models_learn_the_deciding_column() -> None:
    values, chosen, runs = choices()
    assert hits(fit_linear(values, chosen, runs, ridge=1.0).score(values), chosen, runs) > 0.9
    assert hits(fit_kernel(values, chosen, runs, ridge=0.05, width=0.5).score(values), chosen, runs) > 0.9


def test_column_with_small_weight_is_shrunk_more() -> None:
    values, chosen, runs = choices()
    weight = np.ones(6)
    weight[2] = 0.01
    free = fit_linear(values, chosen, runs, ridge=5.0)
    held = fit_linear(values, chosen, runs, ridge=5.0, weight=weight)
    effect = abs(held.weights[2] * held.scaler.weight[2])
    assert effect < 0.1 * abs(free.weights[2])


def test_relative_feature_is_zero_without_variation() -> None:
    made = standardize_within_run(np.array([[1.0, 5.0], [3.0, 5.0]]))
    assert made[:, 1].tolist() == [0, 0]
    assert made[:, 0].tolist() == pytest.approx([-1, 1])


@pytest.mark.parametrize("kind", ["extra", "random"])
def test_flattened_trees_equal_the_forest(kind: str) -> None:
    from sklearn.ensemble import ExtraTreesClassifier, RandomForestClassifier

    values, chosen, _ = choices()
    made = fit_forest(values, chosen, columns=[0, 2, 4], kind=kind, trees=12, share=0.7, seed=3)
    twin = (
        ExtraTreesClassifier(
            12, min_samples_leaf=4, max_features=0.7, class_weight="balanced", random_state=3
        )
        if kind == "extra"
        else RandomForestClassifier(
            12, min_samples_leaf=4, max_features=0.7, class_weight="balanced_subsample", random_state=3
        )
    ).fit(values[:, [0, 2, 4]], chosen > 0)
    expected = twin.predict_proba(values[:, [0, 2, 4]])[:, 1]
    assert made.predict_probability(values) == pytest.approx(expected, abs=1e-6)


def test_prior_names_the_first_worker_turn() -> None:
    for record, first in ((group_chat(1), 1), (steered(2), 3)):
        table = build_step_table(record.trajectory)
        assert table.steps[int(compute_structural_prior(table.values).argmax())] == first


def test_prior_of_tool_dialogue_names_the_first_change() -> None:
    table = build_step_table(dialogue(1, failed=False).trajectory)
    assert table.steps[int(compute_structural_prior(table.values).argmax())] == 2


def test_portable_ranker_learns_a_behaviour_and_nothing_from_noise() -> None:
    records = [group_chat(i) for i in range(60)]
    tables = [build_step_table(r.trajectory) for r in records]
    chosen = [
        np.array([float(s == r.annotation.root_cause.step) for s in t.steps])
        for r, t in zip(records, tables, strict=True)
    ]  # type: ignore[union-attr]
    fitted = fit_transfer_ranker([t.values for t in tables], chosen)
    assert fitted.weights[BEHAVIOURS.index("wording.assume")] > 0.1
    assert (
        fit_transfer_ranker([], []).weights.tolist()
        == build_untrained_ranker().weights.tolist()
        == [0] * len(BEHAVIOURS)
    )


def test_specialist_finds_its_training_flaw() -> None:
    records = [group_chat(i) for i in range(60)]
    tables = [build_step_table(r.trajectory).values for r in records]
    labels = [
        np.array([float(s == r.annotation.root_cause.step) for s in build_step_table(r.trajectory).steps])  # type: ignore[union-attr]
        for r in records
    ]
    ranker = fit_ranker(tables[:40], labels[:40])
    found = [labels[i][ranker.predict_probabilities(tables[i]).argmax()] for i in range(40, 60)]
    assert np.mean(found) > 0.9
    assert ranker.predict_probabilities(tables[0]).sum() == pytest.approx(1)


def test_run_kind_matches_only_its_own_runs() -> None:
    kind = build_log_kind([build_step_table(group_chat(i).trajectory).layout for i in range(20)])
    assert kind.matches(build_step_table(group_chat(99).trajectory).layout)
    assert not kind.matches(build_step_table(steered(1).trajectory).layout)
    assert build_structure_key(dialogue(1, failed=True).trajectory) == "user-calls"


@pytest.mark.parametrize("failed", [True, False])
def test_single_agent_run_computes_only_the_groups_that_its_ranker_reads(failed: bool) -> None:
    run, model = dialogue(1, failed=failed).trajectory, build_untrained_model()
    clear_cache()
    partial = model.judge(run, risk=0.1)
    complete = build_step_table(run)
    again = model.judge(run, risk=0.1)
    known = [FEATURE_NAMES.index(name) for name in partial.table.get_features(0)]
    assert partial.table.groups == SINGLE_AGENT_GROUPS
    assert again.table is complete
    assert np.array_equal(partial.table.values[:, known], complete.values[:, known])
    assert np.isnan(np.delete(partial.table.values, known, axis=1)).all()
    assert np.array_equal(partial.step_probabilities, again.step_probabilities)
    assert partial.failure_probability == again.failure_probability


def test_run_of_several_agents_computes_all_groups() -> None:
    run = group_chat(1).trajectory
    clear_cache()
    assert not np.isnan(build_untrained_model().judge(run, risk=0.1).table.values).any()


def test_explanation_of_single_agent_run_reads_only_computed_groups() -> None:
    run = dialogue(1, failed=True).trajectory
    table = build_step_table(run, lambda _: SINGLE_AGENT_GROUPS)
    for row, step in enumerate(table.steps):
        features = table.get_features(row)
        # Rules read a name only if an earlier condition is met, so each name is set in turn.
        for name in features:
            assert all(isinstance(rule.is_match(features | {name: 1.0}), bool) for rule in EXPLANATION_RULES)
        explain_step(table.layout, step, dict.fromkeys(features, 0.0), [])


def outcome(passed: list[float], failed: list[float]) -> OutcomeModel:
    none = np.zeros(0)
    base = fit_forest(
        np.arange(20.0)[:, None], np.repeat([0, 1], 10), columns=[0], kind="extra", trees=1, share=1.0
    )
    scaler = fit_linear(*choices(), ridge=1.0).scaler
    return OutcomeModel(scaler, none, 0.0, base, 1.0, 0.0, np.array(passed), np.array(failed))


def test_thresholds_keep_the_risk() -> None:
    passed = [i / 100 for i in range(1, 100)]
    low, high = outcome(passed, [p + 0.005 for p in passed]).compute_thresholds(0.1)
    assert sum(p > high for p in passed) <= 0.1 * (len(passed) + 1)
    assert sum(p + 0.005 <= low for p in passed) <= 0.1 * (len(passed) + 1)
    assert low < high


def test_thresholds_do_not_cross_and_few_runs_are_undecided() -> None:
    low, high = outcome([0.1, 0.2], [0.8, 0.9]).compute_thresholds(0.4)
    assert low <= high
    assert outcome([0.4], [0.6]).compute_thresholds(0.1) == (0.0, 1.0)


def finding(probability: float, detector: str = "loop") -> Finding:
    return Finding(detector=detector, step=0, codes=(), probability=probability, message="m")


def ending(text: str) -> Trajectory:
    from dataclasses import replace

    run = group_chat(1).trajectory
    return replace(run, steps=(*run.steps[:-2], replace(run.steps[-2], content=text), run.steps[-1]))


def test_heuristic_starts_even_and_follows_signs() -> None:
    def say(run: Trajectory, *found: Finding) -> float:
        return estimate_failure(build_step_table(run).layout, found)

    plain = group_chat(1).trajectory
    assert say(plain) == pytest.approx(0.5)
    assert say(plain, finding(0.6)) > say(plain, finding(0.3)) > 0.5
    assert say(plain, finding(0.6), finding(0.6)) == say(plain, finding(0.6))
    assert say(plain, finding(0.6), finding(0.6, "other")) > say(plain, finding(0.6))
    assert say(ending("You won! You scored 3 out of a possible 3.")) < 0.1
    assert say(ending("You lost!")) > 0.9


def test_softmax_of_one_row_is_certain() -> None:
    assert softmax(np.array([-3.0])).tolist() == [1.0]


def test_columns_of_members_exist() -> None:
    assert set(BEHAVIOURS) <= set(FEATURE_NAMES)
    assert all(FEATURE_NAMES[COLUMN_BY_NAME[name]] == name for name in BEHAVIOURS)
