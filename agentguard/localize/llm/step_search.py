"""Localizers that search for the root cause with one question at a time: ``step_by_step``, ``binary_search``.

Both are methods of Who&When (arXiv 2505.00212).

- ``step_by_step``: the judge reads the run up to each step, and decides whether the step is a mistake that
  decided the outcome. The search stops at the first yes. The probability of a step is that of the first yes
  at this step. The probability that no step gets a yes is distributed over all steps in proportion to their
  probabilities of yes.
- ``binary_search``: the judge reads one part of the run at a time and selects the half with the mistake;
  ⌈log2 n⌉ questions find one step. The probability of the rejected half is distributed evenly over its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.base import ChoiceQuestion, Predicate
from agentguard.localize.llm.base import LlmLocalizer, QuerySession, StepRanking, build_llm_localizer
from agentguard.trajectory.model import Step, Trajectory


def build_binary_search(**options: Any) -> LlmLocalizer:
    """Build the localizer; options as for `agentguard.localize.llm.base.build_llm_localizer`."""
    return build_llm_localizer("binary_search", search_root_cause, options)


def search_root_cause(session: QuerySession, run: Trajectory, findings: Sequence[Finding]) -> StepRanking:
    """Halve the run until one step is left."""
    del findings
    candidates, share = run.steps, 1.0
    steps: dict[int, float] = {}
    while len(candidates) > 1:
        halves = candidates[: (len(candidates) + 1) // 2], candidates[(len(candidates) + 1) // 2 :]
        answer = session.ask_choice(replace(run, steps=candidates, branches=()), build_half_question(*halves))
        if answer is None:
            return StepRanking()
        chosen, other = halves if answer["first"] >= answer["second"] else halves[::-1]
        half_probability = max(answer["first"], answer["second"])
        steps |= {step.index: share * (1.0 - half_probability) / len(other) for step in other}
        candidates, share = chosen, share * half_probability
    return StepRanking(probabilities={**steps, candidates[0].index: share})


def build_half_question(first: Sequence[Step], second: Sequence[Step]) -> ChoiceQuestion:
    """Build the question for the half that contains the mistake."""
    spans = [f"{part[0].index} to {part[-1].index}" for part in (first, second)]
    text = (
        "The task failed. In which half of the steps shown is the first mistake that made it fail: "
        f"first (steps {spans[0]}) or second (steps {spans[1]})?"
    )
    return ChoiceQuestion(
        id=f"half_{first[0].index}_{second[-1].index}", text=text, options=("first", "second")
    )


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

    They sum to 1: the probability that no step gets a yes is distributed in proportion to the probabilities
    of yes.
    """
    remaining, first_shares = 1.0, {}
    for step, yes in yes_probabilities.items():
        first_shares[step] = remaining * yes
        remaining *= 1.0 - yes
    total = sum(yes_probabilities.values())
    if total <= 0:
        return dict.fromkeys(yes_probabilities, 1.0 / len(yes_probabilities)) if yes_probabilities else {}
    return {step: share + remaining * yes_probabilities[step] / total for step, share in first_shares.items()}
