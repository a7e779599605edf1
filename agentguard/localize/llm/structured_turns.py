"""Localizer ``structured``: one question about the run as numbered turns with roles and outcomes.

Consecutive steps of one agent form a turn. A log after the run lists the agent, role, outcome and findings of
each turn, without a verdict. No other change of the prompt improves judges with one call as much: the step
accuracy is 20 % without turns, and 45 to 48 % with them (Who&When's generated runs).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.base import ChoiceQuestion
from agentguard.localize.agent_roles import find_coordinators, find_task_handoff, has_failed_outcome
from agentguard.localize.llm.base import LlmLocalizer, QuerySession, StepRanking, build_llm_localizer
from agentguard.trajectory.model import Source, Step, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTurn:
    """Consecutive steps of one agent.

    Attributes:
        number: position of the turn in the run, from 0.
        agent, source: its agent and source.
        steps: indices of its steps, in order; never empty.
    """

    number: int
    agent: str
    source: Source
    steps: tuple[int, ...]


def group_turns(trajectory: Trajectory) -> tuple[StepTurn, ...]:
    """Group consecutive steps of one agent; every step is in exactly one turn, in order."""
    return tuple(
        StepTurn(
            number=number,
            agent=group[0].agent,
            source=group[0].source,
            steps=tuple(step.index for step in group),
        )
        for number, group in enumerate(_group_steps(trajectory.steps))
    )


def _group_steps(steps: tuple[Step, ...]) -> Iterator[list[Step]]:
    group: list[Step] = []
    for step in steps:
        if group and (group[-1].source, group[-1].agent) != (step.source, step.agent):
            yield group
            group = []
        group.append(step)
    if group:
        yield group


_MAX_LINES: Final = 200
_MAX_MESSAGE_CHARS: Final = 120


def build_structured(**options: Any) -> LlmLocalizer:
    """Build the localizer; options as for `agentguard.localize.llm.base.build_llm_localizer`."""
    return build_llm_localizer("structured", query_turns, options)


def query_turns(session: QuerySession, run: Trajectory, findings: Sequence[Finding]) -> StepRanking:
    """Ask which turn caused the failure; within a turn, each step is half as probable as its predecessor."""
    candidates = select_candidate_turns(run)
    probabilities = session.ask_choice(run, build_turn_question(run, candidates, findings)) or {}
    return StepRanking(probabilities=distribute_to_steps(candidates, probabilities))


def select_candidate_turns(run: Trajectory) -> tuple[StepTurn, ...]:
    """Return the turns of agents; if no agent has a turn, return all turns."""
    grouped = group_turns(run)
    return tuple(turn for turn in grouped if turn.source is Source.AGENT) or grouped


def build_turn_question(
    run: Trajectory, candidates: Sequence[StepTurn], findings: Sequence[Finding]
) -> ChoiceQuestion:
    """Build the question for the root-cause turn, with the turn log as context."""
    text = (
        "The task failed. Which turn made the first mistake that decided it, so that the task could have "
        "been done if that turn had been right?"
    )
    return ChoiceQuestion(
        id="root_cause_turn",
        text=text,
        options=tuple(format_turn_label(turn) for turn in candidates),
        context=format_turn_log(run, candidates, findings),
    )


def format_turn_label(turn: StepTurn) -> str:
    """Format a turn by its step numbers, as the prompt shows them."""
    first, last = turn.steps[0], turn.steps[-1]
    return f"step {first}" if first == last else f"steps {first} to {last}"


def format_turn_log(
    run: Trajectory, candidates: Sequence[StepTurn], findings: Sequence[Finding]
) -> tuple[str, ...]:
    """Format one line for each turn: steps, agent, role, outcome, findings."""
    coordinators, task_handoff = find_coordinators(run), find_task_handoff(run)
    messages_by_step: dict[int, list[str]] = {}
    for finding in findings:
        messages_by_step.setdefault(finding.step, []).append(
            " ".join(finding.message.split())[:_MAX_MESSAGE_CHARS]
        )
    lines = []
    for turn in candidates[:_MAX_LINES]:
        role = (
            "gives the task"
            if task_handoff in turn.steps
            else "steers"
            if turn.agent in coordinators
            else "works"
        )
        error_note = (
            "; an error came back" if any(has_failed_outcome(run, step) for step in turn.steps) else ""
        )
        messages = [message for step in turn.steps for message in messages_by_step.get(step, ())]
        message_note = f"; noticed: {' | '.join(messages[:2])}" if messages else ""
        lines.append(
            f"turn {turn.number}, {format_turn_label(turn)}, {turn.agent}: {role}{error_note}{message_note}"
        )
    return tuple(lines)


def distribute_to_steps(
    candidates: Sequence[StepTurn], probabilities: Mapping[str, float]
) -> dict[int, float]:
    """Distribute each turn's probability, given by its label, over its steps."""
    steps: dict[int, float] = {}
    for turn in candidates:
        weights = [0.5**index for index in range(len(turn.steps))]
        total = sum(weights)
        for step, weight in zip(turn.steps, weights, strict=True):
            steps[step] = probabilities.get(format_turn_label(turn), 0.0) * weight / total
    return {step: share for step, share in steps.items() if share > 0.0}
