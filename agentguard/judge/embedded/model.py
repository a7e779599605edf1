"""Model of the embedded judge: specialists for known kinds of log, and a portable ranker for all others."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentguard.detect.base import Finding
from agentguard.judge.embedded.conditional_logit import Array
from agentguard.judge.embedded.features.roles import RunLayout
from agentguard.judge.embedded.features.table import StepTable, build_step_table, compute_answer_columns
from agentguard.judge.embedded.finding_evidence import weight_by_findings
from agentguard.judge.embedded.log_kind import LogKind
from agentguard.judge.embedded.outcome_model import (
    UNKNOWN_FAILED_THRESHOLD,
    UNKNOWN_PASSED_THRESHOLD,
    OutcomeModel,
    build_run_rows,
    estimate_failure,
)
from agentguard.judge.embedded.ranker import Ranker, build_signal_model, softmax
from agentguard.judge.embedded.relative_outcome import RelativeOutcomeModel
from agentguard.judge.embedded.rule_outcome import RuleOutcomeModel
from agentguard.trajectory.model import Trajectory

_MIN_STEP_PROBABILITY = 1e-9


@dataclass(frozen=True, slots=True)
class LogKindModel:
    """Models of one kind of log: its ranker, its outcome model, or both.

    Attributes:
        kind: the kind of log.
        ranker: ranker of steps; None if too few runs of the kind were annotated.
        outcome: model of outcomes; None unless enough runs of the kind failed and enough passed.
        runs: number of training runs.
    """

    kind: LogKind
    ranker: Ranker | None
    outcome: OutcomeModel | None
    runs: int


@dataclass(frozen=True, slots=True)
class EmbeddedJudgement:
    """Judgement of a run by the embedded model.

    Attributes:
        table: the run's candidates and features.
        step_probabilities: probability of each candidate to be the root cause, given that the run failed.
        failure_probability: probability that the run failed.
        passed_threshold, failed_threshold: the run counts as passed up to the first, as failed above the
            second.
        is_known_ranking, is_known_outcome: whether a specialist answered.
    """

    table: StepTable
    step_probabilities: Array
    failure_probability: float
    passed_threshold: float
    failed_threshold: float
    is_known_ranking: bool
    is_known_outcome: bool


@dataclass(frozen=True, slots=True)
class EmbeddedModel:
    """Trained embedded judge.

    Attributes:
        specialists: models of known agents.
        portable: ranker of the steps of an unknown agent's run.
        with_answer: whether it was trained to read the gold answer.
        rules: outcome model of a single run of an unknown agent; None if no training run had an outcome.
        relative: outcome model of a run among other runs of an unknown agent; None in the same case.
        transfer_sharpness: exponent of the step probabilities of an unknown agent's run, per logarithm of the
            number of candidates; None for an exponent of 1.
    """

    specialists: tuple[LogKindModel, ...]
    portable: Ranker
    with_answer: bool = False
    rules: RuleOutcomeModel | None = None
    relative: RelativeOutcomeModel | None = None
    transfer_sharpness: float | None = None

    def judge(
        self,
        run: Trajectory,
        findings: Sequence[Finding] = (),
        *,
        risk: float,
        answer: str | None = None,
        signals: Array | None = None,
    ) -> EmbeddedJudgement:
        """Judge a run.

        Args:
            run: the run, with at least one step.
            findings: findings of detectors; ignored if a specialist answers. A finding that a later step
                repaired affects only the ranking.
            risk: accepted share of wrong verdicts, in (0, 0.5].
            answer: the gold answer, for a model that was trained with gold answers.
            signals: external signals, shape ``(candidates, signals)``; ignored by a model without weights for
                them.
        """
        table = build_step_table(run, self._select_groups)
        values = append_answer_columns(table, answer) if self.with_answer else table.values
        layout = table.layout
        ranker = self._find_ranker(layout)
        outcome = next((one.outcome for one in self._find_specialists(layout) if one.outcome), None)
        if ranker is not None:
            steps = ranker.predict_probabilities(values, signals)
        else:
            steps = self.rank_transferred(replace(table, values=values), findings, signals)
        open_findings = [finding for finding in findings if finding.recovered_after is None]
        failed, low, high = self._predict_outcome(layout, outcome, open_findings, risk)
        return EmbeddedJudgement(table, steps, failed, low, high, ranker is not None, outcome is not None)

    def _find_specialists(self, layout: RunLayout) -> list[LogKindModel]:
        return [specialist for specialist in self.specialists if specialist.kind.matches(layout)]

    def _find_ranker(self, layout: RunLayout) -> Ranker | None:
        return next((one.ranker for one in self._find_specialists(layout) if one.ranker), None)

    def _select_groups(self, layout: RunLayout) -> frozenset[str]:
        """Return the groups of features that the ranker of a run reads."""
        return (self._find_ranker(layout) or self.portable).select_groups(layout)

    def rank_transferred(
        self, table: StepTable, findings: Sequence[Finding], signals: Array | None = None
    ) -> Array:
        """Return the step probabilities of a run of an unknown agent; they sum to 1."""
        transferred = self.portable.predict_probabilities(table.values, signals)
        weighted = weight_by_findings(transferred, table, findings)
        if self.transfer_sharpness is None:
            return weighted
        return sharpen_steps(weighted, self.transfer_sharpness)

    def _predict_outcome(
        self, layout: RunLayout, specialist: OutcomeModel | None, findings: Sequence[Finding], risk: float
    ) -> tuple[float, float, float]:
        """Return probability of failure, and the thresholds of passed and failed runs."""
        if specialist is not None:
            low, high = specialist.compute_thresholds(risk)
            return float(specialist.predict_probability(build_run_rows([layout]))[0]), low, high
        if self.rules is not None:
            return self.rules.predict(layout, findings)
        return estimate_failure(layout, findings), UNKNOWN_PASSED_THRESHOLD, UNKNOWN_FAILED_THRESHOLD

    def with_signal_weights(self, weights: Sequence[float]) -> EmbeddedModel:
        """Return the model with the given signal weights in every ranker that was trained without signals."""
        signal_model = build_signal_model(weights)

        def add_signals(ranker: Ranker) -> Ranker:
            return ranker if ranker.beside is not None else replace(ranker, beside=signal_model)

        specialists = tuple(
            one if one.ranker is None else replace(one, ranker=add_signals(one.ranker))
            for one in self.specialists
        )
        return replace(self, specialists=specialists, portable=add_signals(self.portable))


def append_answer_columns(table: StepTable, answer: str | None) -> Array:
    """Append the columns of the gold answer to the table's values."""
    return np.hstack([table.values, compute_answer_columns(table, answer)])


def sharpen_steps(probabilities: Array, sharpness: float) -> Array:
    """Return the step probabilities to the power of ``sharpness`` times the logarithm of their number.

    With one exponent for all runs, a long run has a flat ranking: its many candidates share the probability,
    although the first is right about as often. With an exponent that grows with their logarithm, the best
    value hardly differs between systems.
    """
    exponent = sharpness * math.log(max(2, len(probabilities)))
    return softmax(exponent * np.log(probabilities + _MIN_STEP_PROBABILITY))
