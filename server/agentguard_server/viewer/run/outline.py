"""Outline of a branch: one row per step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from agentguard.trajectory.model import Step
from agentguard_server.viewer.escaping import to_single_line
from agentguard_server.viewer.run.branches import BranchView
from agentguard_server.viewer.run.step_kinds import StepKind, classify_step
from agentguard_server.viewer.run.timeline import Badge

OUTLINE_ROWS = 500
"""Number of rows on a page."""
_MAX_SUMMARY_CHARS = 60
_MARKED: frozenset[Badge] = frozenset({"error", "finding", "rollback"})


@dataclass(frozen=True, slots=True, kw_only=True)
class OutlineRow:
    """Row of the outline.

    Attributes:
        index: number of the step.
        kind: kind of the step.
        agent: name of the agent.
        tools: names of the called tools.
        summary: beginning of the last result, else of the content.
        badges: badges of the step.
        root: whether the step is the root cause or the likely step.
    """

    index: int
    kind: StepKind
    agent: str
    tools: tuple[str, ...]
    summary: str
    badges: frozenset[Badge]
    root: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outline:
    """Page of the outline.

    Attributes:
        rows: rows of the page.
        total: number of rows on all pages.
        previous_step, next_step: first step of the neighbouring pages; None if there is no such page.
    """

    rows: tuple[OutlineRow, ...]
    total: int
    previous_step: int | None
    next_step: int | None


def build_outline(
    branch: BranchView,
    badges: Mapping[int, frozenset[Badge]],
    *,
    root: int | None,
    step: int,
    only_marked: bool,
) -> Outline:
    """Build the page that contains a step.

    Args:
        branch: the branch.
        badges: badges by step.
        root: the root cause on the branch.
        step: the page contains the row of this step, or of the next step that is in the outline.
        only_marked: whether to leave out steps without error, finding, rollback and root cause.
    """
    places = [
        place
        for place in range(len(branch.steps))
        if not only_marked or place == root or badges.get(place, frozenset()) & _MARKED
    ]
    position = next((i for i, place in enumerate(places) if place >= step), max(0, len(places) - 1))
    begin = position // OUTLINE_ROWS * OUTLINE_ROWS
    end = begin + OUTLINE_ROWS
    return Outline(
        rows=tuple(
            build_outline_row(
                branch.steps[place], place, badges.get(place, frozenset()), is_root=place == root
            )
            for place in places[begin:end]
        ),
        total=len(places),
        previous_step=places[begin - OUTLINE_ROWS] if begin else None,
        next_step=places[end] if end < len(places) else None,
    )


def build_outline_row(step: Step, place: int, badges: frozenset[Badge], *, is_root: bool) -> OutlineRow:
    """Build the row of a step."""
    result = next((observation.content for observation in reversed(step.observations)), "")
    return OutlineRow(
        index=place,
        kind=classify_step(step),
        agent=step.agent,
        tools=tuple(dict.fromkeys(call.name for call in step.tool_calls)),
        summary=to_single_line(result or step.content or step.reasoning, _MAX_SUMMARY_CHARS),
        badges=badges,
        root=is_root,
    )
