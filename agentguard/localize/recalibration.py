"""Recalibration of diagnosis probabilities by the human judgements in a store.

A line in log-odds corrects the probability that a run failed (Platt 1999). A temperature corrects the
probabilities of its steps (Guo et al. 2017, arXiv 1706.04599). Both fits are regularised towards no change,
so that a few judgements change the probabilities little.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from agentguard.detect.base import Finding
from agentguard.errors import StoreError
from agentguard.localize.base import BaseLocalizer, Diagnosis, Localizer
from agentguard.localize.human_labels import RunLabel, iter_run_labels
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict

if TYPE_CHECKING:
    from agentguard.store.store import Store

MIN_OUTCOME_LABELS: Final = 20
"""Minimum of judged outcomes for a correction of failure probabilities."""
MIN_LABELS_PER_OUTCOME: Final = 5
"""Minimum of failed runs, and of passed runs, among these."""
MIN_STEP_LABELS: Final = 20
"""Minimum of judged root causes among the hypotheses for a correction of step probabilities."""

_REGULARIZATION: Final = 2.0
_MIN_SLOPE: Final = 0.05
_TEMPERATURES: Final = tuple(math.exp(x / 20) for x in range(-24, 25))
_PROBABILITY_CLIP: Final = 0.005
_REFRESH_INTERVAL_S: Final = 600.0
_SLOPE_KEY, _INTERCEPT_KEY, _TEMPERATURE_KEY, _LABEL_COUNT_KEY = "slope", "intercept", "temperature", "judged"

LabelledOutcome = tuple[float, bool]
"""Uncorrected probability of failure, and whether the run failed."""

LabelledRanking = tuple[tuple[float, ...], int]
"""Uncorrected probabilities of the hypotheses, and the index of the right one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recalibration:
    """Correction of one method's probabilities, fitted to judgements.

    Attributes:
        method: name of the localizer.
        failed_count, passed_count: numbers of judged outcomes.
        step_count: number of judged root causes that were among the hypotheses.
        slope, intercept: line in the log-odds of failure; 1 and 0 change nothing.
        temperature: exponent of the probabilities of steps; 1 changes nothing.
        brier_before, brier_after: mean squared error of the probability of failure; after the correction it
            is measured out of fold. None if there are too few outcomes.
    """

    method: str
    failed_count: int = 0
    passed_count: int = 0
    step_count: int = 0
    slope: float = 1.0
    intercept: float = 0.0
    temperature: float = 1.0
    brier_before: float | None = None
    brier_after: float | None = None

    @property
    def has_enough_outcomes(self) -> bool:
        """True if there are enough judged outcomes."""
        return (
            self.failed_count + self.passed_count >= MIN_OUTCOME_LABELS
            and min(self.failed_count, self.passed_count) >= MIN_LABELS_PER_OUTCOME
        )

    @property
    def has_enough_steps(self) -> bool:
        """True if there are enough judged root causes."""
        return self.step_count >= MIN_STEP_LABELS

    def apply(self, diagnosis: Diagnosis) -> Diagnosis:
        """Return the diagnosis with corrected probabilities; undecided if they contradict its verdict."""
        if not (self.has_enough_outcomes or self.has_enough_steps) or not 0 < diagnosis.probability < 1:
            return diagnosis
        p = _apply_platt_scaling(diagnosis.probability, self.slope, self.intercept)
        steps = _apply_temperature([one.probability for one in diagnosis.hypotheses], self.temperature)
        contradicted = (diagnosis.verdict is Verdict.FAILED and p < 0.5) or (
            diagnosis.verdict is Verdict.NO_FAILURE_FOUND and p > 0.5
        )
        judged_count = max(self.failed_count + self.passed_count, self.step_count)
        note = f"probabilities are corrected by {judged_count} judgements of people"
        if contradicted:
            note += ", which contradict the verdict of the method: the run is undecided"
        return replace(
            diagnosis,
            probability=p,
            verdict=Verdict.UNDECIDED if contradicted else diagnosis.verdict,
            hypotheses=tuple(
                replace(one, probability=q) for one, q in zip(diagnosis.hypotheses, steps, strict=True)
            ),
            notes=(*diagnosis.notes, note),
            recalibrated={
                _SLOPE_KEY: self.slope,
                _INTERCEPT_KEY: self.intercept,
                _TEMPERATURE_KEY: self.temperature,
                _LABEL_COUNT_KEY: float(judged_count),
            },
        )


