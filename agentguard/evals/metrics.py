"""Metrics over plain sequences: root-cause accuracy, outcome scores and calibration.

docs/evaluation.md contains the definitions. Every metric is a fraction in [0, 1] unless its docstring states
otherwise. A missing prediction counts as wrong. An empty input gives NaN, because a score over nothing is
not 0. Intervals and tests are in `agentguard.evals.statistics`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from agentguard.evals.statistics import mean

Ranking = Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReliabilityBin:
    """One bin of a reliability curve: mean predicted probability, observed share, and number of members."""

    low: float
    high: float
    n: int
    predicted: float
    observed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RiskPoint:
    """Share of wrong answers (``risk``) if only the most confident ``coverage`` of the runs is answered."""

    coverage: float
    risk: float
    threshold: float


def step_accuracy(gold: Sequence[int], ranked: Sequence[Ranking]) -> float:
    """Return the share of runs whose first-ranked step equals the gold step."""
    return top_k_accuracy(gold, ranked, 1)


def step_accuracy_published(gold: Sequence[int], ranked: Sequence[Ranking]) -> float:
    """Return the score published with Who&When: the gold number is a substring of the predicted number.

    Gold 1 and predicted 10 count as right, so it is never below `step_accuracy`; use it only for comparison.
    """
    return mean(bool(r) and str(g) in str(r[0]) for g, r in zip(gold, ranked, strict=True))


def within_tolerance(gold: Sequence[int], ranked: Sequence[Ranking], tolerance: int) -> float:
    """Return the share of runs whose first-ranked step is at most ``tolerance`` steps from the gold step."""
    return mean(bool(r) and abs(r[0] - g) <= tolerance for g, r in zip(gold, ranked, strict=True))


def top_k_accuracy(gold: Sequence[int], ranked: Sequence[Ranking], k: int) -> float:
    """Return the share of runs whose gold step is among the first ``k`` ranked."""
    return mean(g in tuple(r[:k]) for g, r in zip(gold, ranked, strict=True))


def label_accuracy(gold: Sequence[str], predicted: Sequence[str | None]) -> float:
    """Return the share of runs whose predicted name (agent, module) equals the gold name exactly."""
    return mean(p is not None and g == p for g, p in zip(gold, predicted, strict=True))


def auroc(labels: Sequence[bool], scores: Sequence[float]) -> float:
    """Return the area under the ROC curve; a tie counts half, and a single class gives NaN."""
    positives = sum(map(bool, labels))
    negatives = len(labels) - positives
    if not positives or not negatives:
        return math.nan
    rank_sum, below = 0.0, 0
    for _, tied in _group_ties(labels, scores, descending=False):
        # All members of a tie get the mean of their ranks.
        rank_sum += sum(tied) * (below + (len(tied) + 1) / 2)
        below += len(tied)
    return (rank_sum - positives * (positives + 1) / 2) / (positives * negatives)


def average_precision(labels: Sequence[bool], scores: Sequence[float]) -> float:
    """Return the sum of precision times gain in recall over falling thresholds; NaN without positives."""
    positives = sum(map(bool, labels))
    if not positives:
        return math.nan
    area, positive_count, count = 0.0, 0, 0
    for _, tied in _group_ties(labels, scores, descending=True):
        new_positives = sum(tied)
        positive_count, count = positive_count + new_positives, count + len(tied)
        area += new_positives / positives * positive_count / count
    return area


def brier(labels: Sequence[bool], probabilities: Sequence[float]) -> float:
    """Return the mean squared difference of probability and outcome (Brier 1950); lower is better."""
    return mean((p - bool(y)) ** 2 for y, p in zip(labels, probabilities, strict=True))


def reliability(
    labels: Sequence[bool], probabilities: Sequence[float], *, bins: int = 10
) -> tuple[ReliabilityBin, ...]:
    """Return bins of equal width over [0, 1], the last one closed; empty bins are omitted."""
    members_by_bin: dict[int, list[tuple[float, bool]]] = {}
    for label, probability in zip(labels, probabilities, strict=True):
        bin_index = min(int(probability * bins), bins - 1)
        members_by_bin.setdefault(bin_index, []).append((probability, bool(label)))
    return tuple(
        ReliabilityBin(
            low=bin_index / bins,
            high=(bin_index + 1) / bins,
            n=len(members),
            predicted=mean(p for p, _ in members),
            observed=mean(y for _, y in members),
        )
        for bin_index, members in sorted(members_by_bin.items())
    )


def expected_calibration_error(
    labels: Sequence[bool], probabilities: Sequence[float], *, bins: int = 10
) -> float:
    """Return the mean gap of predicted and observed over `reliability` bins, weighted by size."""
    curve = reliability(labels, probabilities, bins=bins)
    total = sum(b.n for b in curve)
    return math.fsum(b.n * abs(b.predicted - b.observed) for b in curve) / total if total else math.nan


def risk_coverage(correct: Sequence[bool], confidence: Sequence[float]) -> tuple[RiskPoint, ...]:
    """Return the risk at each distinct confidence, highest first (El-Yaniv and Wiener 2010)."""
    points, error_count, count = [], 0, 0
    for threshold, tied in _group_ties(correct, confidence, descending=True):
        error_count, count = error_count + len(tied) - sum(tied), count + len(tied)
        points.append(RiskPoint(coverage=count / len(correct), risk=error_count / count, threshold=threshold))
    return tuple(points)


def aurc(correct: Sequence[bool], confidence: Sequence[float]) -> float:
    """Return the area under the risk-coverage curve: mean risk over the coverages 1/n ... 1.

    Lower is better. Within a tie, the expected number of wrong members grows evenly, so the area does not
    depend on the order of the runs.
    """
    risks: list[float] = []
    error_count, count = 0.0, 0
    for _, tied in _group_ties(correct, confidence, descending=True):
        error_share = 1 - sum(tied) / len(tied)
        for _ in tied:
            error_count, count = error_count + error_share, count + 1
            risks.append(error_count / count)
    return mean(risks)


def _group_ties(
    labels: Sequence[bool], scores: Sequence[float], *, descending: bool
) -> Iterable[tuple[float, list[bool]]]:
    """Yield groups of equal score, with the labels of their members."""
    pairs = sorted(zip(scores, labels, strict=True), key=lambda pair: pair[0], reverse=descending)
    for score, members in groupby(pairs, key=lambda pair: pair[0]):
        yield score, [bool(label) for _, label in members]
