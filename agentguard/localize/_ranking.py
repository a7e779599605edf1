"""What the simple localizers share: a diagnosis from scored steps, and the check of their options."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from agentguard.errors import ConfigError
from agentguard.localize.base import Diagnosis, Hypothesis, Verdict
from agentguard.trajectory.model import Trajectory

MAX_HYPOTHESES = 10
"""Hypotheses a simple localizer gives at most."""


def build_diagnosis(
    trajectory: Trajectory,
    scored: Iterable[tuple[int, float]],
    *,
    method: str,
    reason: str,
    probability: float = 1.0,
    agents: tuple[str, ...] = (),
) -> Diagnosis:
    """Rank the steps of a run by score and say that it failed; abstain if no step of the run is scored.

    Args:
        trajectory: the run.
        scored: step index and a score of at least 0; steps beyond the run are left out, and
            ties keep their order.
        method: name of the localizer.
        reason: why these steps, for a person.
        probability: that the run failed.
        agents: names for the first hypotheses where the method guesses the agent apart from the step.
    """
    held = [(step, score) for step, score in scored if 0 <= step < len(trajectory.steps)]
    ranked = sorted(held, key=lambda pair: -pair[1])[:MAX_HYPOTHESES]
    total = sum(score for _, score in held) or 1.0
    hypotheses = tuple(
        Hypothesis(
            step=step,
            agent=agents[place] if place < len(agents) else trajectory.steps[step].agent,
            probability=score / total,
            reason=reason,
        )
        for place, (step, score) in enumerate(ranked)
    )
    return Diagnosis(
        trajectory_id=trajectory.id,
        method=method,
        verdict=Verdict.FAILURE if hypotheses else Verdict.ABSTAINED,
        probability=probability,
        hypotheses=hypotheses,
        notes=() if hypotheses else ("there is no step to choose from",),
    )


def halve_weights(steps: Iterable[int]) -> tuple[tuple[int, float], ...]:
    """Steps in order of belief, each given half the weight of the one before it."""
    return tuple((step, 0.5**place) for place, step in enumerate(steps))


def reject_unknown_options(method: str, unknown: Mapping[str, object]) -> None:
    """Raise ConfigError if any option is left over."""
    if unknown:
        raise ConfigError(f"localizer {method!r} has no option {', '.join(sorted(unknown))}")


def estimate_failure_rate(failed: Iterable[bool | None]) -> float:
    """Share of training runs that failed, with one of each added; 1 where no run is known to have passed."""
    known = [value for value in failed if value is not None]
    if not known or all(known):
        return 1.0
    return (sum(known) + 1) / (len(known) + 2)
