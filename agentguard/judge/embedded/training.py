"""Training of the embedded model: a specialist for each kind of log, a portable ranker, and calibration.

Training is deterministic: forests are seeded, folds are assigned from sorted groups, all else is convex.
Calibration uses scores out of fold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agentguard.errors import JudgeError
from agentguard.judge.embedded.conditional_logit import Array, LinearScorer, fit_weights
from agentguard.judge.embedded.features.table import StepTable, build_step_table
from agentguard.judge.embedded.log_kind import build_log_kind, build_structure_key
from agentguard.judge.embedded.model import EmbeddedModel, LogKindModel, append_answer_columns
from agentguard.judge.embedded.outcome_model import MIN_RUNS_PER_OUTCOME as MIN_OUTCOMES
from agentguard.judge.embedded.outcome_model import (
    OutcomeModel,
    build_run_vector,
    calibrate,
    fit_outcome_model,
)
from agentguard.judge.embedded.ranker import (
    MIN_RUNS,
    Ranker,
    build_signal_model,
    fit_portable_ranker,
    fit_ranker,
)
from agentguard.trajectory.model import Record

_FOLD_COUNT = 4
_OUTCOME_REPEATS = 3
_TEMPERATURES = np.linspace(0.3, 2.5, 45)
_SIGNAL_RIDGE = 10.0

SignalFunction = Callable[[Record], Array]
"""Returns a run's external signals: shape (candidates, signals), rows as in `build_step_table`.

