"""How far back a rollback goes: not far at first, and three times as far each time that it was in vain.

Which step was the root cause is not known for sure. Going back a little is cheap and keeps what was right;
going back too little is in vain. Where the place is unknown, a search whose reach grows by a constant factor
costs no more than a constant times what going there at once would have (Bentley and Yao, "An almost optimal
algorithm for unbounded searching", 1976). What the localizer holds likely chooses the step within reach.
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
"""Steps that a run whose end was refused is taken back at first: where it went wrong nobody said."""
CERTAIN_PROBABILITY = 0.5
"""A step that the localizer holds likelier than not is gone to at once."""

REWIND_TIERS = frozenset(
    {RecoveryTier.TRUNCATE, RecoveryTier.FORK, RecoveryTier.COMPENSATE, RecoveryTier.RESTART}
)


def rollback_horizon(
    past_recoveries: Sequence[Recovery], steps: int, *, min_horizon: int = 1, first_agent_step: int = 0
) -> int:
    """Steps to go back, at least.

    A rollback was in vain if the run fails again before it got further beyond the furthest step it was
    at than it had been taken back. If it got further, that is another failure; so is any in a run begun anew.

    Args:
        history: recoveries of the run, the earliest first.
        steps: length of the live line now.
        nearest: steps to go back for a failure that is new.
        first: the first step of an agent; a run that was taken back to it was begun again.
    """
    furthest = gone = 0
    for recovery in past_recoveries:
        if recovery.plan.tier in REWIND_TIERS:
            same = gone > 0 and recovery.at_step <= furthest + gone
            furthest = max(furthest, recovery.at_step) if same else recovery.at_step
            back = get_resume_step(recovery)
            gone = recovery.at_step - back if back > first_agent_step else 0
    again = gone > 0 and steps <= furthest + gone
    return max(min_horizon, GROWTH_FACTOR * gone) if again else min_horizon


def find_first_agent_step(steps: Sequence[Step]) -> int:
    """Index of the first step that an agent took; 0 if none did."""
    return next((step.index for step in steps if step.source is Source.AGENT), 0)


def select_rollback_step(
    ranked: Sequence[Hypothesis], trigger_hypothesis: Hypothesis, steps: Sequence[Step], horizon: int
) -> Hypothesis:
    """The step to go back to, at least ``back`` steps from the end.

    Args:
        ranked: what the localizer holds likely.
        own: what set the recovery off; lends its words to a step that nobody named.
        steps: the live line, not empty.
        back: see `reach`; at least 1.

    Returns:
        A step far enough back that the localizer holds likelier than not; else the likeliest one within reach
        and not beyond the next reach, if it is twice as likely as any step by chance; else the agents' step
        that is nearest within reach.
    """
    count, begin = len(steps), find_first_agent_step(steps)
    near = max(begin, count - horizon)
    far = max(begin, count - GROWTH_FACTOR * horizon + 1)
    sure = [one for one in ranked if one.probability >= CERTAIN_PROBABILITY and begin <= one.step <= near]
    likely = [one for one in ranked if far <= one.step <= near and one.probability > 2 / count]
    if sure or likely:
        return max(sure or likely, key=lambda one: one.probability)
    taken = (at for at in range(near, begin, -1) if steps[at].source is Source.AGENT)
    place = next(taken, begin)
    known = next((one for one in ranked if one.step == place), None)
    return known or replace(trigger_hypothesis, step=place, agent=steps[place].agent)
