"""The structure of a run: consecutive steps of one agent grouped into turns, and the turns numbered.

A judge that is shown turns instead of raw entries finds the step far more often (one call: 20 against 45 to
48 % on Who&When's generated runs), and so does a person.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentguard.trajectory.model import Source, Step, Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
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
    nth: int


def turns(trajectory: Trajectory) -> tuple[Turn, ...]:
    """Group consecutive steps of one agent; every step is in exactly one turn, in order."""
    held: list[Turn] = []
    before: dict[tuple[Source, str], int] = {}
    for group in _groups(trajectory.steps):
        first = group[0]
        key = (first.source, first.agent)
        held.append(
            Turn(
                number=len(held),
                agent=first.agent,
                source=first.source,
                steps=tuple(step.index for step in group),
                nth=before.get(key, 0),
            )
        )
        before[key] = before.get(key, 0) + 1
    return tuple(held)


def turn_of(grouped: tuple[Turn, ...], step: int) -> Turn | None:
    """The turn that holds a step, by binary search; None if no turn does."""
    low, high = 0, len(grouped)
    while low < high:
        middle = (low + high) // 2
        if grouped[middle].steps[-1] < step:
            low = middle + 1
        else:
            high = middle
    return grouped[low] if low < len(grouped) and step in grouped[low].steps else None


def outline(trajectory: Trajectory, *, width: int = 100) -> str:
    """One line a turn: its number, its steps, who speaks, and the beginning of what is said.

    Args:
        trajectory: the run.
        width: code points of text shown of each turn.
    """
    lines = []
    for turn in turns(trajectory):
        first, last = turn.steps[0], turn.steps[-1]
        span = f"step {first}" if first == last else f"steps {first}-{last}"
        lines.append(f"{turn.number}. {turn.agent} ({span}): {_head(trajectory, turn, width)}".rstrip())
    return "\n".join(lines)


def _groups(steps: tuple[Step, ...]) -> Iterator[list[Step]]:
    group: list[Step] = []
    for step in steps:
        if group and (group[-1].source, group[-1].agent) != (step.source, step.agent):
            yield group
            group = []
        group.append(step)
    if group:
        yield group


def _head(trajectory: Trajectory, turn: Turn, width: int) -> str:
    for index in turn.steps:
        for _, text in trajectory.steps[index].texts():
            flat = " ".join(text.split())
            if flat:
                return flat if len(flat) <= width else flat[: max(0, width - 1)] + "\u2026"
    return ""
