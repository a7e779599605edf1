from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st
from scipy.stats import binomtest

from agentguard.errors import EvaluationError
from agentguard.evals.statistics import compare_paired, mcnemar_p_value, standard_deviation, wilson_interval


@pytest.mark.parametrize(("gained", "lost"), [(0, 0), (6, 0), (3, 9), (12, 9), (1, 1)])
def test_mcnemar_equals_the_binomial_test(gained: int, lost: int) -> None:
    expected = binomtest(gained, gained + lost).pvalue if gained + lost else 1.0
    assert mcnemar_p_value(gained, lost) == pytest.approx(expected)


def test_equal_scores_do_not_differ() -> None:
    found = compare_paired([1.0, 0.0, 0.5], [1.0, 0.0, 0.5], ["a", "b", "c"])
    assert (found.mean, found.low, found.high, found.gained, found.lost, found.p) == (0, 0, 0, 0, 0, 1)


def test_interval_contains_the_mean_and_depends_on_the_seed() -> None:
    one, other = [1.0] * 30 + [0.0] * 10, [1.0] * 18 + [0.0] * 22
    groups = [str(i // 2) for i in range(40)]
    found = compare_paired(one, other, groups)
    assert found == compare_paired(one, other, groups)
    assert found.mean == pytest.approx(0.3)
    assert found.low < found.mean < found.high
    assert (found.gained, found.lost) == (12, 0)


def test_runs_of_one_question_are_resampled_together() -> None:
    one, other = [1.0] * 10 + [0.0] * 10, [0.0] * 20
    apart = compare_paired(one, other, [str(i) for i in range(20)])
    together = compare_paired(one, other, ["a"] * 10 + ["b"] * 10)
    assert together.high - together.low > apart.high - apart.low


def test_scores_must_match() -> None:
    for one, other, groups in (([], [], []), ([1.0], [], ["a"]), ([1.0], [1.0], [])):
        with pytest.raises(EvaluationError):
            compare_paired(one, other, groups)


def test_wilson_interval_matches_hand_calculation() -> None:
    # Hand-calculated: 55.2 % of 126 runs is in 46.5 to 63.6 %, 29.3 % of 58 runs in 19.2 to 42.0 %.
    assert wilson_interval(0.552, 126) == pytest.approx((0.465, 0.636), abs=0.001)
    assert wilson_interval(17 / 58, 58) == pytest.approx((0.192, 0.420), abs=0.001)
    assert wilson_interval(0.0, 10)[0] == 0.0
    assert wilson_interval(1.0, 10)[1] == pytest.approx(1.0)


def test_wilson_interval_of_no_trials_is_nan() -> None:
    assert all(math.isnan(v) for v in wilson_interval(0.5, 0))


def test_standard_deviation_is_that_of_a_sample() -> None:
    assert standard_deviation([0.4, 0.6]) == pytest.approx(math.sqrt(0.02))
    assert standard_deviation([0.4]) == 0.0


@given(st.floats(0, 1), st.integers(1, 2000))
def test_wilson_interval_contains_the_share(share: float, n: int) -> None:
    low, high = wilson_interval(share, n)
    assert 0 <= low <= share + 1e-9
    assert share - 1e-9 <= high <= 1
