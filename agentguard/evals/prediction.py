"""Prediction of a method for one run, in a form for checkpoints, and the call that makes it."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from agentguard.detect.base import Finding
from agentguard.localize.base import Diagnosis, Localizer
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import upgrade_verdict

_MAX_HYPOTHESES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """Result of a method for one run in one repeat.

    Attributes:
        run: key of the run in its data set.
        repeat, fold: the split that scored the run.
        steps, agents: the ranked hypotheses, most likely first; empty if the method failed or has no
            hypothesis.
        module, code: of the first hypothesis.
        confidence: probability of the first hypothesis; 0 without hypotheses.
        verdict: value of a `Verdict`, or ``error`` if the method failed on the run.
        probability: that the run failed; None if the method failed on it.
        seconds: duration of the call.
        error: class of the exception that the method raised, or the defect of its diagnosis.
    """

    run: str
    repeat: int = 0
    fold: int = 0
    steps: tuple[int, ...] = ()
    agents: tuple[str, ...] = ()
    module: str | None = None
    code: str | None = None
    confidence: float = 0.0
    verdict: str = "error"
    probability: float | None = None
    seconds: float = 0.0
    error: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON."""
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> Prediction:
        """Return the prediction of `as_dict` values. Raises TypeError or KeyError on anything else."""
        read = {"verdict": upgrade_verdict(value["verdict"])}
        return cls(**{**value, **read, "steps": tuple(value["steps"]), "agents": tuple(value["agents"])})


def predict(
    method: Localizer, trajectory: Trajectory, findings: Sequence[Finding], *, run: str
) -> Prediction:
    """Call a method on one run. An exception of the method becomes a prediction with ``error``."""
    start = time.perf_counter()
    try:
        diagnosis = method.locate(trajectory, findings)
        step_error = _find_invalid_step(diagnosis, trajectory)
    except Exception as error:  # a plug-in may raise anything; the other runs still count
        return Prediction(run=run, seconds=time.perf_counter() - start, error=type(error).__name__)
    seconds = time.perf_counter() - start
    if step_error:
        return Prediction(run=run, seconds=seconds, error=step_error)
    hypotheses = diagnosis.hypotheses[:_MAX_HYPOTHESES]
    first = hypotheses[0] if hypotheses else None
    return Prediction(
        run=run,
        steps=tuple(h.step for h in hypotheses),
        agents=tuple(h.agent for h in hypotheses),
        module=first.module if first else None,
        code=first.codes[0] if first and first.codes else None,
        confidence=first.probability if first else 0.0,
        verdict=diagnosis.verdict.value,
        probability=diagnosis.probability,
        seconds=seconds,
    )


def _find_invalid_step(diagnosis: Diagnosis, trajectory: Trajectory) -> str | None:
    if not 0 <= diagnosis.probability <= 1:
        return "probability outside [0, 1]"
    for hypothesis in diagnosis.hypotheses:
        if not 0 <= hypothesis.step < len(trajectory.steps):
            return "a step the run does not have"
        if not 0 <= hypothesis.probability <= 1:
            return "probability outside [0, 1]"
    return None
