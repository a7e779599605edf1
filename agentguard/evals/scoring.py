"""Scores computed from predictions: root causes of annotated runs, and outcomes if both outcomes occur."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agentguard.evals import metrics
from agentguard.evals.prediction import Prediction
from agentguard.evals.statistics import mean, standard_deviation, wilson_interval
from agentguard.verdict import Verdict

TOLERANCES = (1, 3, 5)
TOP_KS = (3, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Annotation of one run, which no method sees.

    Attributes:
        run: key of the run; unique in the data set.
        part: part of the data set; empty if it has no parts.
        length: number of steps.
        step, agent, module, codes: annotated root cause; None or empty without an annotation.
        failed: annotated outcome; None without an annotation.
        id: id of the run.
        group: hash of the question; runs with equal hashes have the same question.
    """

    run: str
    part: str
    length: int
    step: int | None = None
    agent: str | None = None
    module: str | None = None
    codes: tuple[str, ...] = ()
    failed: bool | None = None
    id: str = ""
    group: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanScore:
    """Mean of a score over the repeats, with the standard deviation between them."""

    mean: float
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalizationScores:
    """Accuracy of root causes over the ``n`` runs that have an annotated one.

    The first hypothesis counts even if the run is undecided. ``answered`` is the share of runs with the
    verdict failed, and ``step_accuracy_answered`` the accuracy on them. Module and code scores are absent if
    the data set has no such annotations.
    """

    n: int
    n_agent: int
    step: MeanScore
    agent: MeanScore
    published: float
    within: Mapping[str, float]
    top: Mapping[str, float]
    wilson95: Mapping[str, tuple[float, float]]
    answered: float
    step_accuracy_answered: float
    errors: int
    calibration: Mapping[str, float]
    module: Mapping[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the keys of ``--json``; NaN becomes None."""
        data = {
            "n": self.n,
            "n_agent": self.n_agent,
            "step_accuracy": self.step.mean,
            "agent_accuracy": self.agent.mean,
            "step_accuracy_published": self.published,
            "sd": {"step": self.step.sd, "agent": self.agent.sd},
            "within": dict(self.within),
            "top": dict(self.top),
            "wilson95": {name: list(pair) for name, pair in self.wilson95.items()},
            "answered": self.answered,
            "step_accuracy_answered": self.step_accuracy_answered,
            "errors": self.errors,
            "calibration": dict(self.calibration),
            "module": dict(self.module) or None,
        }
        return dict(replace_non_finite(data))


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeScores:
    """Scores of failed against passed runs, over the ``n`` runs whose outcome is known.

    Attributes:
        auroc, average_precision, brier, calibration_error: of the probability that the run failed.
        verdicts: mean number of runs per verdict, by true outcome (``failed``, ``passed``).
        named_on_passed: share of passed runs for which a root cause was named.
        undecided: share of all runs with this verdict.
    """

    n: int
    n_failed: int
    auroc: MeanScore
    average_precision: MeanScore
    brier: MeanScore
    calibration_error: float
    verdicts: Mapping[str, Mapping[str, float]]
    named_on_passed: float
    undecided: float

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; NaN becomes None."""
        data = asdict(self)
        for name in ("auroc", "average_precision", "brier"):
            data[name], data[f"{name}_sd"] = data[name]["mean"], data[name]["sd"]
        return dict(replace_non_finite(data))


def score_localization(cases: Sequence[Case], predictions: Sequence[Prediction]) -> LocalizationScores | None:
    """Score the root causes of the cases that have one; return None if no case has one."""
    scored = {case.run: case for case in cases if case.step is not None}
    repeats = _group_repeats(predictions, scored)
    if not repeats:
        return None
    n, n_agent = len(scored), sum(case.agent is not None for case in scored.values())
    step = _average_repeats(repeats, _build_step_score(metrics.step_accuracy))
    agent = _average_repeats(repeats, _score_agents)
    return LocalizationScores(
        n=n,
        n_agent=n_agent,
        step=step,
        agent=agent,
        published=_average_repeats(repeats, _build_step_score(metrics.step_accuracy_published)).mean,
        within={
            str(t): _average_repeats(repeats, _build_step_score(metrics.within_tolerance, t)).mean
            for t in TOLERANCES
        },
        top={
            str(k): _average_repeats(repeats, _build_step_score(metrics.top_k_accuracy, k)).mean
            for k in TOP_KS
        },
        wilson95={
            "step": wilson_interval(step.mean, n),
            "agent": wilson_interval(agent.mean, n_agent),
        },
        answered=_average_repeats(repeats, lambda pairs: mean(_is_cause_named(p) for _, p in pairs)).mean,
        step_accuracy_answered=_average_repeats(repeats, _score_answered).mean,
        errors=sum(p.error is not None for repeat in repeats for _, p in repeat),
        calibration=_score_calibration(repeats),
        module=_score_modules(repeats),
    )


def score_outcome(cases: Sequence[Case], predictions: Sequence[Prediction]) -> OutcomeScores | None:
    """Score the outcomes; return None unless both occur among the cases."""
    scored = {case.run: case for case in cases if case.failed is not None}
    n_failed = sum(bool(case.failed) for case in scored.values())
    repeats = _group_repeats(predictions, scored)
    if not repeats or n_failed in (0, len(scored)):
        return None
    return OutcomeScores(
        n=len(scored),
        n_failed=n_failed,
        auroc=_average_repeats(repeats, _build_outcome_score(metrics.auroc)),
        average_precision=_average_repeats(repeats, _build_outcome_score(metrics.average_precision)),
        brier=_average_repeats(repeats, _build_outcome_score(metrics.brier)),
        calibration_error=_average_repeats(
            repeats, _build_outcome_score(metrics.expected_calibration_error)
        ).mean,
        verdicts=_count_verdicts(repeats),
        named_on_passed=_average_repeats(
            repeats, lambda pairs: mean(_is_cause_named(p) for c, p in pairs if not c.failed)
        ).mean,
        undecided=_average_repeats(
            repeats, lambda pairs: mean(p.verdict == Verdict.UNDECIDED for _, p in pairs)
        ).mean,
    )


def replace_non_finite(value: Any) -> Any:
    """Return the value with None for every NaN or infinity, in nested mappings and sequences too."""
    if isinstance(value, Mapping):
        return {key: replace_non_finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [replace_non_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_Pairs = list[tuple[Case, Prediction]]


def _group_repeats(predictions: Sequence[Prediction], cases: Mapping[str, Case]) -> list[_Pairs]:
    pairs_by_repeat: dict[int, _Pairs] = {}
    for prediction in predictions:
        if prediction.run in cases:
            pairs_by_repeat.setdefault(prediction.repeat, []).append((cases[prediction.run], prediction))
    return [pairs for _, pairs in sorted(pairs_by_repeat.items())]


def _average_repeats(repeats: Sequence[_Pairs], score: Callable[[_Pairs], float]) -> MeanScore:
    values = [score(pairs) for pairs in repeats]
    return MeanScore(mean=mean(values), sd=standard_deviation(values))


def _build_step_score(score: Callable[..., float], *options: int) -> Callable[[_Pairs], float]:
    return lambda pairs: score([c.step for c, _ in pairs], [p.steps for _, p in pairs], *options)


def _build_outcome_score(score: Callable[..., float]) -> Callable[[_Pairs], float]:
    # If the method failed on a run, use even odds for its outcome.
    return lambda pairs: score(
        [c.failed for c, _ in pairs], [0.5 if p.probability is None else p.probability for _, p in pairs]
    )


def _score_agents(pairs: _Pairs) -> float:
    agent_pairs = [(c.agent, p.agents[0] if p.agents else None) for c, p in pairs if c.agent is not None]
    return metrics.label_accuracy(
        [gold for gold, _ in agent_pairs], [predicted for _, predicted in agent_pairs]
    )


def _is_cause_named(prediction: Prediction) -> bool:
    return prediction.verdict == Verdict.FAILED and bool(prediction.steps)


def _score_answered(pairs: _Pairs) -> float:
    return mean(is_step_correct(c, p) for c, p in pairs if _is_cause_named(p))


def is_step_correct(case: Case, prediction: Prediction) -> bool:
    """Return whether the first hypothesis names the annotated step."""
    return bool(prediction.steps) and prediction.steps[0] == case.step


def _score_calibration(repeats: Sequence[_Pairs]) -> dict[str, float]:
    def average(score: Callable[..., float]) -> float:
        return _average_repeats(
            repeats,
            lambda pairs: score([is_step_correct(c, p) for c, p in pairs], [p.confidence for _, p in pairs]),
        ).mean

    return {
        "brier": average(metrics.brier),
        "ece": average(metrics.expected_calibration_error),
        "aurc": average(metrics.aurc),
    }


def _score_modules(repeats: Sequence[_Pairs]) -> dict[str, float]:
    """Return the accuracy of module and code, and of both together with the step, if annotated."""
    scores: dict[str, float] = {}
    if any(c.module for c, _ in repeats[0]):
        scores["n"] = sum(c.module is not None for c, _ in repeats[0])
        scores["module_accuracy"] = _score_module_cases(repeats, lambda c, p: c.module == p.module)
        scores["step_and_module"] = _score_module_cases(
            repeats, lambda c, p: is_step_correct(c, p) and c.module == p.module
        )
        scores["all_correct"] = _score_module_cases(
            repeats, lambda c, p: is_step_correct(c, p) and c.module == p.module and (p.code in c.codes)
        )
    return scores


def _score_module_cases(repeats: Sequence[_Pairs], right: Callable[[Case, Prediction], bool]) -> float:
    return _average_repeats(repeats, lambda pairs: mean(right(c, p) for c, p in pairs if c.module)).mean


def _count_verdicts(repeats: Sequence[_Pairs]) -> dict[str, dict[str, float]]:
    counts: dict[str, Counter[str]] = {"failed": Counter(), "passed": Counter()}
    for pairs in repeats:
        for case, prediction in pairs:
            counts["failed" if case.failed else "passed"][prediction.verdict] += 1
    return {truth: {v: n / len(repeats) for v, n in sorted(c.items())} for truth, c in counts.items()}