class RecalibratedLocalizer(BaseLocalizer):
    """Localizer that corrects the probabilities of another localizer by the judgements in a store.

    It reads the judgements at the first diagnosis and refreshes them every ten minutes. If the store cannot
    be read, the last correction stays in use.

    Args:
        localizer: the localizer to correct.
        store: store of the judgements.
        tenant: owner of the judgements.
        refresh_interval_s: seconds between reads of the judgements.
    """

    def __init__(
        self,
        localizer: Localizer,
        store: Store,
        *,
        tenant: str = "",
        refresh_interval_s: float = _REFRESH_INTERVAL_S,
    ) -> None:
        self.localizer, self._store, self._tenant = localizer, store, tenant
        self._refresh_interval_s = refresh_interval_s
        self.name = localizer.name
        self._lock = threading.Lock()
        self._recalibrations: dict[str, Recalibration] = {}
        self._read_at: float | None = None

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:
        """Diagnose a run and correct the probabilities if there are enough judgements."""
        diagnosis = self.localizer.locate(trajectory, findings)
        correction = self._load_recalibrations().get(diagnosis.method)
        return diagnosis if correction is None else correction.apply(diagnosis)

    def close(self) -> None:
        """Close the corrected localizer."""
        self.localizer.close()

    def _load_recalibrations(self) -> dict[str, Recalibration]:
        with self._lock:
            now = time.monotonic()
            if self._read_at is None or now - self._read_at > self._refresh_interval_s:
                self._read_at = now
                try:
                    recalibrations = fit_recalibrations(iter_run_labels(self._store, tenant=self._tenant))
                    self._recalibrations = {
                        recalibration.method: recalibration for recalibration in recalibrations
                    }
                except StoreError:
                    pass
            return self._recalibrations


def fit_recalibrations(labels: Iterable[RunLabel]) -> tuple[Recalibration, ...]:
    """Return a correction for each method, ordered by name; with too few judgements it changes nothing."""
    by_method: dict[str, list[RunLabel]] = {}
    for label in labels:
        by_method.setdefault(label.diagnosis.method, []).append(label)
    return tuple(
        _fit_recalibration(method, method_labels) for method, method_labels in sorted(by_method.items())
    )


def _fit_recalibration(method: str, labels: Sequence[RunLabel]) -> Recalibration:
    outcomes = [
        (_undo_recalibration(label.diagnosis), label.failed)
        for label in labels
        if label.failed is not None and 0 < label.diagnosis.probability < 1
    ]
    rankings = [ranking for label in labels if (ranking := _to_labelled_ranking(label)) is not None]
    failed = sum(truth for _, truth in outcomes)
    recalibration = Recalibration(
        method=method, failed_count=failed, passed_count=len(outcomes) - failed, step_count=len(rankings)
    )
    if recalibration.has_enough_outcomes:
        slope, intercept = _fit_platt_scaling(outcomes)
        before, after = _compute_brier_scores(outcomes)
        recalibration = replace(
            recalibration, slope=slope, intercept=intercept, brier_before=before, brier_after=after
        )
    return (
        replace(recalibration, temperature=_fit_temperature(rankings))
        if recalibration.has_enough_steps
        else recalibration
    )


def _undo_recalibration(diagnosis: Diagnosis) -> float:
    """Recover the method's own failure probability by inverting the correction of the diagnosis."""
    parameters = diagnosis.recalibrated
    slope, intercept = parameters.get(_SLOPE_KEY, 1.0), parameters.get(_INTERCEPT_KEY, 0.0)
    return _logistic((_log_odds(diagnosis.probability) - intercept) / max(slope, _MIN_SLOPE))


