"""From predictions to scores: root causes on runs that have one, outcomes where both outcomes occur."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from agentguard.evals import metrics
from agentguard.evals.predict import Prediction
from agentguard.localize.base import Verdict

TOLERANCES = (1, 3, 5)
TOPS = (3, 5)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """What a data set says of one run: the side of a score that no method sees.

    ``run`` is unique in the data set, ``id`` is the run's own; runs with equal ``group`` (a hash) ask one
    question.
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
class Spread:
    """A score as its mean over the repeats and the standard deviation between them."""

    mean: float
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Localization:
    """How well root causes are named, over the ``n`` runs that are annotated with one.

    The first hypothesis counts whether or not the method abstained; ``answered`` is the share of runs on
    which it did not, and ``step_accuracy_answered`` the accuracy on those. Module and code scores are absent
    where the data set annotates none.
    """

    n: int
    n_agent: int
    step: Spread
    agent: Spread
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
        """The keys ``--json`` prints; NaN becomes None."""
        given = {
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
        return dict(finite(given))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How well failed runs are told from passed ones, over the ``n`` runs whose outcome is known.

    Attributes:
        auroc, average_precision, brier, calibration_error: of the probability that the run failed.
        verdicts: truth (``failed``, ``passed``) to the mean number of runs a verdict was given to.
        named_on_passed: share of passed runs on which a root cause was named.
        abstained: share of all runs on which the method abstained.
    """

    n: int
    n_failed: int
    auroc: Spread
    average_precision: Spread
    brier: Spread
    calibration_error: float
    verdicts: Mapping[str, Mapping[str, float]]
    named_on_passed: float
    abstained: float

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; NaN becomes None."""
        given = asdict(self)
        for name in ("auroc", "average_precision", "brier"):
            given[name], given[f"{name}_sd"] = given[name]["mean"], given[name]["sd"]
        return dict(finite(given))


def localization(cases: Sequence[Case], predictions: Sequence[Prediction]) -> Localization | None:
    """Score the root causes of the cases that have one; None if no case has."""
    scored = {case.run: case for case in cases if case.step is not None}
    repeats = _repeats(predictions, scored)
    if not repeats:
        return None
    n, n_agent = len(scored), sum(case.agent is not None for case in scored.values())
    step = _spread(repeats, _steps(metrics.step_accuracy))
    agent = _spread(repeats, _agents)
    return Localization(
        n=n,
        n_agent=n_agent,
        step=step,
        agent=agent,
        published=_spread(repeats, _steps(metrics.step_accuracy_published)).mean,
        within={str(t): _spread(repeats, _steps(metrics.within, t)).mean for t in TOLERANCES},
        top={str(k): _spread(repeats, _steps(metrics.top, k)).mean for k in TOPS},
        wilson95={"step": metrics.wilson(step.mean, n), "agent": metrics.wilson(agent.mean, n_agent)},
        answered=_spread(repeats, lambda pairs: metrics.mean(_named(p) for _, p in pairs)).mean,
        step_accuracy_answered=_spread(repeats, _answered).mean,
        errors=sum(p.error is not None for repeat in repeats for _, p in repeat),
        calibration=_calibration(repeats),
        module=_modules(repeats),
    )


def outcome(cases: Sequence[Case], predictions: Sequence[Prediction]) -> Outcome | None:
    """Score the outcomes; None unless both occur among the cases."""
    scored = {case.run: case for case in cases if case.failed is not None}
    n_failed = sum(bool(case.failed) for case in scored.values())
    repeats = _repeats(predictions, scored)
    if not repeats or n_failed in (0, len(scored)):
        return None
    return Outcome(
        n=len(scored),
        n_failed=n_failed,
        auroc=_spread(repeats, _outcomes(metrics.auroc)),
        average_precision=_spread(repeats, _outcomes(metrics.average_precision)),
        brier=_spread(repeats, _outcomes(metrics.brier)),
        calibration_error=_spread(repeats, _outcomes(metrics.expected_calibration_error)).mean,
        verdicts=_verdicts(repeats),
        named_on_passed=_spread(
            repeats, lambda pairs: metrics.mean(_named(p) for c, p in pairs if not c.failed)
        ).mean,
        abstained=_spread(
            repeats, lambda pairs: metrics.mean(p.verdict == Verdict.ABSTAINED for _, p in pairs)
        ).mean,
    )


def finite(value: Any) -> Any:
    """The same value with every NaN or infinity replaced by None, in mappings and sequences too."""
    if isinstance(value, Mapping):
        return {key: finite(held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [finite(held) for held in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


_Pairs = list[tuple[Case, Prediction]]


def _repeats(predictions: Sequence[Prediction], scored: Mapping[str, Case]) -> list[_Pairs]:
    held: dict[int, _Pairs] = {}
    for prediction in predictions:
        if prediction.run in scored:
            held.setdefault(prediction.repeat, []).append((scored[prediction.run], prediction))
    return [pairs for _, pairs in sorted(held.items())]


def _spread(repeats: Sequence[_Pairs], score: Callable[[_Pairs], float]) -> Spread:
    values = [score(pairs) for pairs in repeats]
    return Spread(mean=metrics.mean(values), sd=metrics.deviation(values))


def _steps(score: Callable[..., float], *options: int) -> Callable[[_Pairs], float]:
    return lambda pairs: score([c.step for c, _ in pairs], [p.steps for _, p in pairs], *options)


def _outcomes(score: Callable[..., float]) -> Callable[[_Pairs], float]:
    # A run the method failed on says nothing of its outcome: even odds.
    return lambda pairs: score(
        [c.failed for c, _ in pairs], [0.5 if p.probability is None else p.probability for _, p in pairs]
    )


def _agents(pairs: _Pairs) -> float:
    held = [(c.agent, p.agents[0] if p.agents else None) for c, p in pairs if c.agent is not None]
    return metrics.label_accuracy([gold for gold, _ in held], [said for _, said in held])


def _named(prediction: Prediction) -> bool:
    return prediction.verdict == Verdict.FAILURE and bool(prediction.steps)


def _answered(pairs: _Pairs) -> float:
    return metrics.mean(_right(c, p) for c, p in pairs if _named(p))


def _right(case: Case, prediction: Prediction) -> bool:
    return bool(prediction.steps) and prediction.steps[0] == case.step


def _calibration(repeats: Sequence[_Pairs]) -> dict[str, float]:
    def over(score: Callable[..., float]) -> float:
        return _spread(
            repeats, lambda pairs: score([_right(c, p) for c, p in pairs], [p.confidence for _, p in pairs])
        ).mean

    return {
        "brier": over(metrics.brier),
        "ece": over(metrics.expected_calibration_error),
        "aurc": over(metrics.aurc),
    }


def _modules(repeats: Sequence[_Pairs]) -> dict[str, float]:
    """Accuracy of the module and of the code, and of all of them at once with the step, where annotated."""
    scores: dict[str, float] = {}
    if any(c.module for c, _ in repeats[0]):
        scores["n"] = sum(c.module is not None for c, _ in repeats[0])
        scores["module_accuracy"] = _over(repeats, lambda c, p: c.module == p.module)
        scores["step_and_module"] = _over(repeats, lambda c, p: _right(c, p) and c.module == p.module)
        scores["all_correct"] = _over(
            repeats, lambda c, p: _right(c, p) and c.module == p.module and (p.code in c.codes)
        )
    return scores


def _over(repeats: Sequence[_Pairs], right: Callable[[Case, Prediction], bool]) -> float:
    return _spread(repeats, lambda pairs: metrics.mean(right(c, p) for c, p in pairs if c.module)).mean


def _verdicts(repeats: Sequence[_Pairs]) -> dict[str, dict[str, float]]:
    counted: dict[str, Counter[str]] = {"failed": Counter(), "passed": Counter()}
    for pairs in repeats:
        for case, prediction in pairs:
            counted["failed" if case.failed else "passed"][prediction.verdict] += 1
    return {truth: {v: n / len(repeats) for v, n in sorted(c.items())} for truth, c in counted.items()}
