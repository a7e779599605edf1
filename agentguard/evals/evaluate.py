"""Entry point ``evaluate``: accuracy of a method on root causes and outcomes, with baselines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from agentguard.evals.datasets.dataset import Dataset, to_dataset
from agentguard.evals.methods import BASELINES, Method, MethodSpec, resolve_method
from agentguard.evals.result import Evaluation
from agentguard.evals.runner import EvaluationPlan, EvaluationRunner, MethodProgress
from agentguard.trajectory.model import Record

__all__ = ["Evaluation", "EvaluationPlan", "MethodProgress", "compare", "evaluate"]


def evaluate(
    records: Dataset | Sequence[Record],
    method: str | Method = "embedded",
    *,
    options: Mapping[str, Any] | None = None,
    cv: Literal["question"] | None = None,
    folds: int = 5,
    repeats: int = 5,
    with_answer: bool = False,
    shuffle_labels: bool = False,
    train: Dataset | Sequence[Record] | None = None,
    seed: int = 0,
    progress: MethodProgress | None = None,
    checkpoint_dir: Path | None = None,
) -> Evaluation:
    """Measure one method and the baselines on annotated runs.

    Args:
        records: annotated runs, e.g. ``agentguard.evals.datasets.dataset.load_dataset(...)`` or a list of
            `Record`.
        method: a registered localizer by name, or an object with ``locate``, ``fit`` or both.
        options: options of the localizer, if it is given by name.
        cv: ``"question"`` trains and scores in folds that keep equal questions (or tasks) together. None
            measures the method without training; a method that must be trained is cross-validated in either
            case.
        folds, repeats: numbers of folds and of repeats of the cross-validation.
        with_answer: put the gold answer into ``trajectory.extra["gold_answer"]``.
        shuffle_labels: train on labels that are shuffled among the training runs.
        train: annotated runs for training instead; runs whose question occurs in ``records`` are excluded.
        seed: seed of the folds and shuffles.
        progress: called with the label of the method, the number of finished runs and the total.
        checkpoint_dir: folder for checkpoints. An interrupted evaluation continues from there if it is called
            again with the same data, method and options; a complete one removes its checkpoints.

    Returns:
        Scores, baselines, and the prediction for every run and repeat.

    Raises:
        EvaluationError: no run is annotated, or there are fewer groups than folds, or training failed.
        UnknownPlugin, ConfigError: the method does not exist or its options are wrong.
    """
    plan = EvaluationPlan(
        cv=cv,
        folds=folds,
        repeats=repeats,
        with_answer=with_answer,
        shuffle_labels=shuffle_labels,
        seed=seed,
    )
    methods = [resolve_method(method, options) if isinstance(method, str) else method]
    return compare(
        records, methods, plan=plan, train=train, progress=progress, checkpoint_dir=checkpoint_dir
    )[0]


def compare(
    records: Dataset | Sequence[Record],
    methods: Sequence[MethodSpec | Method],
    *,
    plan: EvaluationPlan,
    train: Dataset | Sequence[Record] | None = None,
    progress: MethodProgress | None = None,
    checkpoint_dir: Path | None = None,
    discard_checkpoint: bool = False,
    jobs: int = 1,
) -> tuple[Evaluation, ...]:
    """Measure several methods on the same folds; the baselines are computed once.

    Args and errors are those of `evaluate`; ``discard_checkpoint`` removes the checkpoints of an interrupted
    evaluation. ``jobs`` is the number of runs that a method diagnoses at once, with the same predictions.
    """
    training_data = None if train is None else to_dataset(train)
    runner = EvaluationRunner(
        to_dataset(records), plan, train=training_data, discard_checkpoint=discard_checkpoint
    )
    is_complete = False
    try:
        baselines = {
            spec.label: runner.measure(
                spec, label=spec.label, progress=progress, checkpoint_dir=checkpoint_dir
            )
            for spec in BASELINES
        }
        results = [
            _measure_method(
                runner, method, baselines, progress=progress, checkpoint_dir=checkpoint_dir, jobs=jobs
            )
            for method in methods
        ]
        is_complete = True
    finally:
        runner.close(is_complete=is_complete)
    return tuple(replace(result, baselines=baselines) for result in results)


def _measure_method(
    runner: EvaluationRunner,
    method: MethodSpec | Method,
    baselines: Mapping[str, Evaluation],
    *,
    progress: MethodProgress | None,
    checkpoint_dir: Path | None,
    jobs: int,
) -> Evaluation:
    """Return the result of one method; reuse the result of a baseline."""
    if isinstance(method, MethodSpec) and method.label in baselines:
        return baselines[method.label]
    label = method.label if isinstance(method, MethodSpec) else method.name
    return runner.measure(method, label=label, progress=progress, checkpoint_dir=checkpoint_dir, jobs=jobs)
