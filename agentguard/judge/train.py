"""Training: one specialist a kind of log, the portable ranker from all of them, and calibration out of fold.

Deterministic: forests are seeded, folds are dealt from sorted groups, everything else is convex.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agentguard.errors import JudgeError
from agentguard.judge.choice import Array, Linear, fit_weights
from agentguard.judge.features.table import StepTable, step_table
from agentguard.judge.kinds import key, kind_of
from agentguard.judge.model import Model, Specialist, with_columns
from agentguard.judge.outcome import MIN_RUNS as MIN_OUTCOMES
from agentguard.judge.outcome import Outcome, calibrated, fit_outcome, run_row
from agentguard.judge.ranker import MIN_RUNS, Ranker, fit_ranker, listening, portable_ranker
from agentguard.trajectory.model import Record

_FOLDS = 4
_OUTCOME_REPEATS = 3
_TEMPERATURES = np.linspace(0.3, 2.5, 45)
_RIDGE_BESIDE = 10.0

Signals = Callable[[Record], Array]
"""Gives a run's signals from outside the judge: shape (candidates, signals), rows as in `step_table`.

A higher value speaks for the step. Of the annotation it may read the group alone, to leave out what was
learnt from the same question: only then does a signal mean the same in training as on a new run.
"""


def train(
    records: Sequence[Record],
    *,
    seed: int = 0,
    with_answer: bool = False,
    signals: Signals | None = None,
    ridge: float = _RIDGE_BESIDE,
) -> Model:
    """Learn from annotated runs alone.

    Args:
        records: runs with a root cause, an outcome, or both; others are left out.
        seed: of the forests and folds.
        with_answer: let the ranker read the gold answers.
        signals: further columns; how much they count beside the rest is learnt out of fold. Without signals,
            and wherever a run is judged without them, the model is the same.
        ridge: how hard the weights of the signals are shrunk.

    Raises:
        JudgeError: no run is annotated.
    """
    useful = [r for r in records if r.trajectory.steps and (_cause(r) is not None or _failed(r) is not None)]
    if not useful:
        raise JudgeError("there is nothing to learn from: no run has a root cause or an outcome")
    tables = [_table(record, with_answer) for record in useful]
    heard = None if signals is None else _Heard([signals(record) for record in useful], ridge)
    by_kind: dict[str, list[int]] = {}
    for place, table in enumerate(tables):
        by_kind.setdefault(key(table.layout), []).append(place)
    specialists = []
    for name in sorted(by_kind):
        places = by_kind[name]
        beside = None if heard is None else heard.of(places)
        specialists.append(
            _specialist([useful[i] for i in places], [tables[i] for i in places], beside, seed)
        )
    return Model(
        specialists=tuple(one for one in specialists if one.ranker is not None or one.outcome is not None),
        portable=_portable(useful, tables, heard),
        with_answer=with_answer,
    )


@dataclass(frozen=True, slots=True)
class _Heard:
    """Signals of some runs, and how hard their weights are shrunk."""

    signals: Sequence[Array]
    ridge: float

    def of(self, places: Sequence[int]) -> _Heard:
        """Those of some of the runs."""
        return _Heard([self.signals[i] for i in places], self.ridge)


def _table(record: Record, with_answer: bool) -> StepTable:
    table = step_table(record.trajectory)
    return replace(table, values=with_columns(table, record.annotation.answer)) if with_answer else table


def _specialist(
    records: Sequence[Record], tables: Sequence[StepTable], heard: _Heard | None, seed: int
) -> Specialist:
    return Specialist(
        kind=kind_of([table.layout for table in tables]),
        ranker=_ranker(records, tables, heard, seed),
        outcome=_outcome(records, tables, seed),
        runs=len(records),
    )


def _ranker(
    records: Sequence[Record], tables: Sequence[StepTable], heard: _Heard | None, seed: int
) -> Ranker | None:
    places = [i for i, (r, t) in enumerate(zip(records, tables, strict=True)) if _labels(r, t).sum() > 0]
    if len(places) < MIN_RUNS:
        return None
    values = [tables[i].values for i in places]
    chosen = [_labels(records[i], tables[i]) for i in places]
    fitted = fit_ranker(values, chosen, seed=seed)
    folds = grouped([_group(records[i], n) for n, i in enumerate(places)], _FOLDS, seed)
    scores: list[Array] = [np.zeros(0)] * len(places)
    for fold in range(_FOLDS):
        rest = [i for i, f in enumerate(folds) if f != fold]
        part = fit_ranker([values[i] for i in rest], [chosen[i] for i in rest], seed=seed)
        for i in np.flatnonzero(folds == fold):
            scores[i] = part.score(values[i])
    return _calibrated(fitted, scores, chosen, None if heard is None else heard.of(places))


def _calibrated(
    fitted: Ranker, scores: Sequence[Array], chosen: Sequence[Array], heard: _Heard | None
) -> Ranker:
    """With the temperature, and how much signals count beside it, learnt from scores out of fold."""
    temperature = _temperature(scores, chosen)
    beside = None if heard is None else _beside([temperature * s for s in scores], chosen, heard)
    return replace(fitted, temperature=temperature, beside=beside)


def _beside(offsets: Sequence[Array], chosen: Sequence[Array], heard: _Heard) -> Linear:
    """Weights of the signals; none is below 0, as what speaks for a step cannot speak against it."""
    held = [i for i, labels in enumerate(chosen) if labels.sum() > 0]
    runs = np.concatenate([np.full(len(chosen[i]), n) for n, i in enumerate(held)]).astype(np.intp)
    signals = np.vstack([heard.signals[i] for i in held])
    labels, offset = (np.concatenate([many[i] for i in held]) for many in (chosen, offsets))
    weights = fit_weights(signals, labels, runs, ridge=heard.ridge, offset=offset)
    return listening(np.maximum(weights, 0.0).tolist())


def _portable(records: Sequence[Record], tables: Sequence[StepTable], heard: _Heard | None) -> Ranker:
    places = [i for i, record in enumerate(records) if _cause(record) is not None]
    values = [tables[i].values for i in places]
    chosen = [_labels(records[i], tables[i]) for i in places]
    fitted = portable_ranker(values, chosen)
    if not any(labels.sum() for labels in chosen):
        return fitted
    # Sixteen heavily shrunk weights hardly overfit: the temperature may be learnt on the same runs.
    scores = [fitted.score(v) for v in values]
    return _calibrated(fitted, scores, chosen, None if heard is None else heard.of(places))


def _temperature(scores: Sequence[Array], chosen: Sequence[Array]) -> float:
    """The temperature of least log-loss (Guo et al. 2017), over a grid."""
    held = [(s, c) for s, c in zip(scores, chosen, strict=True) if c.sum() > 0]

    def loss(temperature: float) -> float:
        total = 0.0
        for score, labels in held:
            z = temperature * score
            total -= float(z[labels > 0][0] - z.max() - np.log(np.exp(z - z.max()).sum()))
        return total

    return float(min(_TEMPERATURES, key=loss))


def _outcome(records: Sequence[Record], tables: Sequence[StepTable], seed: int) -> Outcome | None:
    known = [(r, t) for r, t in zip(records, tables, strict=True) if _failed(r) is not None]
    failed = np.array([bool(_failed(r)) for r, _ in known], dtype=bool)
    if min(failed.sum(), (~failed).sum()) < MIN_OUTCOMES:
        return None
    values = np.vstack([run_row(t.layout) for _, t in known])
    groups = [_group(r, n) for n, (r, _) in enumerate(known)]
    odds = [_out_of_fold(values, failed, groups, seed + repeat) for repeat in range(_OUTCOME_REPEATS)]
    return calibrated(fit_outcome(values, failed, seed=seed), np.mean(odds, axis=0), failed)


def _out_of_fold(values: Array, failed: NDArray[np.bool_], groups: Sequence[str], seed: int) -> Array:
    folds, odds = grouped(groups, _FOLDS, seed), np.zeros(len(failed))
    for fold in range(_FOLDS):
        rest, held = folds != fold, folds == fold
        if held.any() and 0 < failed[rest].sum() < rest.sum():
            odds[held] = fit_outcome(values[rest], failed[rest], seed=seed).raw(values[held])
    return odds


def grouped(groups: Sequence[str], folds: int, seed: int) -> NDArray[np.intp]:
    """Fold of each row; rows of one group share a fold."""
    names = sorted(set(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    fold_of = {names[place]: number % folds for number, place in enumerate(order)}
    return np.array([fold_of[group] for group in groups], dtype=np.intp)


def _labels(record: Record, table: StepTable) -> Array:
    cause = _cause(record)
    return np.array([float(index == cause) for index in table.steps])


def _cause(record: Record) -> int | None:
    cause = record.annotation.root_cause
    return None if cause is None else cause.step


def _failed(record: Record) -> bool | None:
    return record.annotation.failed


def _group(record: Record, place: int) -> str:
    return record.annotation.group or f"\0{place}"


def untrained() -> Model:
    """The model that knows nothing but the structural prior: what is left if no run is annotated."""
    return Model(specialists=(), portable=portable_ranker([], []))
