"""Selection of the step to which a rollback returns.

The root cause is uncertain. A short rollback is cheap and keeps correct work, but may keep the error, too.
The *horizon* is the minimum length of a rollback. It triples after each ineffective rollback. A search whose
range grows by a constant factor costs at most a constant multiple of the distance to an unknown position
(Bentley and Yao, "An almost optimal algorithm for unbounded searching", 1976). The localizer's hypotheses
select the step beyond the horizon.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from agentguard.localize.base import Hypothesis
from agentguard.recover.outcome_verification import get_resume_step
from agentguard.recover.plan import Recovery, RecoveryTier
from agentguard.trajectory.model import Source, Step

GROWTH_FACTOR = 3
MIN_HORIZON = 3
"""Length of the first rollback after a refused end of the run: no finding names the step of the failure."""
CERTAIN_PROBABILITY = 0.5
"""Probability from which the step of a hypothesis is selected even beyond the next horizon."""

REWIND_TIERS = frozenset(
    {RecoveryTier.TRUNCATE, RecoveryTier.FORK, RecoveryTier.COMPENSATE, RecoveryTier.RESTART}
)


def rollback_horizon(
    past_recoveries: Sequence[Recovery], steps: int, *, min_horizon: int = 1, first_agent_step: int = 0
) -> int:
    """Return the minimum number of steps to roll back.

    A rollback of *k* steps was ineffective if the run fails again at most *k* steps beyond the furthest step
    that it had reached. A later failure counts as new, and so does any failure after a restart.

    Args:
        past_recoveries: recoveries of the run, the earliest first.
        steps: current length of the branch.
        min_horizon: steps to roll back for a new failure.
        first_agent_step: first step of an agent; a rollback to it counts as a restart.
    """
    furthest = length = 0
    for recovery in past_recoveries:
        if recovery.plan.tier in REWIND_TIERS:
            is_same_failure = length > 0 and recovery.at_step <= furthest + length
            furthest = max(furthest, recovery.at_step) if is_same_failure else recovery.at_step
            resume_step = get_resume_step(recovery)
            length = recovery.at_step - resume_step if resume_step > first_agent_step else 0
    is_recurrence = length > 0 and steps <= furthest + length
    return max(min_horizon, GROWTH_FACTOR * length) if is_recurrence else min_horizon


def find_first_agent_step(steps: Sequence[Step]) -> int:
    """Return the index of the first step of an agent; 0 if there is no such step."""
    return next((step.index for step in steps if step.source is Source.AGENT), 0)


def select_rollback_step(
    ranked: Sequence[Hypothesis], trigger_hypothesis: Hypothesis, steps: Sequence[Step], horizon: int
) -> Hypothesis:
    """Select the step of a rollback, at least ``horizon`` steps from the end.

    Args:
        ranked: hypotheses of the localizer.
        trigger_hypothesis: hypothesis of the trigger; it supplies the text for a step without a hypothesis.
        steps: steps of the current branch, not empty.
        horizon: result of `rollback_horizon`; at least 1.

    Returns:
        The first of these that exists:

        - the most probable step beyond the horizon with at least `CERTAIN_PROBABILITY`;
        - the most probable step between this horizon and the next, if it is more than twice as probable as a
          random step;
        - the nearest step of an agent beyond the horizon, or the first step of an agent.
    """
    count, begin = len(steps), find_first_agent_step(steps)
    near = max(begin, count - horizon)
    far = max(begin, count - GROWTH_FACTOR * horizon + 1)
    certain = [one for one in ranked if one.probability >= CERTAIN_PROBABILITY and begin <= one.step <= near]
    likely = [one for one in ranked if far <= one.step <= near and one.probability > 2 / count]
    if certain or likely:
        return max(certain or likely, key=lambda one: one.probability)
    agent_steps = (at for at in range(near, begin, -1) if steps[at].source is Source.AGENT)
    selected = next(agent_steps, begin)
    hypothesis = next((one for one in ranked if one.step == selected), None)
    return hypothesis or replace(trigger_hypothesis, step=selected, agent=steps[selected].agent)
