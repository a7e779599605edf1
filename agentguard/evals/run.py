"""``evaluate``: how well a method names root causes and outcomes, beside the baselines on the same folds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from agentguard.evals.baselines import BASELINES, Method, Spec, named
from agentguard.evals.bench import Bench, Plan, Progress
from agentguard.evals.dataset import Dataset, as_dataset
from agentguard.evals.result import Evaluation
from agentguard.trajectory.model import Record

__all__ = ["Evaluation", "Plan", "Progress", "compare", "evaluate"]


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
    progress: Progress | None = None,
    resume: Path | None = None,
) -> Evaluation:
    """Measure one method on annotated runs, beside the baselines.

    Args:
        records: annotated runs, e.g. ``agentguard.evals.dataset.load(...)`` or a list of `Record`.
        method: a registered localizer by name, or an object with ``locate``, ``fit`` or both.
        options: options of the localizer, if it is given by name.
        cv: ``"question"`` trains and scores in folds that keep equal questions (or tasks) together. None asks
            the method as it is; one that must be trained first is cross-validated all the same.
        folds, repeats: of the cross-validation.
        with_answer: puts the gold answer into ``trajectory.extra["gold_answer"]``.
        shuffle_labels: trains on labels dealt anew among the training runs.
        train: annotated runs to train on instead; those whose question occurs in ``records`` are left out.
        seed: of the folds and shuffles.
        progress: called with the method's label and how many of how many runs are done.
        resume: folder for journals. An evaluation that was interrupted goes on from there when it is asked
            for again with the same data, method and options; a complete one removes its journals.

    Returns:
        Scores, baselines, and the prediction for every run and repeat.

    Raises:
        EvaluationError: no run is annotated, or there are fewer groups than folds, or training failed.
        UnknownPlugin, ConfigError: the method does not exist or its options are wrong.
    """
    plan = Plan(
        cv=cv,
        folds=folds,
        repeats=repeats,
        with_answer=with_answer,
        shuffle_labels=shuffle_labels,
        seed=seed,
    )
    methods = [named(method, options) if isinstance(method, str) else method]
    return compare(records, methods, plan=plan, train=train, progress=progress, resume=resume)[0]


def compare(
    records: Dataset | Sequence[Record],
    methods: Sequence[Spec | Method],
    *,
    plan: Plan,
    train: Dataset | Sequence[Record] | None = None,
    progress: Progress | None = None,
    resume: Path | None = None,
    fresh: bool = False,
) -> tuple[Evaluation, ...]:
    """Measure several methods on the same folds; the baselines are computed once.

    Args and errors are those of `evaluate`; ``fresh`` forgets what an interrupted evaluation had journalled.
    """
    learnt_from = None if train is None else as_dataset(train)
    bench = Bench(as_dataset(records), plan, train=learnt_from, fresh=fresh)
    complete = False
    try:
        beside = {
            spec.label: bench.measure(spec, label=spec.label, progress=progress, resume=resume)
            for spec in BASELINES
        }
        results = [_measure(bench, method, beside, progress=progress, resume=resume) for method in methods]
        complete = True
    finally:
        bench.close(complete=complete)
    return tuple(replace(result, baselines=beside) for result in results)


def _measure(
    bench: Bench,
    method: Spec | Method,
    beside: Mapping[str, Evaluation],
    *,
    progress: Progress | None,
    resume: Path | None,
) -> Evaluation:
    """The result of one method; a baseline has been measured already."""
    if isinstance(method, Spec) and method.label in beside:
        return beside[method.label]
    label = method.label if isinstance(method, Spec) else method.name
    return bench.measure(method, label=label, progress=progress, resume=resume)
