"""Outcome prediction: a model for kinds of log with both outcomes known, a heuristic for all others.

Conformal prediction (Vovk et al. 2005) over out-of-fold scores sets the thresholds. At a risk r, the expected
share of passed runs that are classified as failed is at most r; so is the expected share of failed runs that
are classified as passed. This holds if new runs are similar to the training runs.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agentguard.detect.base import Finding
from agentguard.judge.embedded.conditional_logit import Array, FeatureScaler
from agentguard.judge.embedded.features.roles import RunLayout, SpeakerRole
from agentguard.judge.embedded.features.run_level import RUN_FEATURE_NAMES, compute_run_features
from agentguard.judge.embedded.forest import Forest, fit_forest
from agentguard.judge.embedded.text_outcome import TextOutcomeModel, count_run_text, fit_text_outcome
from agentguard.trajectory.model import Source, Step

_TREE_COUNT, _FEATURE_SHARE, _INVERSE_RIDGE = 100, 0.2, 0.01

_SUCCESS_PATTERN = re.compile(
    r"\byou(?: have|'ve)? w[io]n\b|\bcongratulations\b|\ball tests? pass"
    r"|\b(\d+) (?:out of(?: a possible)?|/) \1\b|\*\*\* the end \*\*\*"
    r"|\btask (?:has been |was )?(?:completed|succeeded|solved)\b"
)
_FAILURE_PATTERN = re.compile(
    r"\byou(?: have|'ve)? (?:lost|died|failed)\b|\bgame over\b|\btests? failed\b|\b[1-9]\d* failed\b"
)
_SURRENDER_PATTERN = re.compile(
    r"\bout of options\b|\bgiv(?:e|ing) up\b"
    r"|\b(?:could not|couldn't|cannot|can't|unable to|not able to|failed to)"
    r" (?:\w+ ){0,2}(?:complete|finish|solve|fulfil|reach|find|determine|answer|achieve|do)\b"
    r"|\b(?:request|task) (?:was |has |is )?not (?:been )?(?:satisfied|completed?|finished|solved)\b"
)
_ENDING_CHARS = 600  # code points at the end of a text that are searched for a verdict
# Factors of signs on the odds of failure. They are set by hand, since an unknown kind of log has no training
# data. They only separate undecided runs from decided ones.
_ENDING_ODDS = {"success_text": 0.05, "failure_text": 30.0, "surrender": 6.0, "truncation": 3.0}
_FINDING_WEIGHT = 0.9
UNKNOWN_FAILED_THRESHOLD, UNKNOWN_PASSED_THRESHOLD = 0.8, 0.15
"""Failure probabilities from which a run of an unknown kind counts as failed, and up to which as passed."""


@dataclass(frozen=True, slots=True)
class RunRows:
    """Input of an outcome model, one row for each run: features, and counts of `count_run_text`."""

    values: Array
    counts: Array

    def select(self, rows: NDArray[np.bool_]) -> RunRows:
        """Return some of the rows."""
        return RunRows(self.values[rows], self.counts[rows])


@dataclass(frozen=True, slots=True)
class OutcomeModel:
    """Outcome model of one kind of log.

    Attributes:
        scaler, weights, bias: ridge logit over the run's features.
        forest: trees over the same features.
        slope, intercept: Platt's (1999) scaling of the mean log-odds, learnt out of fold.
        passed, failed: calibrated out-of-fold probabilities of the training runs, ascending.
        text: model of the run's words; None in models that lack it.
    """

    scaler: FeatureScaler
    weights: Array
    bias: float
    forest: Forest
    slope: float
    intercept: float
    passed: Array
    failed: Array
    text: TextOutcomeModel | None = None

    def predict_log_odds(self, runs: RunRows) -> Array:
        """Return the mean log-odds of the members for each row."""
        linear = self.scaler(runs.values) @ self.weights + self.bias
        p = np.clip(self.forest.predict_probability(runs.values), 0.02, 0.98)
        members = [linear, np.log(p / (1 - p))]
        if self.text is not None:
            members.append(self.text.predict_log_odds(runs.counts))
        return np.asarray(np.mean(members, axis=0))

    def predict_probability(self, runs: RunRows) -> Array:
        """Return the calibrated probability that each run failed."""
        return apply_platt_scaling(self.predict_log_odds(runs), self.slope, self.intercept)

    def compute_thresholds(self, error_rate: float) -> tuple[float, float]:
        """Return ``(low, high)``: a run counts as passed up to low, and as failed above high."""
        return _compute_conformal_thresholds(self.passed, self.failed, error_rate)


def apply_platt_scaling(log_odds: Array, slope: float, intercept: float) -> Array:
    """Return the logistic function of a line in the log-odds."""
    return np.asarray(1 / (1 + np.exp(-(slope * log_odds + intercept))))


def fit_platt_scaling(
    scores: Array, failed: NDArray[np.bool_], weights: Array | None = None
) -> tuple[float, float]:
    """Fit slope and intercept of `apply_platt_scaling`; the slope is positive."""
    from sklearn.linear_model import LogisticRegression

    line = LogisticRegression(C=1.0).fit(scores[:, None], failed, sample_weight=weights)
    return max(0.05, float(line.coef_[0, 0])), float(line.intercept_[0])


def build_run_rows(layouts: Sequence[RunLayout]) -> RunRows:
    """Return the input of an outcome model for some runs."""
    features = [compute_run_features(layout) for layout in layouts]
    return RunRows(
        np.array([[float(one[name]) for name in RUN_FEATURE_NAMES] for one in features]),
        np.vstack([count_run_text(layout) for layout in layouts]),
    )


def fit_outcome_model(runs: RunRows, failed: NDArray[np.bool_], *, seed: int = 0) -> OutcomeModel:
    """Fit the members; `calibrate` adds calibration and thresholds."""
    from sklearn.linear_model import LogisticRegression

    values = runs.values
    scaler = FeatureScaler.fit(values)
    logit = LogisticRegression(C=_INVERSE_RIDGE, max_iter=1_000).fit(scaler(values), failed)
    columns = list(range(values.shape[1]))
    forest = fit_forest(
        values,
        failed.astype(float),
        columns=columns,
        kind="extra",
        trees=_TREE_COUNT,
        share=_FEATURE_SHARE,
        seed=seed,
    )
    empty: Array = np.zeros(0)
    return OutcomeModel(
        scaler,
        logit.coef_[0].astype(float),
        float(logit.intercept_[0]),
        forest,
        1.0,
        0.0,
        empty,
        empty,
        fit_text_outcome(runs.counts, failed),
    )


def calibrate(model: OutcomeModel, log_odds: Array, failed: NDArray[np.bool_]) -> OutcomeModel:
    """Return the model with Platt scaling and thresholds learnt from out-of-fold log-odds."""
    slope, intercept = fit_platt_scaling(log_odds, failed)
    p = apply_platt_scaling(log_odds, slope, intercept)
    return replace(
        model, slope=slope, intercept=intercept, passed=np.sort(p[~failed]), failed=np.sort(p[failed])
    )


def _compute_conformal_thresholds(passed: Array, failed: Array, error_rate: float) -> tuple[float, float]:
    """Return the conformal quantiles ``(low, high)``; if they cross, both are the second one."""
    high_at = math.ceil((1 - error_rate) * (len(passed) + 1))
    high = float(passed[high_at - 1]) if 1 <= high_at <= len(passed) else 1.0
    low_at = math.floor(error_rate * (len(failed) + 1))
    low = float(failed[low_at - 1]) if 1 <= low_at <= len(failed) else 0.0
    if low > high:
        # Too many runs classified as failed is worse than too few classified as passed.
        low = high
    return low, high


def estimate_failure(layout: RunLayout, findings: Sequence[Finding]) -> float:
    """Estimate the failure probability of a run of an unknown kind, from its end and its findings.

    The prior is even odds. The heuristic orders runs; it is not calibrated.
    """
    odds = math.prod(_ENDING_ODDS[sign] for sign in find_ending_signs(layout))
    best: dict[str, float] = {}
    for finding in findings:
        best[finding.detector] = max(best.get(finding.detector, 0.0), finding.probability)
    for name in sorted(best):
        odds /= 1 - _FINDING_WEIGHT * min(1.0, max(0.0, best[name]))
    return odds / (1 + odds)


def find_ending_signs(layout: RunLayout) -> tuple[str, ...]:
    """Return the signs of success, failure, surrender or truncation at the end of a run."""
    signs = []
    verdict = _find_last_environment_text(layout.run.steps)
    if _SUCCESS_PATTERN.search(verdict):
        signs.append("success_text")
    elif _FAILURE_PATTERN.search(verdict):
        signs.append("failure_text")
    last = next((i for i in reversed(range(len(layout.roles))) if layout.roles[i] in _SPEAKER_ROLES), None)
    if last is not None and _SURRENDER_PATTERN.search(layout.step_scans[last].lower_text[-_ENDING_CHARS:]):
        signs.append("surrender")
    if last is not None and layout.run.steps[last].observations and not signs:
        signs.append("truncation")  # the agent was still acting when the recording ended
    return tuple(signs)


_SPEAKER_ROLES = (SpeakerRole.WORKER, SpeakerRole.ORCHESTRATOR)


def _find_last_environment_text(steps: Sequence[Step]) -> str:
    """Return the end of the environment's last text, in lower case."""
    for step in reversed(steps):
        if step.observations:
            return step.observations[-1].content[-_ENDING_CHARS:].lower()
        if step.source is Source.ENVIRONMENT:
            return step.content[-_ENDING_CHARS:].lower()
    return ""
