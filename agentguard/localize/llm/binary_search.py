"""Localizer ``binary_search``: halves the run and continues in the half with the mistake.

The method of Who&When (arXiv 2505.00212): the judge sees one part of the run at a time and selects the half
with the mistake; ⌈log2 n⌉ questions find one step. The rejected half keeps its probability, spread evenly
over its steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from agentguard.detect.base import Finding
from agentguard.judge.base import ChoiceQuestion
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
