"""Timeline of a run over time or step numbers; positions are in percent of its width.

If there are too many steps, neighbouring steps share a bar. A bar keeps all badges of its steps (errors,
findings, rollbacks, effects) and the root cause. A run of several agents has a row for each.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentguard.quantity import format_quantity
from agentguard.trajectory.model import Source, Step
from agentguard_server.viewer.escaping import to_single_line
from agentguard_server.viewer.formatting import format_duration
from agentguard_server.viewer.run.branches import BranchView
from agentguard_server.viewer.run.step_kinds import STEP_KINDS, StepKind, classify_step

Axis = Literal["time", "steps"]
Badge = Literal["error", "finding", "rollback", "effect", "use"]

MAX_BARS = 240
MAX_LANES = 8
MAX_AGENT_ROWS = 6
OTHER_AGENTS = "other agents"
"""Name of the row of all agents except the most frequent ones."""
_MAX_RUN_S = 366 * 86_400.0
_MIN_BAR_WIDTH = 0.18
_MIN_LETTER_WIDTH = 1.3
"""Minimum width in percent of a bar that shows its letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimelineBar:
    """Bar of one or more steps.

    Attributes:
        x, width: in percent of the timeline.
        kind: the most frequent kind of its steps.
        step: link target: the root cause, else the first step with a badge, else the first step.
        first: its first step.
        badges: badges of its steps.
        root: whether it contains the root-cause step.
        label: description.
        letter: whether the letter of the kind fits.
        row: row of the agent, from 0; None for a bar over all rows.
    """

    x: float
    width: float
    kind: StepKind
    step: int
    first: int
    badges: frozenset[Badge]
    root: bool
    label: str
    letter: bool
    row: int | None = None

    @property
    def middle(self) -> float:
        """Return the middle of the bar in percent."""
        return round(self.x + self.width / 2, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchLane:
    """Abandoned branch as a thin bar below the timeline.

    Attributes:
        x, width: in percent of the timeline.
        number, branch_id: number and id of the branch.
        step: its first step.
        root: position of the root cause in percent, if it is on the branch.
        label: description.
    """

    x: float
    width: float
    number: int
    branch_id: str
    step: int
    root: float | None
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """Timeline of a branch.

    Attributes:
        bars: from left to right.
        axis: unit of the horizontal axis.
        timed: whether the steps have times, so that the time axis can be chosen.
        steps_per_bar: number of steps per bar.
        begin, end: labels of both ends.
        root: middle of the bar of the root cause in percent.
        propagation_end: middle of the last bar that uses a value of the root cause.
        kinds: kinds of steps that occur.
        label: description.
        lanes: abandoned branches.
        agents: names of the rows; empty for fewer than two agents.
    """

    bars: tuple[TimelineBar, ...]
    axis: Axis
    timed: bool
    steps_per_bar: int
    begin: str
    end: str
    root: float | None
    propagation_end: float | None
    kinds: tuple[StepKind, ...]
    label: str
    lanes: tuple[BranchLane, ...] = ()
    agents: tuple[str, ...] = ()

    @property
    def badges(self) -> frozenset[Badge]:
        """Return the badges that occur."""
        return frozenset().union(*(bar.badges for bar in self.bars))


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneSource:
    """Branch to show below the timeline, and its root-cause step if it has one."""

    branch: BranchView
    root: int | None


def build_timeline(
    branch: BranchView,
    badges: Mapping[int, frozenset[Badge]],
    *,
    root: int | None,
    axis: Axis | None = None,
    lanes: Sequence[LaneSource] = (),
) -> Timeline:
    """Build the timeline of a branch.

    Args:
        branch: the branch.
        badges: badges by step.
        root: the root-cause step on the branch.
        axis: requested axis; by default time if at least half of the steps have times.
        lanes: abandoned branches to show below it.
    """
    steps, shown_lanes = branch.steps, tuple(lanes[:MAX_LANES])
    clock = _build_clock([branch, *(lane_source.branch for lane_source in shown_lanes)])
    spans = clock.compute_spans(steps) if clock is not None else None
    shown_axis: Axis = "time" if spans is not None and axis != "steps" else "steps"
    longest = max([len(steps), *(len(lane_source.branch.steps) for lane_source in shown_lanes)])
    places = spans if shown_axis == "time" and spans is not None else _distribute_evenly(len(steps), longest)
    size = -(-len(steps) // MAX_BARS) if len(steps) > MAX_BARS else 1
    agents, rows = _assign_rows(steps)
    bars = tuple(
        _build_bar(steps, group, places, badges, root, rows[group[0]])
        for position in range(0, len(steps), size)
        for group in _group_by_row(range(position, min(position + size, len(steps))), rows)
    )
    root_bar = next((bar for bar in bars if bar.root), None)
    used_bars = [bar for bar in bars if "use" in bar.badges]
    return Timeline(
        bars=bars,
        axis=shown_axis,
        timed=spans is not None,
        steps_per_bar=size,
        begin="0" if shown_axis == "steps" else "0 s",
        end=format_duration(clock.last - clock.first)
        if shown_axis == "time" and clock
        else str(max(0, longest - 1)),
        root=root_bar.middle if root_bar else None,
        propagation_end=used_bars[-1].middle if used_bars and root_bar else None,
        kinds=tuple(kind for kind in STEP_KINDS if any(bar.kind == kind for bar in bars)),
        label=_describe_timeline(steps, badges, root),
        lanes=tuple(
            lane
            for lane_source in shown_lanes
            if (lane := _build_lane(lane_source, clock if shown_axis == "time" else None, longest))
            is not None
        ),
        agents=agents,
    )


def _assign_rows(steps: Sequence[Step]) -> tuple[tuple[str, ...], list[int | None]]:
    """Return the names of the rows in order of appearance, and the row of each step."""
    counts = Counter(step.agent for step in steps if step.source is Source.AGENT)
    if len(counts) < 2:
        return (), [None] * len(steps)
    names = list(counts)
    if len(names) > MAX_AGENT_ROWS:
        frequent = {name for name, _ in counts.most_common(MAX_AGENT_ROWS - 1)}
        names = [*(name for name in names if name in frequent), OTHER_AGENTS]
    row_by_agent = {name: row for row, name in enumerate(names)}
    last_row = len(names) - 1
    rows = [row_by_agent.get(step.agent, last_row) if step.source is Source.AGENT else None for step in steps]
    return tuple(names), rows


def _group_by_row(places: range, rows: Sequence[int | None]) -> list[list[int]]:
    groups: dict[int | None, list[int]] = {}
    for place in places:
        groups.setdefault(rows[place], []).append(place)
    return list(groups.values())


def compute_step_spans(branch: BranchView, axis: Axis | None) -> tuple[Axis, list[tuple[float, float]]]:
    """Return the axis, and start and end of each step in percent; without times, the axis is "steps"."""
    clock = _build_clock([branch]) if axis != "steps" else None
    spans = clock.compute_spans(branch.steps) if clock is not None else None
    if spans is None:
        return "steps", _distribute_evenly(len(branch.steps), len(branch.steps))
    return "time", spans


def _build_lane(source: LaneSource, clock: _RunClock | None, longest: int) -> BranchLane | None:
    branch = source.branch
    spans = (
        clock.compute_spans(branch.steps)
        if clock is not None
        else _distribute_evenly(len(branch.steps), longest)
    )
    if not branch.own_steps or spans is None:
        return None
    own_spans = spans[branch.fork_step :]
    x, end = min(begin for begin, _ in own_spans), max(end for _, end in own_spans)
    root_position = (
        sum(spans[source.root]) / 2 if source.root is not None and source.root >= branch.fork_step else None
    )
    return BranchLane(
        x=round(x, 3),
        width=round(max(_MIN_BAR_WIDTH, end - x), 3),
        number=branch.number,
        branch_id=branch.id,
        step=branch.fork_step,
        root=round(root_position, 3) if root_position is not None else None,
        label=f"branch {branch.number}, {format_quantity(len(branch.own_steps), 'step')} abandoned at step {branch.fork_step}"  # noqa: E501
        + (", with the root cause" if root_position is not None else ""),
    )


def _build_bar(
    steps: Sequence[Step],
    places: Sequence[int],
    spans: Sequence[tuple[float, float]],
    badges: Mapping[int, frozenset[Badge]],
    root: int | None,
    row: int | None,
) -> TimelineBar:
    places_with_badges = [place for place in places if place in badges]
    kinds = Counter(classify_step(steps[place]) for place in places)
    x, end = spans[places[0]][0], max(spans[place][1] for place in places)
    width = max(_MIN_BAR_WIDTH, min(end, 100.0) - x)
    has_root = root is not None and root in places
    target = (
        root
        if has_root and root is not None
        else (places_with_badges[0] if places_with_badges else places[0])
    )
    bar_badges: frozenset[Badge] = frozenset().union(*(badges[place] for place in places_with_badges))
    return TimelineBar(
        x=round(min(x, 100 - _MIN_BAR_WIDTH), 2),
        width=round(width, 2),
        kind=kinds.most_common(1)[0][0],
        step=target,
        first=places[0],
        badges=bar_badges,
        root=has_root,
        label=_describe_bar(steps, places, bar_badges, has_root),
        letter=width >= _MIN_LETTER_WIDTH and len(places) == 1,
        row=row,
    )


def _describe_bar(
    steps: Sequence[Step], places: Sequence[int], badges: frozenset[Badge], has_root: bool
) -> str:
    first_step = steps[places[0]]
    if len(places) > 1:
        name = f"steps {places[0]} to {places[-1]}"
    else:
        name = f"step {places[0]}, {classify_step(first_step).word.lower()}"
        name += f" {to_single_line(first_step.agent, 60)}" if first_step.agent else ""
        if first_step.started_at is not None and first_step.ended_at is not None:
            name += f", {format_duration(max(0.0, first_step.ended_at - first_step.started_at))}"
    marks = (["root cause"] if has_root else []) + [
        _BADGE_WORDS[badge] for badge in _BADGE_WORDS if badge in badges
    ]
    return f"{name}: {', '.join(marks)}" if marks else name


_BADGE_WORDS: dict[Badge, str] = {
    "error": "error",
    "finding": "finding",
    "rollback": "rolled back to here",
    "effect": "effect",
    "use": "uses a value of the root cause",
}


def _distribute_evenly(count: int, longest: int) -> list[tuple[float, float]]:
    return [(100 * i / longest, 100 * (i + 1) / longest) for i in range(count)]


@dataclass(frozen=True, slots=True)
class _RunClock:
    """Start and end of a run in epoch seconds."""

    first: float
    last: float

    def compute_spans(self, steps: Sequence[Step]) -> list[tuple[float, float]] | None:
        """Return start and end of each step in percent; None if too few steps have times."""
        start_times = [step.started_at for step in steps if step.started_at is not None]
        if len(start_times) * 2 < len(steps):
            return None
        spans, time = [], self.first
        for place, step in enumerate(steps):
            if step.started_at is not None:  # a step without a start begins with the previous step
                time = step.started_at
            following = steps[place + 1].started_at if place + 1 < len(steps) else None
            end = step.ended_at if step.ended_at is not None else following
            spans.append((self._to_percent(time), self._to_percent(max(time, time if end is None else end))))
        return spans

    def _to_percent(self, at: float) -> float:
        return max(0.0, min(100.0, 100 * (at - self.first) / (self.last - self.first)))


def _build_clock(branches: Sequence[BranchView]) -> _RunClock | None:
    """Return the clock of a run; None if its times are missing or implausible."""
    steps = [step for branch in branches for step in branch.steps]
    times = [time for step in steps for time in (step.started_at, step.ended_at) if time is not None]
    if len(times) < 2 or not 0 < max(times) - min(times) < _MAX_RUN_S:
        return None
    return _RunClock(min(times), max(times))


def _describe_timeline(
    steps: Sequence[Step], badges: Mapping[int, frozenset[Badge]], root: int | None
) -> str:
    errors = sum("error" in step_badges for step_badges in badges.values())
    findings = sum("finding" in step_badges for step_badges in badges.values())
    summary = f"{format_quantity(len(steps), 'step')}, {format_quantity(errors, 'error')}, findings in {format_quantity(findings, 'step')}"  # noqa: E501
    return summary + (f"; the root cause is step {root}" if root is not None else "")
