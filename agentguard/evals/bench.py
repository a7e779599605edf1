"""The measuring itself: one data set, one plan, and the splits, journals and scores that follow from them.

The same folds serve every method and baseline of one evaluation, and the same seed makes the same folds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, cast

from agentguard.errors import EvaluationError
from agentguard.evals.baselines import Method, Spec, as_localizer, as_trainable, learns, ready
from agentguard.evals.dataset import Dataset, with_answer
from agentguard.evals.executors.local import Executor, Local
from agentguard.evals.journal import Journal, journal_name, records_checksum
from agentguard.evals.predict import Findings, Prediction, predict
from agentguard.evals.result import Evaluation, Setting, scored
from agentguard.evals.splits import Split, cross_validation, disjoint, groups_of, shuffled
from agentguard.localize.base import Localizer
from agentguard.trajectory.model import Record

Progress = Callable[[str, int, int], None]
"""Called with a method's label, how many of its runs are done, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How to measure.

    Attributes:
        cv: ``question`` cross-validates by question or task; None measures methods as they are (a method that
            must be trained is cross-validated all the same).
        folds, repeats: of the cross-validation.
        with_answer: lets methods read the gold answer.
        shuffle_labels: trains on labels dealt anew among the training runs, to show what a method reaches
            without any: it must fall to the baselines.
        seed: of folds and shuffles.
    """

    cv: Literal["question"] | None = None
    folds: int = 5
    repeats: int = 5
    with_answer: bool = False
    shuffle_labels: bool = False
    seed: int = 0


class Bench:
    """One data set, one plan, and the splits that follow from them.

    Raises:
        EvaluationError: no run of the data set is annotated.
    """

    def __init__(
        self, data: Dataset, plan: Plan, *, train: Dataset | None = None, fresh: bool = False
    ) -> None:
        self.data, self.plan, self.train, self.fresh = data, plan, train, fresh
        self.cases = data.cases()
        if not any(case.step is not None or case.failed is not None for case in self.cases):
            raise EvaluationError(f"{data.name}: no run is annotated, there is nothing to score")
        self.records = tuple(map(with_answer, data.records)) if plan.with_answer else data.records
        self.findings = [Findings(record.trajectory) for record in self.records]
        self.groups = groups_of(self.records)
        self.training = self._training()
        self._folds: tuple[Split, ...] | None = None
        self._open: list[Journal] = []
        self._checksum = ""

    def measure(
        self,
        spec: Spec | Method,
        *,
        label: str,
        progress: Progress | None = None,
        resume: Path | None = None,
        executor: Executor | None = None,
    ) -> Evaluation:
        """Measure one method. See `agentguard.evals.run.evaluate`."""
        method = spec.make() if isinstance(spec, Spec) else spec
        setting, splits = self._splits(method)
        journal = Journal(self._journal_path(spec, label, resume))
        if self.fresh:
            journal.discard()
        self._open.append(journal)
        total = sum(len(split.test) for split in splits)

        def work(split: Split) -> Iterator[Prediction]:
            return self._score(method, split, journal)

        for done, _ in enumerate((executor or Local()).run(splits, work), start=1):
            if progress:
                progress(label, done, total)
        wanted = [(s.repeat, s.fold, self.cases[i].run) for s in splits for i in s.test]
        predictions = tuple(journal.held[key] for key in wanted)
        fit_seconds = sum(journal.fitted.get((s.repeat, s.fold), 0.0) for s in splits)
        return scored(
            self.data, self.cases, predictions, method=label, setting=setting, fit_seconds=fit_seconds
        )

    def close(self, *, complete: bool) -> None:
        """Close the journals; remove them if everything they are for is done."""
        for journal in self._open:
            if complete:
                journal.discard()
            else:
                journal.close()

    def _training(self) -> tuple[Record, ...] | None:
        if self.train is None:
            return None
        records = disjoint(self.train.records, self.data.records)
        if not records:
            raise EvaluationError("every training run asks a question that is also scored")
        return tuple(map(with_answer, records)) if self.plan.with_answer else records

    def _splits(self, method: Method) -> tuple[Setting, tuple[Split, ...]]:
        everything = tuple(range(len(self.records)))
        if not learns(method):
            return Setting.UNTRAINED, (Split(repeat=0, fold=0, test=everything, train=None),)
        if self.training is not None:
            return Setting.TRANSFER, (Split(repeat=0, fold=0, test=everything, train=self.training),)
        if self.plan.cv is None and not self.plan.shuffle_labels and ready(method):
            return Setting.AS_SHIPPED, (Split(repeat=0, fold=0, test=everything, train=None),)
        if self._folds is None:
            plan = self.plan
            self._folds = cross_validation(
                self.records, folds=plan.folds, repeats=plan.repeats, seed=plan.seed
            )
        return Setting.CROSS_VALIDATED, self._folds

    def _score(self, method: Method, split: Split, journal: Journal) -> Iterator[Prediction]:
        missing = [i for i in split.test if (split.repeat, split.fold, self.cases[i].run) not in journal.held]
        held = set(missing)
        yield from (
            journal.held[split.repeat, split.fold, self.cases[i].run] for i in split.test if i not in held
        )
        if not missing:
            return
        localizer = as_localizer(method) if split.train is None else self._fit(method, split, journal)
        for i in missing:
            record = self.records[i]
            asked = _unaware(localizer, self.groups[i])
            said = predict(asked, record.trajectory, self.findings[i], run=self.cases[i].run)
            said = replace(said, repeat=split.repeat, fold=split.fold)
            journal.add(said)
            yield said

    def _fit(self, method: Method, split: Split, journal: Journal) -> Localizer:
        train = split.train or ()
        if self.plan.shuffle_labels:
            train = shuffled(train, seed=f"{self.plan.seed}:{split.repeat}:{split.fold}")
        start = time.perf_counter()
        try:
            fitted = as_trainable(method).fit(train)
        except Exception as error:
            raise EvaluationError(
                f"{method.name} could not be trained on {len(train)} runs: {type(error).__name__}"
            ) from error
        journal.add_fit(split.repeat, split.fold, time.perf_counter() - start)
        return fitted

    def _journal_path(self, spec: Spec | Method, label: str, resume: Path | None) -> Path | None:
        if resume is None:
            return None
        if not self._checksum:
            self._checksum = records_checksum(self.records) + records_checksum(self.training or ())
        options = dict(spec.options) if isinstance(spec, Spec) else repr(spec)
        name = journal_name(data=self._checksum, method=label, options=options, plan=self.plan)
        return resume / f"{name}.jsonl"


def _unaware(method: Localizer, group: str) -> Localizer:
    """The method without what it remembers of one question, if it is one that remembers."""
    leave_out = getattr(method, "leaving_out", None)
    return method if leave_out is None else cast(Localizer, leave_out(group))
