"""Localizer ``step_by_step``: shows one more step of the run at a time until the judge answers yes.

The method of Who&When (arXiv 2505.00212): at each step the judge sees the run so far and decides whether that
step is a mistake that decided the outcome. It stops at the first yes. A step's probability is that of the
first yes at this step. If no step gets a yes, the remaining probability is distributed over all steps in
proportion to their own yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.base import Predicate
from agentguard.localize.llm.base import LlmLocalizer, QuerySession, StepRanking, build_llm_localizer
from agentguard.trajectory.model import Trajectory

_YES_THRESHOLD: Final = 0.5


def build_step_by_step(**options: Any) -> LlmLocalizer:
    """Build the localizer; options as for `agentguard.localize.llm.base.build_llm_localizer`."""
    return build_llm_localizer("step_by_step", query_steps, options)


def query_steps(session: QuerySession, run: Trajectory, findings: Sequence[Finding]) -> StepRanking:
    """Ask about one step after the other."""
    del findings
    yes_probabilities: dict[int, float] = {}
    for step in run.steps:
        partial_run = replace(run, steps=run.steps[: step.index + 1], branches=())
        yes_probability = session.ask_yes_no(partial_run, build_step_question(step.index))
        if yes_probability is None:
            return StepRanking()
        yes_probabilities[step.index] = yes_probability
        if yes_probability > _YES_THRESHOLD:
            break
    return StepRanking(probabilities=compute_first_yes_probabilities(yes_probabilities))


def build_step_question(step: int) -> Predicate:
    """Build the question about the last step that is shown."""
    text = (
        f"Is step {step}, the last one shown, a mistake that by itself makes the task fail, "
        "so that the task could be done if this step were right?"
    )
    return Predicate(id=f"mistake_{step}", text=text)


def compute_first_yes_probabilities(yes_probabilities: dict[int, float]) -> dict[int, float]:
    """Compute the probability of the first yes at each step from the probability of yes at each.

    They sum to 1: the probability that no step gets a yes is distributed in proportion to each step's own
    yes.
    """
    remaining, first_shares = 1.0, {}
    for step, yes in yes_probabilities.items():
        first_shares[step] = remaining * yes
        remaining *= 1.0 - yes
    total = sum(yes_probabilities.values())
    if total <= 0:
        return dict.fromkeys(yes_probabilities, 1.0 / len(yes_probabilities)) if yes_probabilities else {}
    return {step: share + remaining * yes_probabilities[step] / total for step, share in first_shares.items()}
