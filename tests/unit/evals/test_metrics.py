"""Scores against hand-calculated values, and against scikit-learn on random input."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings, strategies as st
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from agentguard.evals import metrics

GOLD = [1, 4, 2, 7]
RANKED = [[10, 1], [4, 0], [], [9, 8, 6, 5, 7]]


def test_step_accuracy_is_integer_equality_and_missing_is_wrong() -> None:
    assert metrics.step_accuracy(GOLD, RANKED) == 0.25


def test_published_scorer_accepts_substrings() -> None:
    assert metrics.step_accuracy_published(GOLD, RANKED) == 0.5
    assert metrics.step_accuracy_published([10], [[1]]) == 0.0


@pytest.mark.parametrize(("tolerance", "share"), [(0, 0.25), (1, 0.25), (2, 0.5), (8, 0.5), (9, 0.75)])
def test_within_counts_the_distance_in_both_directions(tolerance: int, share: float) -> None:
    assert metrics.within_tolerance(GOLD, RANKED, tolerance) == share


@pytest.mark.parametrize(("k", "share"), [(1, 0.25), (2, 0.5), (4, 0.5), (5, 0.75)])
def test_top_k_counts_the_first_k(k: int, share: float) -> None:
    assert metrics.top_k_accuracy(GOLD, RANKED, k) == share


def test_label_accuracy_is_exact() -> None:
    assert metrics.label_accuracy(["a", "b", "c"], ["a", "B", None]) == pytest.approx(1 / 3)


def test_lengths_must_be_equal() -> None:
    with pytest.raises(ValueError):
        metrics.step_accuracy([1, 2], [[1]])


def test_empty_input_gives_nan_instead_of_zero() -> None:
    assert math.isnan(metrics.step_accuracy([], []))
    assert math.isnan(metrics.auroc([True, True], [0.1, 0.2]))
    assert math.isnan(metrics.average_precision([False], [0.1]))
    assert math.isnan(metrics.expected_calibration_error([], []))


def test_auroc_counts_ties_half() -> None:
    assert metrics.auroc([True, False], [0.5, 0.5]) == 0.5
    assert metrics.auroc([True, False, False], [0.9, 0.9, 0.1]) == 0.75


def test_average_precision_matches_hand_calculation() -> None:
    # Thresholds 0.9, 0.8, 0.1: recall 1/2 at precision 1, then 1/2 at 1/2, then 1 at 2/3.
    assert metrics.average_precision([True, False, True], [0.9, 0.8, 0.1]) == pytest.approx(0.5 + 0.5 * 2 / 3)


def test_reliability_and_calibration_error_match_hand_calculation() -> None:
    labels, probabilities = [True, False, True, True], [0.1, 0.15, 0.95, 1.0]
    low, high = metrics.reliability(labels, probabilities)
    assert (low.n, low.observed, low.predicted) == (2, 0.5, pytest.approx(0.125))
    assert (high.n, high.observed, high.low, high.high) == (2, 1.0, 0.9, 1.0)
    expected = 0.5 * (0.5 - 0.125) + 0.5 * (1 - 0.975)
    assert metrics.expected_calibration_error(labels, probabilities) == pytest.approx(expected)


def test_risk_coverage_matches_hand_calculation() -> None:
    points = metrics.risk_coverage([True, False, True, False], [0.9, 0.5, 0.5, 0.1])
    assert [(p.coverage, p.risk) for p in points] == [(0.25, 0.0), (0.75, 1 / 3), (1.0, 0.5)]
    assert metrics.aurc([True, False, True, False], [0.9, 0.5, 0.5, 0.1]) == pytest.approx(
        (0 + 0.25 + 1 / 3 + 0.5) / 4
    )


scored = st.lists(st.tuples(st.booleans(), st.integers(0, 20).map(lambda i: i / 20)), min_size=2, max_size=60)


@settings(max_examples=80, deadline=None)
@given(scored)
def test_scores_match_scikit_learn(pairs: list[tuple[bool, float]]) -> None:
    labels, scores = [y for y, _ in pairs], [p for _, p in pairs]
    assert metrics.brier(labels, scores) == pytest.approx(brier_score_loss(labels, scores))
    if len(set(labels)) == 2:
        assert metrics.auroc(labels, scores) == pytest.approx(roc_auc_score(labels, scores))
        assert metrics.average_precision(labels, scores) == pytest.approx(
            average_precision_score(labels, scores)
        )


@settings(max_examples=80, deadline=None)
@given(scored, st.randoms())
def test_order_of_runs_does_not_matter(pairs: list[tuple[bool, float]], random: object) -> None:
    shuffled = list(pairs)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    for score in (metrics.auroc, metrics.average_precision, metrics.aurc, metrics.brier):
        before = score([y for y, _ in pairs], [p for _, p in pairs])
        after = score([y for y, _ in shuffled], [p for _, p in shuffled])
        assert before == pytest.approx(after, nan_ok=True)
