"""Training of the embedded model: a specialist for each agent, the transferable part, and calibration.

The transferable part is a ranker and two outcome models for agents that the model does not know. In it, each
system of the training data has the same weight.

Training is deterministic: forests are seeded, folds are assigned to sorted groups, and the other problems are
convex. Calibration uses scores out of fold.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from agentguard.detect.base import Finding
from agentguard.detect.lazy_findings import LazyFindings
from agentguard.errors import JudgeError
from agentguard.judge.embedded.conditional_logit import Array, LinearScorer, fit_weights
from agentguard.judge.embedded.features.run_signals import compute_run_signals
from agentguard.judge.embedded.features.table import StepTable, build_step_table
from agentguard.judge.embedded.label_counts import (
    MIN_OUTCOMES,
    MIN_ROOT_CAUSES,
    MIN_RUNS_PER_OUTCOME,
    get_root_cause_step,
    is_labelled,
)
from agentguard.judge.embedded.log_kind import build_log_kind, build_structure_key
from agentguard.judge.embedded.model import EmbeddedModel, LogKindModel, append_answer_columns, sharpen_steps
from agentguard.judge.embedded.outcome_model import (
    OutcomeModel,
    RunRows,
    build_run_rows,
    calibrate,
    estimate_failure,
    fit_outcome_model,
)
from agentguard.judge.embedded.ranker import (
    Ranker,
    build_signal_model,
    fit_portable_ranker,
    fit_ranker,
)
from agentguard.judge.embedded.relative_outcome import LabelledBatch, fit_relative_outcome
from agentguard.judge.embedded.rule_outcome import (
    RuleOutcomeModel,
    SystemSigns,
    find_signs,
    fit_rule_outcome,
)
from agentguard.trajectory.model import Record

_FOLD_COUNT = 4
_OUTCOME_REPEATS = 3
_MIN_OUTCOME_SYSTEMS = 2  # fewer show nothing about an agent that is not among them
_TEMPERATURES = np.linspace(0.3, 2.5, 45)
_SHARPNESS = np.linspace(0.02, 1.0, 99)
_SIGNAL_RIDGE = 10.0

SignalFunction = Callable[[Record], Array]
"""Function that returns a run's external signals: shape (candidates, signals), rows as in `build_step_table`.

