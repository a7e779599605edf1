from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as hnp

from agentguard.judge.embedded.features.run_signals import RUN_SIGNAL_NAMES
from agentguard.judge.embedded.relative_outcome import (
    LabelledBatch,
    describe_unusual_signals,
    fit_relative_outcome,
    rank_signals,
    score_batch,
)

SIGNALS = len(RUN_SIGNAL_NAMES)


def build_batch(seed: int, *, runs: int = 60, shift: float = 2.0) -> LabelledBatch:
    rng = np.random.default_rng(seed)
    failed = np.arange(runs) % 3 == 0
    signals = rng.normal(size=(runs, SIGNALS)) + shift * failed[:, None]
    return LabelledBatch(signals, failed, np.zeros(runs, dtype=bool))


@given(hnp.arrays(np.float64, (7, 3), elements=st.floats(-5, 5)))
def test_rank_signals_is_centred_and_monotone(signals: np.ndarray) -> None:
    ranks = rank_signals(signals)
    assert ranks.sum(axis=0) == pytest.approx(np.zeros(3), abs=1e-9)
    for column in range(3):
        order = np.argsort(signals[:, column], kind="stable")
        assert (np.diff(ranks[order, column]) >= -1e-12).all()


def test_rank_signals_gives_equal_values_the_same_rank() -> None:
    assert rank_signals(np.array([[1.0], [1.0], [2.0], [0.0]]))[:, 0].tolist() == [0.0, 0.0, 0.375, -0.375]


def test_relative_outcome_transfers_to_another_batch() -> None:
    model = fit_relative_outcome([build_batch(1), build_batch(2)])
    assert model is not None
    new = build_batch(3)
    p = model.predict_probability(score_batch(new.signals))
    assert p[new.failed].min() > p[~new.failed].max()
    _, high = model.compute_thresholds(0.1)
    assert (score_batch(new.signals)[~new.failed] > high).mean() <= 0.1


def test_thresholds_hold_for_the_worst_batch() -> None:
    model = fit_relative_outcome([build_batch(1), build_batch(2, shift=0.0)])
    assert model is not None
    _, high = model.compute_thresholds(0.1)
    for batch in (build_batch(1), build_batch(2, shift=0.0)):
        assert (score_batch(batch.signals)[~batch.failed] > high).mean() <= 0.1
    low, strict_high = model.compute_thresholds(0.01)
    assert strict_high == np.inf
    assert low == -np.inf


def test_passed_runs_that_the_rules_call_failed_use_up_the_risk() -> None:
    batch = build_batch(1)
    passed = np.flatnonzero(~batch.failed)
    highs = []
    for count in (0, 2, 6):
        ruled_failed = np.isin(np.arange(60), passed[:count])
        model = fit_relative_outcome([LabelledBatch(batch.signals, batch.failed, ruled_failed)])
        assert model is not None
        highs.append(model.compute_thresholds(0.1)[1])
        called = (score_batch(batch.signals) > highs[-1]) | ruled_failed
        assert called[passed].mean() <= max(0.1, count / len(passed))
    assert highs[0] <= highs[1] < highs[2] == np.inf


def test_fit_relative_outcome_without_both_outcomes_is_none() -> None:
    batch = build_batch(1)
    all_failed = LabelledBatch(batch.signals, np.ones(60, dtype=bool), batch.ruled_failed)
    assert fit_relative_outcome([all_failed]) is None
    assert fit_relative_outcome([]) is None


def test_describe_unusual_signals_names_counts_far_above_the_median() -> None:
    signals = np.ones((30, SIGNALS)) * np.arange(30)[:, None] / 100
    turns, errors = RUN_SIGNAL_NAMES.index("turns"), RUN_SIGNAL_NAMES.index("errors")
    signals[:, turns] = 8
    signals[4, turns], signals[4, errors] = 24, 5
    reasons = describe_unusual_signals(signals)
    assert "3.0 times the usual number of agents' turns (24)" in reasons[4]
    assert "5 tool errors (usually 0)" in reasons[4]
    assert reasons[0] == ()