A higher value supports the step. Of the annotation it may read only the group, to exclude what was learnt
from the same question: only then does a signal mean the same in training as on a new run.
"""


def train_model(
    records: Sequence[Record],
    *,
    seed: int = 0,
    with_answer: bool = False,
    signals: SignalFunction | None = None,
    ridge: float = _SIGNAL_RIDGE,
) -> EmbeddedModel:
    """Train a model on annotated runs.

    Args:
        records: runs with a root cause, an outcome, or both; others are ignored.
        seed: seed of the forests and folds.
        with_answer: let the ranker read the gold answers.
        signals: further columns; their weight is learnt out of fold. Without signals, and for a run without
            them, the model is the same.
        ridge: ridge penalty of the signals' weights.

    Raises:
        JudgeError: no run is annotated.
    """
    annotated = [
        r
        for r in records
        if r.trajectory.steps and (_get_root_cause_step(r) is not None or _get_failed_label(r) is not None)
    ]
    if not annotated:
        raise JudgeError("there is nothing to learn from: no run has a root cause or an outcome")
    tables = [_build_table(record, with_answer) for record in annotated]
    signal_data = None if signals is None else _SignalData([signals(record) for record in annotated], ridge)
    by_kind: dict[str, list[int]] = {}
    for index, table in enumerate(tables):
        by_kind.setdefault(build_structure_key(table.layout), []).append(index)
    specialists = []
    for name in sorted(by_kind):
        indices = by_kind[name]
        kind_signals = None if signal_data is None else signal_data.select(indices)
        specialists.append(
            _fit_specialist([annotated[i] for i in indices], [tables[i] for i in indices], kind_signals, seed)
        )
    return EmbeddedModel(
        specialists=tuple(
            specialist
            for specialist in specialists
            if specialist.ranker is not None or specialist.outcome is not None
        ),
        portable=_fit_portable(annotated, tables, signal_data),
        with_answer=with_answer,
    )


@dataclass(frozen=True, slots=True)
class _SignalData:
    """Signals of the runs, and the ridge penalty of their weights."""

    signals: Sequence[Array]
    ridge: float

    def select(self, indices: Sequence[int]) -> _SignalData:
        """Return the signals of a subset of the runs."""
        return _SignalData([self.signals[i] for i in indices], self.ridge)


def _build_table(record: Record, with_answer: bool) -> StepTable:
    table = build_step_table(record.trajectory)
    return (
        replace(table, values=append_answer_columns(table, record.annotation.answer))
        if with_answer
        else table
    )


def _fit_specialist(
    records: Sequence[Record], tables: Sequence[StepTable], signals: _SignalData | None, seed: int
) -> LogKindModel:
    return LogKindModel(
        kind=build_log_kind([table.layout for table in tables]),
        ranker=_fit_kind_ranker(records, tables, signals, seed),
        outcome=_fit_outcome(records, tables, seed),
        runs=len(records),
    )


def _fit_kind_ranker(
    records: Sequence[Record], tables: Sequence[StepTable], signals: _SignalData | None, seed: int
) -> Ranker | None:
    places = [
        i for i, (r, t) in enumerate(zip(records, tables, strict=True)) if _build_labels(r, t).sum() > 0
    ]
    if len(places) < MIN_RUNS:
        return None
    values = [tables[i].values for i in places]
    chosen = [_build_labels(records[i], tables[i]) for i in places]
    fitted = fit_ranker(values, chosen, seed=seed)
    folds = assign_folds([_build_group_key(records[i], n) for n, i in enumerate(places)], _FOLD_COUNT, seed)
    scores: list[Array] = [np.zeros(0)] * len(places)
    for fold in range(_FOLD_COUNT):
        train_indices = [i for i, f in enumerate(folds) if f != fold]
        part = fit_ranker([values[i] for i in train_indices], [chosen[i] for i in train_indices], seed=seed)
        for i in np.flatnonzero(folds == fold):
            scores[i] = part.score(values[i])
    return _calibrate_ranker(fitted, scores, chosen, None if signals is None else signals.select(places))


def _calibrate_ranker(
    fitted: Ranker, scores: Sequence[Array], chosen: Sequence[Array], signals: _SignalData | None
) -> Ranker:
    """Add the temperature and the signal weights, learnt from scores out of fold."""
    temperature = _fit_temperature(scores, chosen)
    signal_model = (
        None if signals is None else _fit_signal_weights([temperature * s for s in scores], chosen, signals)
    )
    return replace(fitted, temperature=temperature, beside=signal_model)


def _fit_signal_weights(offsets: Sequence[Array], chosen: Sequence[Array], data: _SignalData) -> LinearScorer:
    """Fit the weights of the signals; they are at least 0, since a signal can only support a step."""
    labelled = [i for i, labels in enumerate(chosen) if labels.sum() > 0]
    runs = np.concatenate([np.full(len(chosen[i]), n) for n, i in enumerate(labelled)]).astype(np.intp)
    signals = np.vstack([data.signals[i] for i in labelled])
    labels, offset = (np.concatenate([arrays[i] for i in labelled]) for arrays in (chosen, offsets))
    weights = fit_weights(signals, labels, runs, ridge=data.ridge, offset=offset)
    return build_signal_model(np.maximum(weights, 0.0).tolist())


def _fit_portable(
    records: Sequence[Record], tables: Sequence[StepTable], signals: _SignalData | None
) -> Ranker:
    places = [i for i, record in enumerate(records) if _get_root_cause_step(record) is not None]
    values = [tables[i].values for i in places]
    chosen = [_build_labels(records[i], tables[i]) for i in places]
    fitted = fit_portable_ranker(values, chosen)
    if not any(labels.sum() for labels in chosen):
        return fitted
    # Sixteen strongly shrunk weights hardly overfit, so the temperature may be learnt on the same runs.
    scores = [fitted.score(v) for v in values]
    return _calibrate_ranker(fitted, scores, chosen, None if signals is None else signals.select(places))


def _fit_temperature(scores: Sequence[Array], chosen: Sequence[Array]) -> float:
    """Select the temperature with minimal log-loss (Guo et al. 2017) from a grid."""
    labelled = [(s, c) for s, c in zip(scores, chosen, strict=True) if c.sum() > 0]

    def loss(temperature: float) -> float:
        total = 0.0
        for score, labels in labelled:
            z = temperature * score
            total -= float(z[labels > 0][0] - z.max() - np.log(np.exp(z - z.max()).sum()))
        return total

    return float(min(_TEMPERATURES, key=loss))


def _fit_outcome(records: Sequence[Record], tables: Sequence[StepTable], seed: int) -> OutcomeModel | None:
    labelled = [(r, t) for r, t in zip(records, tables, strict=True) if _get_failed_label(r) is not None]
    failed = np.array([bool(_get_failed_label(r)) for r, _ in labelled], dtype=bool)
    if min(failed.sum(), (~failed).sum()) < MIN_OUTCOMES:
        return None
    values = np.vstack([build_run_vector(t.layout) for _, t in labelled])
    groups = [_build_group_key(r, n) for n, (r, _) in enumerate(labelled)]
    odds = [_predict_out_of_fold(values, failed, groups, seed + repeat) for repeat in range(_OUTCOME_REPEATS)]
    return calibrate(fit_outcome_model(values, failed, seed=seed), np.mean(odds, axis=0), failed)


def _predict_out_of_fold(values: Array, failed: NDArray[np.bool_], groups: Sequence[str], seed: int) -> Array:
    folds, odds = assign_folds(groups, _FOLD_COUNT, seed), np.zeros(len(failed))
    for fold in range(_FOLD_COUNT):
        train, test = folds != fold, folds == fold
        if test.any() and 0 < failed[train].sum() < train.sum():
            odds[test] = fit_outcome_model(values[train], failed[train], seed=seed).predict_log_odds(
                values[test]
            )
    return odds


def assign_folds(groups: Sequence[str], folds: int, seed: int) -> NDArray[np.intp]:
    """Assign a fold to each row; rows of one group share a fold."""
    names = sorted(set(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    fold_of = {names[index]: number % folds for number, index in enumerate(order)}
    return np.array([fold_of[group] for group in groups], dtype=np.intp)


def _build_labels(record: Record, table: StepTable) -> Array:
    cause = _get_root_cause_step(record)
    return np.array([float(index == cause) for index in table.steps])


def _get_root_cause_step(record: Record) -> int | None:
    cause = record.annotation.root_cause
    return None if cause is None else cause.step


def _get_failed_label(record: Record) -> bool | None:
    return record.annotation.failed


def _build_group_key(record: Record, place: int) -> str:
    return record.annotation.group or f"\0{place}"


def build_untrained_model() -> EmbeddedModel:
    """Return a model with only the structural prior, for the case that no run is annotated."""
    return EmbeddedModel(specialists=(), portable=fit_portable_ranker([], []))
