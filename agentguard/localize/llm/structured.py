"""``structured``: the run as numbered turns with their roles and outcomes, in one question.

Consecutive steps of one agent are one turn, turns are numbered, and a log beside the run says of each who
made it, what part that agent has, and what came back. Structure lifts one-call judges more than any other
change to the prompt (see `agentguard.localize.llm.structured`); what the rules found is noted, without a
verdict.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from agentguard.detect.base import Finding
from agentguard.judge.base import ChoiceQuestion
from agentguard.localize._roles import find_coordinators, find_task_handoff, has_failed_outcome
from agentguard.localize.llm.base import LlmLocalizer, QuerySession, StepRanking, build_llm_localizer
from agentguard.trajectory.model import Source, Step, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTurn:
    """Consecutive steps of one agent.

    Attributes:
        number: position of the turn in the run, from 0.
        agent, source: who made it.
        steps: indices of its steps, in order; never empty.
        nth: how many turns of this agent came before it.
    """

    number: int
    agent: str
    source: Source
    steps: tuple[int, ...]
    agent_turn_number: int


def group_turns(trajectory: Trajectory) -> tuple[StepTurn, ...]:
    """Group consecutive steps of one agent; every step is in exactly one turn, in order."""
    held: list[StepTurn] = []
    before: dict[tuple[Source, str], int] = {}
    for group in _group_steps(trajectory.steps):
        first = group[0]
        key = (first.source, first.agent)
        held.append(
            StepTurn(
                number=len(held),
                agent=first.agent,
                source=first.source,
                steps=tuple(step.index for step in group),
                agent_turn_number=before.get(key, 0),
            )
        )
        before[key] = before.get(key, 0) + 1
    return tuple(held)


def find_turn(turns: tuple[StepTurn, ...], step: int) -> StepTurn | None:
    """The turn that holds a step, by binary search; None if no turn does."""
    low, high = 0, len(turns)
    while low < high:
        middle = (low + high) // 2
        if turns[middle].steps[-1] < step:
            low = middle + 1
        else:
            high = middle
    return turns[low] if low < len(turns) and step in turns[low].steps else None


def format_outline(trajectory: Trajectory, *, width: int = 100) -> str:
    """One line a turn: its number, its steps, who speaks, and the beginning of what is said.

    Args:
        trajectory: the run.
        width: code points of text shown of each turn.
    """
    lines = []
    for turn in group_turns(trajectory):
        first, last = turn.steps[0], turn.steps[-1]
        span = f"step {first}" if first == last else f"steps {first}-{last}"
        lines.append(
            f"{turn.number}. {turn.agent} ({span}): {_format_turn_head(trajectory, turn, width)}".rstrip()
        )
    return "\n".join(lines)


def _group_steps(steps: tuple[Step, ...]) -> Iterator[list[Step]]:
    group: list[Step] = []
    for step in steps:
        if group and (group[-1].source, group[-1].agent) != (step.source, step.agent):
            yield group
            group = []
        group.append(step)
    if group:
        yield group


def _format_turn_head(trajectory: Trajectory, turn: StepTurn, width: int) -> str:
    for index in turn.steps:
        for _, text in trajectory.steps[index].texts():
            flat = " ".join(text.split())
            if flat:
                return flat if len(flat) <= width else flat[: max(0, width - 1)] + "\u2026"
    return ""


_MAX_LINES: Final = 200
_MAX_MESSAGE_CHARS: Final = 120


def build_structured(**options: Any) -> LlmLocalizer:
    """Make the localizer; options as `agentguard.localize.llm.base.build_llm_localizer` takes them."""
    return build_llm_localizer("structured", query_turns, options)


def query_turns(session: QuerySession, run: Trajectory, findings: Sequence[Finding]) -> StepRanking:
    """Which turn it was; the first step of a turn is the likeliest of it, the next half as likely."""
    held = select_candidate_turns(run)
    found = session.ask_choice(run, build_turn_question(run, held, findings)) or {}
    return StepRanking(probabilities=distribute_to_steps(held, found))


def select_candidate_turns(run: Trajectory) -> tuple[StepTurn, ...]:
    """The turns that can be at fault: those of agents; all turns where no agent made one."""
    grouped = group_turns(run)
    return tuple(turn for turn in grouped if turn.source is Source.AGENT) or grouped


def build_turn_question(
    run: Trajectory, candidates: Sequence[StepTurn], findings: Sequence[Finding]
) -> ChoiceQuestion:
    """Which of some turns is the root cause, with the structured log beside the run."""
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
    """A turn by its steps, as the run shows them."""
    first, last = turn.steps[0], turn.steps[-1]
    return f"step {first}" if first == last else f"steps {first} to {last}"


def format_turn_log(
    run: Trajectory, candidates: Sequence[StepTurn], findings: Sequence[Finding]
) -> tuple[str, ...]:
    """A line a turn: its steps, who made it, in which part, what came back, what rules noticed."""
    steering, opening = find_coordinators(run), find_task_handoff(run)
    at: dict[int, list[str]] = {}
    for finding in findings:
        at.setdefault(finding.step, []).append(" ".join(finding.message.split())[:_MAX_MESSAGE_CHARS])
    lines = []
    for turn in candidates[:_MAX_LINES]:
        part = "gives the task" if opening in turn.steps else "steers" if turn.agent in steering else "works"
        came = "; an error came back" if any(has_failed_outcome(run, step) for step in turn.steps) else ""
        noticed = [said for step in turn.steps for said in at.get(step, ())]
        more = f"; noticed: {' | '.join(noticed[:2])}" if noticed else ""
        lines.append(f"turn {turn.number}, {format_turn_label(turn)}, {turn.agent}: {part}{came}{more}")
    return tuple(lines)


def distribute_to_steps(
    candidates: Sequence[StepTurn], probabilities: Mapping[str, float]
) -> dict[int, float]:
    """Each turn's probability, by its label, dealt out to its steps."""
    steps: dict[int, float] = {}
    for turn in candidates:
        weights = [0.5**place for place in range(len(turn.steps))]
        total = sum(weights)
        for step, weight in zip(turn.steps, weights, strict=True):
            steps[step] = probabilities.get(format_turn_label(turn), 0.0) * weight / total
    return {step: share for step, share in steps.items() if share > 0.0}