A higher value supports the step. The function may read only the group of the annotation, to exclude data of
the same question. Otherwise a signal would mean something else in training than on a new run.
"""


def train_model(
    records: Sequence[Record],
    *,
    systems: Sequence[str] | None = None,
    base: EmbeddedModel | None = None,
    seed: int = 0,
    with_answer: bool = False,
    signals: SignalFunction | None = None,
    ridge: float = _SIGNAL_RIDGE,
) -> EmbeddedModel:
    """Train a model on annotated runs.

    Args:
        records: runs with a root cause, an outcome, or both; others are ignored.
        systems: name of the agent or agent system of each record; by default all are of one.
        base: model whose transferable part and specialists the result has, beside the new specialists. None
            learns the transferable part from the records too.
        seed: seed of the forests and folds.
        with_answer: train the ranker with the gold answers.
        signals: further columns; their weight is learnt out of fold. Without signals, and for a run without
            them, the model is the same.
        ridge: ridge penalty of the signals' weights.

    Raises:
        JudgeError: no run is annotated.
    """
    labelled = [
        (record, system)
        for record, system in zip(records, systems or [""] * len(records), strict=True)
        if record.trajectory.steps and is_labelled(record)
    ]
    if not labelled:
        raise JudgeError(
            "no run has a root cause or an outcome: label runs in `agentguard view`, then write them with "
            "`agentguard store export-labels`"
        )
    annotated = [record for record, _ in labelled]
    tables = [_build_table(record, with_answer) for record in annotated]
    signal_data = None if signals is None else SignalData([signals(record) for record in annotated], ridge)
    by_kind: dict[tuple[str, str], list[int]] = {}
    for index, (table, (_, system)) in enumerate(zip(tables, labelled, strict=True)):
        by_kind.setdefault((build_structure_key(table.layout.run), system), []).append(index)
    specialists = []
    for name in sorted(by_kind):
        indices = by_kind[name]
        kind_signals = None if signal_data is None else signal_data.select(indices)
        specialists.append(
            _fit_specialist([annotated[i] for i in indices], [tables[i] for i in indices], kind_signals, seed)
        )
    fitted = tuple(one for one in specialists if one.ranker is not None or one.outcome is not None)
    if base is not None:
        return replace(base, specialists=(*fitted, *base.specialists))
    examples = [
        TransferExample(record, system, table)
        for (record, system), table in zip(labelled, tables, strict=True)
    ]
    transferable = fit_transferable_model(examples, signals=signal_data)
    return replace(transferable, specialists=fitted, with_answer=with_answer)


@dataclass(frozen=True, slots=True)
class TransferExample:
    """Annotated run for the transferable part: its system, its features and the findings in it."""

    record: Record
    system: str
    table: StepTable
    findings: LazyFindings = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "findings", LazyFindings(self.record.trajectory))

    @property
    def open_findings(self) -> list[Finding]:
        """Findings that no later step repaired."""
        return [finding for finding in self.findings if finding.recovered_after is None]


def build_transfer_examples(records: Sequence[Record], systems: Sequence[str]) -> list[TransferExample]:
    """Build an example of each annotated run with at least one step, given the name of its system."""
    return [
        TransferExample(record, system, build_step_table(record.trajectory))
        for record, system in zip(records, systems, strict=True)
        if record.trajectory.steps and is_labelled(record)
    ]


def fit_transferable_model(
    examples: Sequence[TransferExample], *, signals: SignalData | None = None
) -> EmbeddedModel:
    """Fit a model without specialists, for agents that it does not know."""
    by_system: dict[str, list[TransferExample]] = {}
    for example in examples:
        by_system.setdefault(example.system, []).append(example)
    outcome_systems = [
        labelled
        for _, members in sorted(by_system.items())
        if (labelled := [e for e in members if _get_failed_label(e.record) is not None])
    ]
    model = EmbeddedModel(specialists=(), portable=_fit_portable(examples, signals))
    if len(outcome_systems) >= _MIN_OUTCOME_SYSTEMS:
        rules = fit_rule_outcome([_collect_signs(members) for members in outcome_systems])
        batches = [_collect_signals(members, rules) for members in outcome_systems]
        model = replace(model, rules=rules, relative=fit_relative_outcome(batches))
    return replace(model, transfer_sharpness=_fit_transfer_sharpness(by_system))


def _collect_signs(examples: Sequence[TransferExample]) -> SystemSigns:
    sides: dict[bool, list[TransferExample]] = {True: [], False: []}
    for example in examples:
        sides[bool(_get_failed_label(example.record))].append(example)
    failed, passed = sides[True], sides[False]
    return SystemSigns(
        failed=[find_signs(e.table.layout, e.open_findings) for e in failed],
        passed=[find_signs(e.table.layout, e.open_findings) for e in passed],
        failed_estimates=[estimate_failure(e.table.layout, e.open_findings) for e in failed],
        passed_estimates=[estimate_failure(e.table.layout, e.open_findings) for e in passed],
    )


def _collect_signals(examples: Sequence[TransferExample], rules: RuleOutcomeModel | None) -> LabelledBatch:
    return LabelledBatch(
        np.vstack([compute_run_signals(e.table.layout, e.findings) for e in examples]),
        np.array([bool(_get_failed_label(e.record)) for e in examples]),
        np.array(
            [
                rules is not None and rules.applies(find_signs(e.table.layout, e.open_findings))
                for e in examples
            ]
        ),
    )


def _fit_transfer_sharpness(by_system: Mapping[str, Sequence[TransferExample]]) -> float | None:
    """Return the mean sharpness that a system needs if the ranker was not trained on it, if there is one.

    Under a change of system a ranker is right less often than in training.
    """
    labelled = {
        system: [e for e in members if _build_labels(e.record, e.table).sum() > 0]
        for system, members in by_system.items()
    }
    values = []
    for system, members in labelled.items():
        if not members:
            continue
        others = [e for name, rest in labelled.items() if name != system for e in rest]
        model = EmbeddedModel(specialists=(), portable=_fit_portable(others, None))
        rankings = [model.rank_transferred(e.table, e.findings) for e in members]
        rows = [int(np.argmax(_build_labels(e.record, e.table))) for e in members]
        values.append(min(_SHARPNESS, key=partial(_measure_log_loss, rankings, rows)))
    return float(np.mean(values)) if values else None


def _measure_log_loss(rankings: Sequence[Array], rows: Sequence[int], sharpness: float) -> float:
    return -math.fsum(
        math.log(sharpen_steps(ranking, sharpness)[row]) for ranking, row in zip(rankings, rows, strict=True)
    )


def _balance_systems(examples: Sequence[TransferExample]) -> list[float]:
    """Return one factor for each example, so that each system weighs as much as the average one."""
    counts = Counter(example.system for example in examples)
    average = len(examples) / max(1, len(counts))
    return [average / counts[example.system] for example in examples]


@dataclass(frozen=True, slots=True)
class SignalData:
    """Signals of the runs, and the ridge penalty of their weights."""

    signals: Sequence[Array]
    ridge: float

    def select(self, indices: Sequence[int]) -> SignalData:
        """Return the signals of a subset of the runs."""
        return SignalData([self.signals[i] for i in indices], self.ridge)


def _build_table(record: Record, with_answer: bool) -> StepTable:
    table = build_step_table(record.trajectory)
    return (
        replace(table, values=append_answer_columns(table, record.annotation.answer))
        if with_answer
        else table
    )


def _fit_specialist(
    records: Sequence[Record], tables: Sequence[StepTable], signals: SignalData | None, seed: int
) -> LogKindModel:
    return LogKindModel(
        kind=build_log_kind([table.layout for table in tables]),
        ranker=_fit_kind_ranker(records, tables, signals, seed),
        outcome=_fit_outcome(records, tables, seed),
        runs=len(records),
    )


def _fit_kind_ranker(
    records: Sequence[Record], tables: Sequence[StepTable], signals: SignalData | None, seed: int
) -> Ranker | None:
    places = [
        i for i, (r, t) in enumerate(zip(records, tables, strict=True)) if _build_labels(r, t).sum() > 0
    ]
    if len(places) < MIN_ROOT_CAUSES:
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
    fitted: Ranker, scores: Sequence[Array], chosen: Sequence[Array], signals: SignalData | None
) -> Ranker:
    """Add the temperature and the signal weights, learnt from scores out of fold."""
    temperature = _fit_temperature(scores, chosen)
    signal_model = (
        None if signals is None else _fit_signal_weights([temperature * s for s in scores], chosen, signals)
    )
    return replace(fitted, temperature=temperature, beside=signal_model)


def _fit_signal_weights(offsets: Sequence[Array], chosen: Sequence[Array], data: SignalData) -> LinearScorer:
    """Fit the weights of the signals; they are at least 0, since a signal can only support a step."""
    labelled = [i for i, labels in enumerate(chosen) if labels.sum() > 0]
    runs = np.concatenate([np.full(len(chosen[i]), n) for n, i in enumerate(labelled)]).astype(np.intp)
    signals = np.vstack([data.signals[i] for i in labelled])
    labels, offset = (np.concatenate([arrays[i] for i in labelled]) for arrays in (chosen, offsets))
    weights = fit_weights(signals, labels, runs, ridge=data.ridge, offset=offset)
    return build_signal_model(np.maximum(weights, 0.0).tolist())


def _fit_portable(examples: Sequence[TransferExample], signals: SignalData | None) -> Ranker:
    places = [i for i, one in enumerate(examples) if get_root_cause_step(one.record) is not None]
    labelled = [examples[i] for i in places]
    values = [example.table.values for example in labelled]
    chosen = [_build_labels(example.record, example.table) for example in labelled]
    fitted = fit_portable_ranker(values, chosen, _balance_systems(labelled))
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
    if len(failed) < MIN_OUTCOMES or min(failed.sum(), (~failed).sum()) < MIN_RUNS_PER_OUTCOME:
        return None
    runs = build_run_rows([t.layout for _, t in labelled])
    groups = [_build_group_key(r, n) for n, (r, _) in enumerate(labelled)]
    odds = [_predict_out_of_fold(runs, failed, groups, seed + repeat) for repeat in range(_OUTCOME_REPEATS)]
    return calibrate(fit_outcome_model(runs, failed, seed=seed), np.mean(odds, axis=0), failed)


def _predict_out_of_fold(runs: RunRows, failed: NDArray[np.bool_], groups: Sequence[str], seed: int) -> Array:
    folds, odds = assign_folds(groups, _FOLD_COUNT, seed), np.zeros(len(failed))
    for fold in range(_FOLD_COUNT):
        train, test = folds != fold, folds == fold
        if test.any() and 0 < failed[train].sum() < train.sum():
            model = fit_outcome_model(runs.select(train), failed[train], seed=seed)
            odds[test] = model.predict_log_odds(runs.select(test))
    return odds


def assign_folds(groups: Sequence[str], folds: int, seed: int) -> NDArray[np.intp]:
    """Assign a fold to each row; rows of one group share a fold."""
    names = sorted(set(groups))
    order = np.random.default_rng(seed).permutation(len(names))
    fold_of = {names[index]: number % folds for number, index in enumerate(order)}
    return np.array([fold_of[group] for group in groups], dtype=np.intp)


def _build_labels(record: Record, table: StepTable) -> Array:
    cause = get_root_cause_step(record)
    return np.array([float(index == cause) for index in table.steps])


def _get_failed_label(record: Record) -> bool | None:
    return record.annotation.failed


def _build_group_key(record: Record, place: int) -> str:
    return record.annotation.group or f"\0{place}"


def build_untrained_model() -> EmbeddedModel:
    """Return a model with only the structural prior, for the case that no run is annotated."""
    return EmbeddedModel(specialists=(), portable=fit_portable_ranker([], []))
