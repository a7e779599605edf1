"""Outcome of a run relative to other runs of the same agent, without labels of that agent.

Each signal of trouble is ranked within the batch, and the score of a run is the mean of its ranks. The map
from score to probability and the thresholds are learnt on labelled batches of other agents. A threshold
holds for the worst of these batches, since the share of failed runs of a new agent is unknown.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Final

import numpy as np
from numpy.typing import NDArray

from agentguard.judge.embedded.conditional_logit import Array
from agentguard.judge.embedded.features.run_signals import RUN_SIGNALS, RunSignal
from agentguard.judge.embedded.outcome_model import apply_platt_scaling, fit_platt_scaling

MIN_BATCH_RUNS: Final = 20
"""Minimum of runs of an agent for a comparison."""
_MIN_THRESHOLD_RUNS: Final = 20  # smallest group of runs with its own threshold
_CONFIDENCE: Final = 0.95
_UNUSUAL_RANK: Final = 0.3  # mid-ranks are in (-0.5, 0.5); above it, the run is among the highest fifth
_UNUSUAL_RATIO: Final = 1.5
_MAX_REASONS: Final = 3


@dataclass(frozen=True, slots=True)
class RelativeOutcomeModel:
    """Map from scores of `score_batch` to outcomes.

    Attributes:
        slope, intercept: Platt scaling of the score, with even odds in every training batch.
        passed, failed: ascending scores of the passed and of the failed runs of each training batch; small
            batches count as one. The score of a passed run that the rules call failed is infinite.
    """

    slope: float
    intercept: float
    passed: tuple[Array, ...]
    failed: tuple[Array, ...]

    def predict_probability(self, scores: Array) -> Array:
        """Return the probability that each run failed, if half of the agent's runs fail."""
        return apply_platt_scaling(scores, self.slope, self.intercept)

    def compute_thresholds(self, risk: float) -> tuple[float, float]:
        """Return ``(low, high)``: a run counts as passed up to low, and as failed above high.

        In each training batch, with a confidence of 95 %: at most a share ``risk`` of the passed runs is
        above high or failed by the rules; at most a share ``risk`` of the failed runs is up to low.
        """
        high = max((_find_upper_limit(scores, risk) for scores in self.passed), default=math.inf)
        low = min((-_find_upper_limit(-scores, risk) for scores in self.failed), default=-math.inf)
        return min(low, high), high


@dataclass(frozen=True, slots=True)
class LabelledBatch:
    """Labelled runs of one agent.

    Attributes:
        signals: shape ``(runs, signals)``.
        failed: outcome of each run.
        ruled_failed: whether the rules for a single run call each run failed.
    """

    signals: Array
    failed: NDArray[np.bool_]
    ruled_failed: NDArray[np.bool_]


def rank_signals(signals: Array) -> Array:
    """Return the mid-rank of each value in its column, scaled to (-0.5, 0.5)."""
    count = len(signals)
    ordered = np.sort(signals, axis=0)
    ranks = np.empty_like(signals)
    for column in range(signals.shape[1]):
        values = signals[:, column]
        below = np.searchsorted(ordered[:, column], values, side="left")
        up_to = np.searchsorted(ordered[:, column], values, side="right")
        ranks[:, column] = (below + up_to) / (2 * count) - 0.5
    return ranks


def score_batch(signals: Array) -> Array:
    """Return the mean rank of each run's signals; higher is more like a failure."""
    return np.asarray(rank_signals(signals).mean(axis=1))


