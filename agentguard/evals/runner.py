"""Runner of an evaluation: one data set, one plan, and their splits, checkpoints and scores.

All methods and baselines of an evaluation use the same folds, and the same seed gives the same folds.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, Literal

import orjson

from agentguard.detect.lazy_findings import LazyFindings
from agentguard.errors import EvaluationError
from agentguard.evals.datasets.dataset import Dataset, add_gold_answer
from agentguard.evals.methods import (
    Method,
    MethodSpec,
    as_localizer,
    as_trainable,
    is_localizer,
    is_trainable,
)
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
from agentguard.version import __version__

MethodProgress = Callable[[str, int, int], None]
"""Callback that receives the label of a method, the number of finished runs and the total."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationPlan:
    """Settings of an evaluation.

    Attributes:
        cv: ``question`` cross-validates by question or task; None measures methods without training (a method
            that must be trained is cross-validated in either case).
        folds, repeats: numbers of folds and of repeats of the cross-validation.
        with_answer: let methods read the gold answer.
        shuffle_labels: train on labels that are shuffled among the training runs. The result shows the
            accuracy without information: it must fall to the baselines.
        seed: seed of folds and shuffles.
        allow_training_data: score a model on runs that it was trained on. Without it, that is an error.
    """

    cv: Literal["question"] | None = None
    folds: int = 5
    repeats: int = 5
    with_answer: bool = False
    shuffle_labels: bool = False
    seed: int = 0
    allow_training_data: bool = False


class EvaluationRunner:
    """Runner of the methods of one evaluation on one data set, with the same splits for all methods.

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
        scored = (one for split in splits for one in self._score_split(method, split, checkpoint, jobs))
        for done_count, _ in enumerate(scored, start=1):
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
            if is_localizer(method):
                as_localizer(method).close()
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


Key = tuple[int, int, str]
_PACKAGE = Path(__file__).resolve().parents[1]


class EvaluationCheckpoint:
    """Append-only JSON Lines file of predictions; a line cut short by a crash is ignored.

    Args:
        path: the file; None keeps everything in memory.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.predictions: dict[Key, Prediction] = {}
        self.fit_seconds: dict[tuple[int, int], float] = {}
        self._file: BinaryIO | None = None
        if path is not None and path.exists():
            self._read(path)

    def add(self, prediction: Prediction) -> None:
        """Store a prediction and append it to the file."""
        self.predictions[prediction.repeat, prediction.fold, prediction.run] = prediction
        self._write(prediction.as_dict())

    def add_fit(self, repeat: int, fold: int, seconds: float) -> None:
        """Store the training time of a fold."""
        self.fit_seconds[repeat, fold] = seconds
        self._write({"repeat": repeat, "fold": fold, "fit_seconds": seconds})

    def close(self) -> None:
        """Close the file; a later `add` opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def discard(self) -> None:
        """Remove all predictions, in memory and on disk."""
        self.close()
        self.predictions.clear()
        self.fit_seconds.clear()
        if self.path is not None and self.path.exists():
            self.path.unlink()

    def _write(self, value: Mapping[str, Any]) -> None:
        if self.path is None:
            return
        if self._file is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self.path.open("ab")
        self._file.write(orjson.dumps(value, option=orjson.OPT_APPEND_NEWLINE))
        self._file.flush()

    def _read(self, path: Path) -> None:
        content = path.read_bytes()
        end = content.rfind(b"\n") + 1
        if end < len(content):
            # Remove the torn line; otherwise the next entry would be appended to it.
            with path.open("r+b") as file:
                file.truncate(end)
        for line in content[:end].splitlines():
            try:
                self._load_entry(orjson.loads(line))
            except (orjson.JSONDecodeError, TypeError, KeyError):
                continue  # the prediction of an unknown line is computed again

    def _load_entry(self, value: dict[str, Any]) -> None:
        if "fit_seconds" in value:
            self.fit_seconds[value["repeat"], value["fold"]] = float(value["fit_seconds"])
            return
        prediction = Prediction.from_dict(value)
        self.predictions[prediction.repeat, prediction.fold, prediction.run] = prediction


def compute_records_checksum(records: Sequence[Record]) -> str:
    """Return the SHA-256, in hex, over the parsed records, labels included."""
    digest = hashlib.sha256()
    for record in records:
        digest.update(
            orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS | orjson.OPT_SORT_KEYS, default=_to_plain)
        )
    return digest.hexdigest()


def build_checkpoint_name(**facts: Any) -> str:
    """Return a short hash of the inputs of an evaluation: data, method, options and the code of this package.

    The code contributes size and time of its files, so that a changed method does not reuse old results.
    """
    code = sorted(
        (str(path.relative_to(_PACKAGE)), stat.st_size, stat.st_mtime_ns)
        for path in _PACKAGE.rglob("*")
        if path.suffix in {".py", ".skops", ".json", ".yaml"} and (stat := path.stat())
    )
    inputs = orjson.dumps([__version__, code, facts], option=orjson.OPT_SORT_KEYS, default=_to_plain)
    return hashlib.sha256(inputs).hexdigest()[:16]


def _to_plain(value: Any) -> Any:
    return dict(value) if isinstance(value, Mapping) else str(value)
