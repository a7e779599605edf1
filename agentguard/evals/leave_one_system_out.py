"""Leave-one-system-out evaluation: each system is scored by a model that was trained on the others alone.

A source is the set of runs of one agent in one data set. The training data of a source has neither runs of
its data set nor runs with a question of it. Each source weighs the same in the average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from agentguard.errors import EvaluationError
from agentguard.evals import metrics
from agentguard.evals.datasets.dataset import Dataset
from agentguard.evals.methods import as_localizer, resolve_method
from agentguard.evals.prediction import predict
from agentguard.evals.scoring import replace_non_finite
from agentguard.evals.splits import list_groups
from agentguard.evals.statistics import mean, wilson_interval
from agentguard.judge.embedded.features.run_signals import compute_run_signals
from agentguard.judge.embedded.model import EmbeddedModel
from agentguard.judge.embedded.outcome_model import build_run_rows, fit_outcome_model
from agentguard.judge.embedded.relative_outcome import MIN_BATCH_RUNS, score_batch
from agentguard.judge.embedded.training import (
    TransferExample,
    assign_folds,
    build_transfer_examples,
    fit_transferable_model,
)
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.trajectory.grouping import group_by_agent
from agentguard.trajectory.model import Record
from agentguard.verdict import Verdict

STEP_BASELINES = ("two_line", "last_error", "first_finding", "last_step")
"""Baselines of the root-cause step, beside the model."""
RISKS = (0.05, 0.1)
"""Risks at which the coverage is reported."""
LABELLED_RUNS = (10, 20, 40, 80)
"""Numbers of labelled runs of the same agent for which its own outcome model is measured."""
_MIN_SOURCE_RUNS = 5
_MIN_CURVE_RUNS = 10  # runs of each outcome
_CURVE_DRAWS = 3

ReportProgress = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Share of ``n`` runs with its Wilson interval (95 %)."""

    n: int
    value: float
    interval: tuple[float, float]

    @classmethod
    def of(cls, flags: Iterable[bool]) -> Share:
        """Return the share of true flags; NaN without flags."""
        values = list(flags)
        value = mean(values)
        return cls(n=len(values), value=value, interval=wilson_interval(value, len(values)))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRow:
    """Outcome scores of one source.

    Attributes:
        false_causes: share of the passed runs that are called failed.
        detected: share of the failed runs that are called failed.
        undecided: share of all runs with this verdict.
        auroc: of the probability of failure; NaN if only one outcome occurs.
        coverage: by risk, the largest share of runs, most certain first, whose share of errors is at most the
            risk.
    """

    false_causes: Share
    detected: Share
    undecided: Share
    auroc: float
    coverage: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemStepScores:
    """Root-cause scores of one source: accuracy of the model and the baselines, and mean confidence."""

    accuracy: Share
    confidence: float
    baselines: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceRow:
    """Scores of one source.

    Attributes:
        name: data set and agent.
        runs, failed, passed: numbers of runs.
        run_length_auroc: AUROC of the number of steps alone.
        single: outcome of each run alone; None without outcomes.
        relative: outcome of each run among the others of its source; None if there are too few runs.
        labelled: number of labelled runs of the agent to the AUROC of a model trained on them, on other
            questions; without the numbers for which there are too few runs.
        steps: scores of the root cause; None without annotated steps.
    """

    name: str
    runs: int
    failed: int
    passed: int
    run_length_auroc: float
    single: OutcomeRow | None
    relative: OutcomeRow | None
    labelled: Mapping[str, float]
    steps: SystemStepScores | None

    @property
    def has_both_outcomes(self) -> bool:
        """Return whether runs of the source failed and passed."""
        return self.failed > 0 and self.passed > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaveOneSystemOut:
    """Result of the evaluation: one row for each source, and the risk of the verdicts."""

    rows: tuple[SourceRow, ...]
    risk: float

    def average(self, select: Callable[[SourceRow], float | None]) -> float:
        """Return the mean of a score over the sources that have it; NaN if none has."""
        values = [value for row in self.rows if (value := select(row)) is not None and not math.isnan(value)]
        return mean(values)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; NaN becomes None."""
        return dict(replace_non_finite({"risk": self.risk, "sources": [asdict(row) for row in self.rows]}))


def evaluate_leave_one_system_out(
    datasets: Sequence[Dataset], *, risk: float = 0.1, report_progress: ReportProgress | None = None
) -> LeaveOneSystemOut:
    """Score every source with a model of the other data sets.

    Args:
        datasets: annotated runs; each data set is held out as a whole.
        risk: share of the passed runs that may be called failed.
        report_progress: called with the name of each source before it is scored.

    Raises:
        EvaluationError: there are fewer than two data sets, or no source has an annotation.
    """
    if len(datasets) < 2:
        raise EvaluationError("leave-one-system-out needs at least two paths, one for each data set")
    sources = [source for number, data in enumerate(datasets) for source in _split_sources(number, data)]
    if not sources:
        raise EvaluationError("no source has enough annotated runs to be scored")
    rows = []
    for source in sources:
        if report_progress:
            report_progress(source.name)
        groups = set(source.groups)
        training = [
            example
            for other in sources
            if other.number != source.number
            for example, group in zip(other.examples, other.groups, strict=True)
            if group.startswith("\0") or group not in groups
        ]
        rows.append(_score_source(source, fit_transferable_model(training), risk))
    return LeaveOneSystemOut(rows=tuple(rows), risk=risk)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    number: int
    name: str
    examples: tuple[TransferExample, ...]
    groups: tuple[str, ...]

    @property
    def outcomes(self) -> list[bool | None]:
        return [example.record.annotation.failed for example in self.examples]


def _split_sources(number: int, data: Dataset) -> list[_Source]:
    records = [r for r in data.records if r.trajectory.steps and _is_annotated(r)]
    members: dict[str, list[int]] = {}
    for place, agent in enumerate(group_by_agent([record.trajectory for record in records])):
        members.setdefault(agent, []).append(place)
    groups = list_groups(records)
    sources = []
    for agent, places in members.items():
        if len(places) < _MIN_SOURCE_RUNS:
            continue
        name = f"{data.name}: {agent}" if len(members) > 1 else data.name
        examples = tuple(build_transfer_examples([records[place] for place in places], [name] * len(places)))
        sources.append(
            _Source(number=number, name=name, examples=examples, groups=tuple(groups[p] for p in places))
        )
    return sources


def _is_annotated(record: Record) -> bool:
    cause = record.annotation.root_cause
    return record.annotation.failed is not None or (cause is not None and cause.step is not None)


def _score_source(source: _Source, model: EmbeddedModel, risk: float) -> SourceRow:
    localizer = EmbeddedLocalizer.from_model(model, risk=risk)
    diagnoses = [localizer.locate(e.record.trajectory, e.findings) for e in source.examples]
    outcomes = source.outcomes
    single = [(d.verdict, d.probability) for d in diagnoses]
    lengths = [float(len(e.record.trajectory.steps)) for e in source.examples]
    known = [place for place, outcome in enumerate(outcomes) if outcome is not None]
    labels = [bool(outcomes[place]) for place in known]
    return SourceRow(
        name=source.name,
        runs=len(outcomes),
        failed=sum(labels),
        passed=len(labels) - sum(labels),
        run_length_auroc=metrics.auroc(labels, [lengths[place] for place in known]),
        single=_score_outcomes(labels, [single[place] for place in known]),
        labelled=_score_label_curve([source.examples[place] for place in known], labels),
        relative=_score_relative(
            [source.examples[place] for place in known],
            labels,
            [single[place] for place in known],
            model,
            risk,
        ),
        steps=_score_steps(source.examples, [d.hypotheses for d in diagnoses]),
    )


def _score_outcomes(labels: Sequence[bool], answers: Sequence[tuple[Verdict, float]]) -> OutcomeRow | None:
    if not labels:
        return None
    pairs = list(zip(labels, answers, strict=True))
    correct = [label == (p > 0.5) for label, (_, p) in pairs]
    points = metrics.risk_coverage(correct, [abs(p - 0.5) for _, (_, p) in pairs])
    return OutcomeRow(
        false_causes=Share.of(v is Verdict.FAILED for label, (v, _) in pairs if not label),
        detected=Share.of(v is Verdict.FAILED for label, (v, _) in pairs if label),
        undecided=Share.of(v is Verdict.UNDECIDED for _, (v, _) in pairs),
        auroc=metrics.auroc(labels, [p for _, (_, p) in pairs]),
        coverage={
            f"{risk:g}": max((point.coverage for point in points if point.risk <= risk), default=0.0)
            for risk in RISKS
        },
    )


def _score_relative(
    examples: Sequence[TransferExample],
    labels: Sequence[bool],
    single: Sequence[tuple[Verdict, float]],
    model: EmbeddedModel,
    risk: float,
) -> OutcomeRow | None:
    """Score the comparison; as in `compare_runs`, a failure by the rules for a single run remains one."""
    if model.relative is None or len(examples) < MIN_BATCH_RUNS:
        return None
    signals = np.vstack([compute_run_signals(e.table.layout, e.findings) for e in examples])
    scores = score_batch(signals)
    low, high = model.relative.compute_thresholds(risk)
    verdicts = [Verdict.from_score(score, low=low, high=high) for score in scores]
    probabilities = model.relative.predict_probability(scores).tolist()
    compared = zip(verdicts, probabilities, strict=True)
    return _score_outcomes(
        labels,
        [
            alone if alone[0] is Verdict.FAILED else together
            for alone, together in zip(single, compared, strict=True)
        ],
    )


def _score_label_curve(examples: Sequence[TransferExample], labels: Sequence[bool]) -> dict[str, float]:
    """Return the AUROC by number of labelled runs: the mean of three draws, tested on other questions."""
    failed = np.array(labels, dtype=bool)
    if min(failed.sum(), (~failed).sum()) < _MIN_CURVE_RUNS:
        return {}
    groups = list_groups([example.record for example in examples])
    runs = build_run_rows([example.table.layout for example in examples])
    curve: dict[str, float] = {}
    for size in LABELLED_RUNS:
        scores = []
        for draw in range(_CURVE_DRAWS):
            test = assign_folds(groups, 2, draw) == 0
            pool = np.flatnonzero(~test)
            if len(pool) < size or not 0 < failed[test].mean() < 1:
                continue
            drawn = np.random.default_rng([size, draw]).choice(pool, size, replace=False)
            train = np.isin(np.arange(len(failed)), drawn)
            if 0 < failed[train].mean() < 1:
                model = fit_outcome_model(runs.select(train), failed[train])
                odds = model.predict_log_odds(runs.select(test))
                scores.append(metrics.auroc(failed[test].tolist(), odds.tolist()))
        if len(scores) == _CURVE_DRAWS:
            curve[str(size)] = mean(scores)
    return curve


def _score_steps(
    examples: Sequence[TransferExample], hypotheses: Sequence[Sequence[Any]]
) -> SystemStepScores | None:
    labelled = [
        (example, ranked, cause.step)
        for example, ranked in zip(examples, hypotheses, strict=True)
        if (cause := example.record.annotation.root_cause) is not None and cause.step is not None
    ]
    if not labelled:
        return None
    baselines = {}
    for name in STEP_BASELINES:
        method = as_localizer(resolve_method(name).build())
        predictions = [predict(method, e.record.trajectory, e.findings, run="") for e, _, _ in labelled]
        baselines[name] = mean(
            bool(p.steps) and p.steps[0] == step
            for p, (_, _, step) in zip(predictions, labelled, strict=True)
        )
    return SystemStepScores(
        accuracy=Share.of(bool(ranked) and ranked[0].step == step for _, ranked, step in labelled),
        confidence=mean(ranked[0].probability if ranked else 0.0 for _, ranked, _ in labelled),
        baselines=baselines,
    )