def fit_relative_outcome(batches: Sequence[LabelledBatch]) -> RelativeOutcomeModel | None:
    """Fit the map on batches of different agents; return None if no batch has both outcomes."""
    usable = [
        batch for batch in batches if len(batch.failed) >= MIN_BATCH_RUNS and 0 < batch.failed.mean() < 1
    ]
    if not usable:
        return None
    scores = [score_batch(batch.signals) for batch in usable]
    failed_flags = np.concatenate([batch.failed for batch in usable])
    weights = np.concatenate([_balance_outcomes(batch.failed) for batch in usable])
    slope, intercept = fit_platt_scaling(
        np.concatenate(scores), failed_flags, weights * len(weights) / weights.sum()
    )
    # A failure by the rules remains one in a comparison, so it uses up a part of the risk.
    passed = [
        np.sort(np.where(batch.ruled_failed, math.inf, own)[~batch.failed])
        for own, batch in zip(scores, usable, strict=True)
    ]
    failed = [np.sort(own[batch.failed]) for own, batch in zip(scores, usable, strict=True)]
    return RelativeOutcomeModel(slope, intercept, _merge_small_groups(passed), _merge_small_groups(failed))


def _merge_small_groups(groups: Sequence[Array]) -> tuple[Array, ...]:
    """Return the groups with enough scores for a threshold, and all smaller groups as one."""
    large = [group for group in groups if len(group) >= _MIN_THRESHOLD_RUNS]
    small = [group for group in groups if len(group) < _MIN_THRESHOLD_RUNS]
    merged = np.sort(np.concatenate(small)) if small else np.zeros(0)
    return (*large, merged) if len(merged) >= _MIN_THRESHOLD_RUNS else tuple(large)


def _balance_outcomes(failed: NDArray[np.bool_]) -> Array:
    """Return weights that sum to 1 in a batch, half for each outcome."""
    return np.asarray(np.where(failed, 0.5 / failed.sum(), 0.5 / (~failed).sum()))


def _find_upper_limit(scores: Array, risk: float) -> float:
    """Return the limit that at most a share ``risk`` of new scores exceeds, with a confidence of 95 %.

    The limit is the larger of two values. The first is the conformal quantile, which is infinite if there are
    too few scores for the risk. The second is the one-sided tolerance limit of a normal distribution (NIST
    handbook of statistical methods, 7.2.6.3). A score is a mean of many ranks, so its distribution is close
    to normal. An infinite score uses up a part of the risk.
    """
    ascending = np.sort(scores)
    place = math.ceil((1 - risk) * (len(ascending) + 1))
    quantile = float(ascending[place - 1]) if place <= len(ascending) else math.inf
    finite = ascending[np.isfinite(ascending)]
    if math.isinf(quantile) or len(finite) < 3:
        return math.inf
    remaining_risk = 1 - (1 - risk) * len(ascending) / len(finite)
    z, z_confidence = NormalDist().inv_cdf(1 - remaining_risk), NormalDist().inv_cdf(_CONFIDENCE)
    a = 1 - z_confidence**2 / (2 * (len(finite) - 1))
    b = z**2 - z_confidence**2 / len(finite)
    factor = (z + math.sqrt(max(0.0, z**2 - a * b))) / a
    return max(quantile, float(finite.mean() + factor * finite.std(ddof=1)))


def describe_unusual_signals(signals: Array) -> list[tuple[str, ...]]:
    """Describe up to three counts of each run that are unusually high in the batch."""
    medians = np.median(signals, axis=0)
    return [
        _describe_run(values, ranks, medians)
        for values, ranks in zip(signals, rank_signals(signals), strict=True)
    ]


def _describe_run(values: Array, ranks: Array, medians: Array) -> tuple[str, ...]:
    order = sorted(range(len(RUN_SIGNALS)), key=lambda column: (-ranks[column], column))
    return tuple(
        _describe_count(RUN_SIGNALS[column], values[column], float(medians[column]))
        for column in order
        if RUN_SIGNALS[column].is_count
        and ranks[column] >= _UNUSUAL_RANK
        and values[column] >= max(1.0, _UNUSUAL_RATIO * medians[column])
    )[:_MAX_REASONS]


def _describe_count(signal: RunSignal, value: float, median: float) -> str:
    if median >= 1:
        return f"{value / median:.1f} times the usual number of {signal.meaning} ({value:.0f})"
    return f"{value:.0f} {signal.meaning} (usually {median:.0f})"
