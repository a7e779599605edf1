"""Lanes of a branch: one row per agent, and below it one row per tool that the agent calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentguard.trajectory.model import Source
from agentguard_server.viewer.run.branches import BranchView
from agentguard_server.viewer.run.timeline import Axis, Badge, compute_step_spans

MAX_ROWS = 24
_MIN_WIDTH = 0.3
"""Minimum width of a bar in percent."""
_LaneKey = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneBar:
    """Bar of the steps ``step`` to ``last_step``; ``x`` and ``width`` are percentages of the lane."""

    x: float
    width: float
    step: int
    last_step: int
    error: bool
    root: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """Row of an agent, or of a tool of this agent; ``tool`` is empty for the row of the agent."""

    agent: str
    tool: str
    bars: tuple[LaneBar, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneChart:
    """Lanes with their axis; ``omitted`` is the number of lanes beyond `MAX_ROWS`."""

    lanes: tuple[Lane, ...]
    axis: Axis
    omitted: int


def build_lanes(
    branch: BranchView, badges: Mapping[int, frozenset[Badge]], *, root: int | None, axis: Axis | None
) -> LaneChart:
    """Build the lanes of the agents' steps over time, or over step numbers if the run has no times."""
    shown_axis, spans = compute_step_spans(branch, axis)
    bars: dict[_LaneKey, list[LaneBar]] = {}
    for place, step in enumerate(branch.steps):
        if step.source is not Source.AGENT:
            continue
        begin, end = spans[place]
        x = min(begin, 100 - _MIN_WIDTH)
        bar = LaneBar(
            x=round(x, 2),
            width=round(max(_MIN_WIDTH, end - x), 2),
            step=place,
            last_step=place,
            error="error" in badges.get(place, ()),
            root=place == root,
        )
        for tool in dict.fromkeys(["", *(call.name for call in step.tool_calls)]):
            _append_bar(bars.setdefault((step.agent, tool), []), bar)
    return LaneChart(
        lanes=tuple(
            Lane(agent=agent, tool=tool, bars=tuple(bars[agent, tool]))
            for agent, tool in _order_lanes(list(bars))[:MAX_ROWS]
        ),
        axis=shown_axis,
        omitted=max(0, len(bars) - MAX_ROWS),
    )


def _append_bar(bars: list[LaneBar], bar: LaneBar) -> None:
    """Append a bar; merge it with a last bar that begins at nearly the same position."""
    last = bars[-1] if bars else None
    if last is None or bar.x - last.x >= _MIN_WIDTH:
        bars.append(bar)
        return
    bars[-1] = LaneBar(
        x=last.x,
        width=round(max(last.width, bar.x + bar.width - last.x), 2),
        step=bar.step if bar.root else last.step,
        last_step=bar.step,
        error=last.error or bar.error,
        root=last.root or bar.root,
    )


def _order_lanes(keys: Sequence[_LaneKey]) -> list[_LaneKey]:
    """Order lanes by agent in order of appearance; the row of the agent precedes those of its tools."""
    agents = dict.fromkeys(agent for agent, _ in keys)
    return [key for agent in agents for key in keys if key[0] == agent]
