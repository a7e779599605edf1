"""Builder of diagnoses from scored steps, for the simple localizers."""

from __future__ import annotations

from collections.abc import Iterable

from agentguard.localize.base import Diagnosis, Hypothesis
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict

MAX_HYPOTHESES = 10
"""Maximum of hypotheses in a diagnosis."""


def build_diagnosis(
    trajectory: Trajectory,
    scored: Iterable[tuple[int, float]],
    *,
    method: str,
    reason: str,
    probability: float = 1.0,
    agents: tuple[str, ...] = (),
) -> Diagnosis:
    """Rank the steps of a run by score, with the verdict failed; undecided if no step of the run has a score.

    Args:
        trajectory: the run.
        scored: step index and a score of at least 0; steps beyond the run are ignored, and ties keep their
            order.
        method: name of the localizer.
        reason: reason for these steps, shown to the user.
        probability: probability that the run failed.
        agents: agents of the first hypotheses, if the method predicts the agent separately from the step.
    """
    step_scores = [(step, score) for step, score in scored if 0 <= step < len(trajectory.steps)]
    ranking = sorted(step_scores, key=lambda pair: -pair[1])[:MAX_HYPOTHESES]
    total = sum(score for _, score in step_scores) or 1.0
    hypotheses = tuple(
        Hypothesis(
            step=step,
            agent=agents[rank] if rank < len(agents) else trajectory.steps[step].agent,
            probability=score / total,
            reason=reason,
        )
        for rank, (step, score) in enumerate(ranking)
    )
    return Diagnosis(
        trajectory_id=trajectory.id,
        method=method,
        verdict=Verdict.FAILED if hypotheses else Verdict.UNDECIDED,
        probability=probability,
        hypotheses=hypotheses,
        notes=() if hypotheses else ("there is no step to choose from",),
    )


def halve_weights(steps: Iterable[int]) -> tuple[tuple[int, float], ...]:
    """Return the ranked steps with weights; each step has half the weight of its predecessor."""
    return tuple((step, 0.5**index) for index, step in enumerate(steps))


def estimate_failure_rate(failed: Iterable[bool | None]) -> float:
    """Return the share of failed runs, with one run of each outcome added; 1 if no run passed.

    Args:
        failed: outcome of each training run; None if it is unknown.
    """
    outcomes = [value for value in failed if value is not None]
    if not outcomes or all(outcomes):
        return 1.0
    return (sum(outcomes) + 1) / (len(outcomes) + 2)
