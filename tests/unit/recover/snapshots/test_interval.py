"""Snapshot cadence: Daly's optimum from measurements, in whole turns and within bounds."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import ConfigError
from agentguard.recover.snapshots.manager import CheckpointInterval, compute_daly_interval


def lost(interval: float, cost: float, between: float) -> float:
    """Return the lost time per unit of work, by Daly's model of random failures.

    A snapshot of ``cost`` follows each ``interval`` of work. A failure, ``between`` apart on average,
    discards
    the work since the last snapshot. A restart costs nothing.
    """
    return between * math.expm1((interval + cost) / between) / interval


def measured(
    cost: float, turn: float, *, turns: int = 1, failures: int = 0, **options: float
) -> CheckpointInterval:
    cadence = CheckpointInterval(**options)  # type: ignore[arg-type]
    cadence.record_snapshot(cost)
    for _ in range(turns):
        cadence.record_turn(turn)
    for _ in range(failures):
        cadence.record_failure()
    return cadence


@given(st.floats(1e-6, 10), st.floats(20, 10_000))
def test_daly_interval_minimises_loss(cost: float, between: float) -> None:
    near = [compute_daly_interval(cost, between) * factor for factor in (0.7, 0.85, 1, 1.2, 1.5)]
    best = min(near, key=lambda interval: lost(interval, cost, between))
    assert best == compute_daly_interval(cost, between)


def test_young_interval_is_the_limit_for_small_costs() -> None:
    assert compute_daly_interval(1e-6, 100) == pytest.approx(math.sqrt(2e-4), rel=1e-3)
    assert compute_daly_interval(0, 100) == 0
    assert compute_daly_interval(300, 100) == 100


def test_free_snapshot_is_taken_each_turn() -> None:
    cadence = measured(0.0, 1.0, turns=0)
    for _ in range(50):
        cadence.record_turn(1.0)
        assert cadence.is_due()
        cadence.record_snapshot(0.0)


def test_interval_follows_cost_and_failures() -> None:
    cheap, dear = measured(0.01, 1.0), measured(5.0, 1.0)
    assert cheap.turns == 1
    assert dear.turns == round(compute_daly_interval(5.0, 26.0))
    assert measured(5.0, 1.0, failures=9).turns < dear.turns
    assert measured(5.0, 20.0).turns < dear.turns
    assert measured(5.0, 1.0, turns=500).turns > dear.turns


def test_failure_count_is_observed_failures_plus_one() -> None:
    cadence = measured(1.0, 1.0, turns=75, failures=3, expected_turns_between_failures=25.0)
    assert cadence.turns_between_failures == (25 + 75) / 4


def test_negligible_cost_is_free_for_any_turn_length() -> None:
    assert measured(0.0049, 1e-6).turns == 1
    assert measured(0.0051, 1e-6).turns > 1
    assert measured(0.0049, 1e-6, free_cost_s=0.0).turns > 1


def test_interval_is_bounded() -> None:
    assert measured(1e6, 1.0, max_turns=12).turns == 12
    assert measured(5.0, 0.0, max_turns=12).turns == 12
    assert measured(5.0, 1.0, max_turns=1).turns == 1


def test_snapshot_is_due_after_the_interval() -> None:
    cadence = measured(2.0, 1.0, turns=0, expected_turns_between_failures=25.0)
    saved = []
    for turn in range(1, 60):
        cadence.record_turn(1.0)
        if cadence.is_due():
            saved.append((turn, cadence.turns))
            cadence.record_snapshot(2.0)
    gaps = [after - before for (before, _), (after, _) in itertools.pairwise(saved)]
    assert all(abs(gap - interval) <= 1 for gap, (_, interval) in zip(gaps, saved[1:], strict=False))
    assert gaps[0] >= 5


def test_outlier_moves_the_mean_by_its_weight() -> None:
    cadence = measured(1.0, 1.0, smoothing=0.25)
    cadence.record_snapshot(9.0)
    assert cadence._cost_s == 1.0 + 0.25 * 8.0
    cadence.record_turn(-5.0)  # the clock went back
    assert cadence._turn_s == 0.75


@pytest.mark.parametrize(
    "wrong",
    [
        {"expected_turns_between_failures": 0},
        {"expected_turns_between_failures": math.inf},
        {"max_turns": 0},
        {"smoothing": 0},
        {"smoothing": 1.5},
    ],
)
def test_options_are_validated(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected_turns_between_failures above 0"):
        CheckpointInterval(**wrong)  # type: ignore[arg-type]