def _to_labelled_ranking(label: RunLabel) -> LabelledRanking | None:
    steps = [hypothesis.step for hypothesis in label.diagnosis.hypotheses]
    if label.step is None or label.step not in steps or len(steps) < 2:
        return None
    temperature = label.diagnosis.recalibrated.get(_TEMPERATURE_KEY, 1.0)
    probabilities = [hypothesis.probability for hypothesis in label.diagnosis.hypotheses]
    return tuple(_apply_temperature(probabilities, 1 / max(temperature, 0.01))), steps.index(label.step)


def _fit_platt_scaling(outcomes: Sequence[LabelledOutcome]) -> tuple[float, float]:
    """Fit slope and intercept by minimal log-loss, with a ridge towards 1 and 0, by Newton's method."""
    slope, intercept = 1.0, 0.0
    points = [(_log_odds(p), float(failed)) for p, failed in outcomes]
    for _ in range(50):
        g1, g0 = _REGULARIZATION * (slope - 1.0), _REGULARIZATION * intercept
        h11, h10, h00 = _REGULARIZATION, 0.0, _REGULARIZATION
        for x, y in points:
            p = _logistic(slope * x + intercept)
            w = p * (1 - p)
            g1, g0 = g1 + (p - y) * x, g0 + p - y
            h11, h10, h00 = h11 + w * x * x, h10 + w * x, h00 + w
        determinant = h11 * h00 - h10 * h10
        d1, d0 = (h00 * g1 - h10 * g0) / determinant, (h11 * g0 - h10 * g1) / determinant
        # Bound the step: far from the minimum a full Newton step may overshoot.
        scale = min(1.0, 1.0 / max(abs(d1), abs(d0), 1e-12))
        slope, intercept = slope - scale * d1, intercept - scale * d0
        if max(abs(d1), abs(d0)) < 1e-9:
            break
    return max(_MIN_SLOPE, slope), intercept


def _compute_brier_scores(outcomes: Sequence[LabelledOutcome], folds: int = 5) -> tuple[float, float]:
    """Return the mean squared error before, and after a correction learnt from the other folds."""
    before = sum((p - y) ** 2 for p, y in outcomes) / len(outcomes)
    after = 0.0
    for fold in range(folds):
        slope, intercept = _fit_platt_scaling(
            [outcome for index, outcome in enumerate(outcomes) if index % folds != fold]
        )
        test_outcomes = outcomes[fold::folds]
        after += sum((_apply_platt_scaling(p, slope, intercept) - y) ** 2 for p, y in test_outcomes)
    return before, after / len(outcomes)


def _fit_temperature(rankings: Sequence[LabelledRanking]) -> float:
    """Fit the exponent by minimal log-loss over a grid, regularised towards 1."""

    def loss(temperature: float) -> float:
        total = _REGULARIZATION * math.log(temperature) ** 2 / 2
        for probabilities, correct_rank in rankings:
            total -= math.log(max(_apply_temperature(probabilities, temperature)[correct_rank], 1e-12))
        return total

    return min(_TEMPERATURES, key=lambda one: (round(loss(one), 12), abs(math.log(one))))


def _apply_temperature(probabilities: Sequence[float], temperature: float) -> list[float]:
    """Return the probabilities to the power of the temperature, scaled to the same sum."""
    if temperature == 1.0 or not probabilities:
        return list(probabilities)
    total = sum(probabilities)
    raised: list[Any] = [max(p, 0.0) ** temperature for p in probabilities]
    scale = total / sum(raised) if sum(raised) > 0 else 0.0
    return [min(1.0, float(p * scale)) for p in raised]


def _apply_platt_scaling(p: float, slope: float, intercept: float) -> float:
    return _logistic(slope * _log_odds(p) + intercept)


def _log_odds(p: float) -> float:
    clipped = min(1 - _PROBABILITY_CLIP, max(_PROBABILITY_CLIP, p))
    return math.log(clipped / (1 - clipped))


def _logistic(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))
