"""Result of an evaluation, for programs and for reports."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from agentguard.evals import metrics
from agentguard.evals.datasets.dataset import Dataset
from agentguard.evals.prediction import Prediction
from agentguard.evals.scoring import (
    Case,
    LocalizationScores,
    OutcomeScores,
    replace_non_finite,
    score_localization,
    score_outcome,
)


class Setting(StrEnum):
    """Training of a method before it was scored."""

    UNTRAINED = "untrained"
    AS_SHIPPED = "as_shipped"
    TRAINING_DATA = "training_data"
    """As shipped, and the model was trained on some of the scored runs: the scores do not hold elsewhere."""
    CROSS_VALIDATED = "cross_validated"
    TRANSFER = "transfer"


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Scores of one method on one data set.

    Attributes:
        dataset: name of the data set.
        checksum: SHA-256 of its files, in hex; empty if it was not read from files.
        method: label of the method.
        setting: training of the method.
        n: number of annotated runs that were scored.
        broken: number of unreadable records, which were not scored.
        localization: scores of the root cause; None if no run has one.
        outcome: scores of failed against passed; None unless both occur.
        subsets: the same two scores for each part of the data set, if it has parts.
        run_size_auroc: AUROC of the number of steps alone, the baseline of the outcome.
        baselines: evaluation of each baseline on the same folds, by label.
        cases, predictions: the scored cases, and a prediction for every run and repeat.
        fit_seconds, locate_seconds: wall-clock time of training and of localization.
    """

    dataset: str
    checksum: str
    method: str
    setting: Setting
    n: int
    broken: int
    localization: LocalizationScores | None
    outcome: OutcomeScores | None
    cases: tuple[Case, ...] = field(repr=False)
    predictions: tuple[Prediction, ...] = field(repr=False)
    subsets: Mapping[str, tuple[LocalizationScores | None, OutcomeScores | None]] = field(
        default_factory=dict
    )
    run_size_auroc: float | None = None
    baselines: Mapping[str, Evaluation] = field(default_factory=dict, repr=False)
    fit_seconds: float = 0.0
    locate_seconds: float = 0.0

    @property
    def seconds(self) -> float:
        """Total wall-clock time of training and localization."""
        return self.fit_seconds + self.locate_seconds

    @property
    def repeats(self) -> int:
        """Number of times that each run was scored."""
        return len({prediction.repeat for prediction in self.predictions})

    def is_above_baselines(self) -> bool:
        """Return whether step accuracy is above the 95 % interval of every baseline.

        The result must be False for training on shuffled labels. A comparison of means alone would often be
        True by chance on small data sets.
        """
        baseline_bounds = [
            b.localization.wilson95["step"][1] for b in self.baselines.values() if b.localization
        ]
        return self.localization is not None and self.localization.step.mean > max(
            baseline_bounds, default=1.0
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the object of ``agentguard eval --json``: fractions, None for missing scores."""
        data = {
            "dataset": self.dataset,
            "checksum": self.checksum or None,
            "method": self.method,
            "setting": self.setting.value,
            "n": self.n,
            "broken": self.broken,
            "repeats": self.repeats,
            "above_baselines": self.is_above_baselines() if self.localization else None,
            **_merge_scores(self.localization, self.outcome),
            "subsets": _subsets_to_dict(self),
            "baselines": {label: _baseline_to_dict(baseline) for label, baseline in self.baselines.items()},
            "seconds": round(self.seconds, 3),
            "fit_seconds": round(self.fit_seconds, 3),
            "locate_seconds": round(self.locate_seconds, 3),
        }
        if self.run_size_auroc is not None and self.baselines:
            data["baselines"]["run_size"] = {"auroc": self.run_size_auroc}
        return dict(replace_non_finite(data))


def has_training_data(results: Iterable[Evaluation]) -> bool:
    """Return True if a model was scored on its training data; such scores are not valid for other runs."""
    return any(result.setting is Setting.TRAINING_DATA for result in results)


def score_predictions(
    data: Dataset,
    cases: Sequence[Case],
    predictions: Sequence[Prediction],
    *,
    method: str,
    setting: Setting,
    fit_seconds: float = 0.0,
) -> Evaluation:
    """Score the predictions for ``cases``, in total and by part."""
    parts = sorted({case.part for case in cases if case.part})
    subsets = {}
    for part in parts if len(parts) > 1 else []:
        part_cases = [case for case in cases if case.part == part]
        subsets[part] = (score_localization(part_cases, predictions), score_outcome(part_cases, predictions))
    outcome_scores = score_outcome(cases, predictions)
    return Evaluation(
        dataset=data.name,
        checksum=data.checksum,
        method=method,
        setting=setting,
        n=sum(case.step is not None or case.failed is not None for case in cases),
        broken=len(data.broken),
        localization=score_localization(cases, predictions),
        outcome=outcome_scores,
        cases=tuple(cases),
        predictions=tuple(predictions),
        subsets=subsets,
        run_size_auroc=_score_run_size(cases) if outcome_scores else None,
        fit_seconds=fit_seconds,
        locate_seconds=sum(prediction.seconds for prediction in predictions),
    )


_SCORE_NAMES = (
    "step_accuracy",
    "agent_accuracy",
    "step_accuracy_published",
    "sd",
    "within",
    "top",
    "wilson95",
    "answered",
    "step_accuracy_answered",
    "errors",
    "calibration",
    "module",
)


def _merge_scores(localization: LocalizationScores | None, outcome: OutcomeScores | None) -> dict[str, Any]:
    """Return root-cause scores at the top level, and outcome scores there and under ``outcome``."""
    scores = localization.as_dict() if localization else dict.fromkeys(_SCORE_NAMES)
    scores["n_root_cause"] = scores.pop("n", 0)
    full = outcome.as_dict() if outcome else None
    for name in ("auroc", "average_precision", "brier"):
        scores[name] = full[name] if full else None
    scores["outcome"] = full
    return scores


def _baseline_to_dict(evaluation: Evaluation) -> dict[str, Any]:
    scores = _merge_scores(evaluation.localization, evaluation.outcome)
    return {
        "setting": evaluation.setting.value,
        "n": evaluation.n,
        **scores,
        "subsets": _subsets_to_dict(evaluation),
    }


def _subsets_to_dict(evaluation: Evaluation) -> dict[str, Any]:
    return {
        name: {"n": _count_runs(*pair), **_merge_scores(*pair)} for name, pair in evaluation.subsets.items()
    }


def _count_runs(localization: LocalizationScores | None, outcome: OutcomeScores | None) -> int:
    return max(localization.n if localization else 0, outcome.n if outcome else 0)


def _score_run_size(cases: Sequence[Case]) -> float:
    outcomes = [(case.failed, float(case.length)) for case in cases if case.failed is not None]
    return metrics.auroc([bool(failed) for failed, _ in outcomes], [length for _, length in outcomes])
