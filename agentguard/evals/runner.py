"""Runner of an evaluation: one data set, one plan, and their splits, checkpoints and scores.

All methods and baselines of an evaluation use the same folds, and the same seed gives the same folds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from agentguard.detect.lazy_findings import LazyFindings
from agentguard.errors import EvaluationError
from agentguard.evals.baselines import (
    Method,
    MethodSpec,
    as_localizer,
    as_trainable,
    is_localizer,
    is_trainable,
)
from agentguard.evals.checkpoint import EvaluationCheckpoint, build_checkpoint_name, compute_records_checksum
from agentguard.evals.datasets.dataset import Dataset, add_gold_answer
from agentguard.evals.prediction import Prediction, predict
from agentguard.evals.result import Evaluation, Setting, score_predictions
from agentguard.evals.splits import (
    Split,
    exclude_shared_questions,
    list_groups,
    shuffle_record_labels,
    split_for_cross_validation,
)
from agentguard.localize.base import Localizer, adapt_localizer
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.resilience.ordered_map import map_ordered
from agentguard.trajectory.model import Record

T = TypeVar("T")
R = TypeVar("R")


class Executor(Protocol):
    """Executor that applies ``work`` to every task and yields the results as they arrive, in any order."""

    def run(self, tasks: Iterable[T], work: Callable[[T], Iterator[R]]) -> Iterator[R]:
        """Yield the results; an exception of ``work`` is raised here."""
        ...


class SerialExecutor:
    """Executor that runs one task at a time, with results in order."""

    def run(self, tasks: Iterable[T], work: Callable[[T], Iterator[R]]) -> Iterator[R]:
        """Yield the results of each task."""
        for task in tasks:
            yield from work(task)


MethodProgress = Callable[[str, int, int], None]
"""Callback that receives the label of a method, the number of finished runs and the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """Settings of an evaluation.

    Attributes:
        cv: ``question`` cross-validates by question or task; None measures methods without training (a method
            that must be trained is cross-validated in either case).
        folds, repeats: of the cross-validation.
        with_answer: lets methods read the gold answer.
        shuffle_labels: trains on labels that are shuffled among the training runs. The result shows the
            accuracy without information: it must fall to the baselines.
        seed: of folds and shuffles.
        allow_training_data: scores a model on runs that it was trained on. Without it, that is an error.
    """

    cv: Literal["question"] | None = None
    folds: int = 5
    repeats: int = 5
    with_answer: bool = False
    shuffle_labels: bool = False
    seed: int = 0
    allow_training_data: bool = False


class EvaluationRunner:
    """One data set, one plan, and the splits that follow from them.

    Raises:
        EvaluationError: no run of the data set is annotated.
    """

    def __init__(
        self,
        data: Dataset,
        plan: EvaluationPlan,
        *,
        train: Dataset | None = None,
        discard_checkpoint: bool = False,
    ) -> None:
        self.data, self.plan, self.train, self.discard_checkpoint = data, plan, train, discard_checkpoint
        self.cases = data.build_cases()
        if not any(case.step is not None or case.failed is not None for case in self.cases):
            raise EvaluationError(f"{data.name}: no run is annotated, so there is nothing to score")
        self.records = tuple(map(add_gold_answer, data.records)) if plan.with_answer else data.records
        self.findings = [LazyFindings(record.trajectory) for record in self.records]
        self.groups = list_groups(self.records)
        self.training_records = self._select_training_records()
        self._cross_validation_splits: tuple[Split, ...] | None = None
        self._checkpoints: list[EvaluationCheckpoint] = []
        self._built_methods: list[Method] = []
        self._checksum = ""

    def measure(
        self,
        spec: MethodSpec | Method,
        *,
        label: str,
        progress: MethodProgress | None = None,
        checkpoint_dir: Path | None = None,
        executor: Executor | None = None,
        jobs: int = 1,
    ) -> Evaluation:
        """Measure one method. See `agentguard.evals.evaluate.evaluate`."""
        method = self._build_method(spec)
        setting, splits = self._build_splits(method)
        checkpoint = EvaluationCheckpoint(self._checkpoint_path(spec, label, checkpoint_dir))
        if self.discard_checkpoint:
            checkpoint.discard()
        self._checkpoints.append(checkpoint)
        total = sum(len(split.test) for split in splits)

        def work(split: Split) -> Iterator[Prediction]:
            return self._score_split(method, split, checkpoint, jobs)

        for done_count, _ in enumerate((executor or SerialExecutor()).run(splits, work), start=1):
            if progress:
                progress(label, done_count, total)
        keys = [(s.repeat, s.fold, self.cases[i].run) for s in splits for i in s.test]
        predictions = tuple(checkpoint.predictions[key] for key in keys)
        fit_seconds = sum(checkpoint.fit_seconds.get((s.repeat, s.fold), 0.0) for s in splits)
        return score_predictions(
            self.data, self.cases, predictions, method=label, setting=setting, fit_seconds=fit_seconds
        )

    def _build_method(self, spec: MethodSpec | Method) -> Method:
        if not isinstance(spec, MethodSpec):
            return spec
        method = spec.build()
        self._built_methods.append(method)
        return method

    def close(self, *, is_complete: bool) -> None:
        """Close the methods and the checkpoints; remove the checkpoints if the evaluation is complete."""
        for method in self._built_methods:
            if callable(close := getattr(method, "close", None)):
                close()
        for journal in self._checkpoints:
            if is_complete:
                journal.discard()
            else:
                journal.close()

    def _select_training_records(self) -> tuple[Record, ...] | None:
        if self.train is None:
            return None
        records = exclude_shared_questions(self.train.records, self.data.records)
        if not records:
            raise EvaluationError("every training run has a question that is also scored")
        return tuple(map(add_gold_answer, records)) if self.plan.with_answer else records

    def _build_splits(self, method: Method) -> tuple[Setting, tuple[Split, ...]]:
        everything = tuple(range(len(self.records)))
        if not is_trainable(method):
            return Setting.UNTRAINED, (Split(repeat=0, fold=0, test=everything, train=None),)
        if self.training_records is not None:
            return Setting.TRANSFER, (Split(repeat=0, fold=0, test=everything, train=self.training_records),)
        if self.plan.cv is None and not self.plan.shuffle_labels and is_localizer(method):
            return self._get_shipped_setting(method), (Split(repeat=0, fold=0, test=everything, train=None),)
        if self._cross_validation_splits is None:
            plan = self.plan
            self._cross_validation_splits = split_for_cross_validation(
                self.records, folds=plan.folds, repeats=plan.repeats, seed=plan.seed
            )
        return Setting.CROSS_VALIDATED, self._cross_validation_splits

    def _get_shipped_setting(self, method: Method) -> Setting:
        """Return the setting of a method without training here. Raises EvaluationError on training data."""
        if not isinstance(method, EmbeddedLocalizer):
            return Setting.AS_SHIPPED
        known = method.count_training_runs(record.trajectory for record in self.records)
        if not known:
            return Setting.AS_SHIPPED
        if not self.plan.allow_training_data:
            raise EvaluationError(
                f"{self.data.name}: the model was trained on {known} of the {len(self.records)} runs, so its "
                "scores here say nothing about other runs: use --cv question, --leave-one-system-out with "
                "several paths, or --allow-training-data"
            )
        return Setting.TRAINING_DATA

    def _score_split(
        self, method: Method, split: Split, checkpoint: EvaluationCheckpoint, jobs: int
    ) -> Iterator[Prediction]:
        missing = [
            i
            for i in split.test
            if (split.repeat, split.fold, self.cases[i].run) not in checkpoint.predictions
        ]
        missing_set = set(missing)
        yield from (
            checkpoint.predictions[split.repeat, split.fold, self.cases[i].run]
            for i in split.test
            if i not in missing_set
        )
        if not missing:
            return
        localizer = (
            as_localizer(method) if split.train is None else self._fit_method(method, split, checkpoint)
        )

        def score(i: int) -> Prediction:
            record = self.records[i]
            group_localizer = localizer.without_group(self.groups[i])
            prediction = predict(group_localizer, record.trajectory, self.findings[i], run=self.cases[i].run)
            return replace(prediction, repeat=split.repeat, fold=split.fold)

        for prediction in map_ordered(score, missing, jobs=jobs):
            checkpoint.add(prediction)
            yield prediction

    def _fit_method(self, method: Method, split: Split, checkpoint: EvaluationCheckpoint) -> Localizer:
        train = split.train or ()
        if self.plan.shuffle_labels:
            train = shuffle_record_labels(train, seed=f"{self.plan.seed}:{split.repeat}:{split.fold}")
        start = time.perf_counter()
        try:
            fitted = as_trainable(method).fit(train)
        except Exception as error:
            raise EvaluationError(
                f"{method.name} could not be trained on {len(train)} runs: {type(error).__name__}"
            ) from error
        checkpoint.add_fit(split.repeat, split.fold, time.perf_counter() - start)
        return adapt_localizer(fitted)

    def _checkpoint_path(
        self, spec: MethodSpec | Method, label: str, checkpoint_dir: Path | None
    ) -> Path | None:
        if checkpoint_dir is None:
            return None
        if not self._checksum:
            self._checksum = compute_records_checksum(self.records) + compute_records_checksum(
                self.training_records or ()
            )
        options = dict(spec.options) if isinstance(spec, MethodSpec) else repr(spec)
        name = build_checkpoint_name(data=self._checksum, method=label, options=options, plan=self.plan)
        return checkpoint_dir / f"{name}.jsonl"
