"""The strip: a run at a glance, over time or over step numbers, as bars and badges in percent of its width.

Where there are more steps than a strip can show, neighbours are put into one bar; what is worth seeing (the
root cause, errors, findings, rollbacks, effects) is never lost by that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from agentguard.trajectory.model import Step
from agentguard_server.viewer.run.figures import duration, several
from agentguard_server.viewer.run.kinds import LOOKS, Look, look_of
from agentguard_server.viewer.run.lines import Line
from agentguard_server.viewer.text import plain

Axis = Literal["time", "steps"]
Badge = Literal["error", "finding", "rollback", "effect", "use"]

MOST = 360
_LEAST = 0.18
_LETTER = 1.3
"""Least width of a bar, in percent, that has room for its letter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One or more steps on the strip.

    Attributes:
        x, width: in percent of the strip.
        look: the commonest kind of its steps.
        step: where a click goes: its root cause, else its first step that is worth seeing, else its first.
        badges: what is worth seeing in it.
        root: it holds the root-cause step.
        label: in words.
        letter: whether there is room for the kind's letter.
    """

    x: float
    width: float
    look: Look
    step: int
    badges: frozenset[Badge]
    root: bool
    label: str
    letter: bool

    @property
    def middle(self) -> float:
        """The middle of the bar, in percent."""
        return self.x + self.width / 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Strip:
    """The strip of a line.

    Attributes:
        bars: from left to right.
        axis: what its width is.
        timed: whether the other axis can be chosen.
        binned: steps a bar, where it is more than one.
        begin, end: what stands at its ends.
        root: the middle of the root cause's bar, in percent.
        reach: the middle of the last bar that uses a value of it.
        kinds: those that occur.
        label: the strip in words.
    """

    bars: tuple[Bar, ...]
    axis: Axis
    timed: bool
    binned: int
    begin: str
    end: str
    root: float | None
    reach: float | None
    kinds: tuple[Look, ...]
    label: str


def strip_of(
    line: Line, badges: Mapping[int, frozenset[Badge]], *, root: int | None, axis: Axis | None = None
) -> Strip:
    """Lay a line out.

    Args:
        line: the line.
        badges: by step.
        root: the root-cause step on it.
        axis: as asked for; time if most steps have times.
    """
    steps = line.steps
    spans = _times(steps)
    chosen: Axis = "time" if spans is not None and axis != "steps" else "steps"
    places = spans if chosen == "time" and spans is not None else _even(len(steps))
    size = -(-len(steps) // MOST) if len(steps) > MOST else 1
    bars = tuple(
        _bar(steps, range(at, min(at + size, len(steps))), places, badges, root)
        for at in range(0, len(steps), size)
    )
    rooted = next((bar for bar in bars if bar.root), None)
    used = [bar for bar in bars if "use" in bar.badges]
    return Strip(
        bars=bars,
        axis=chosen,
        timed=spans is not None,
        binned=size,
        begin="0" if chosen == "steps" else "0 s",
        end=_end(steps, chosen),
        root=rooted.middle if rooted else None,
        reach=used[-1].middle if used and rooted else None,
        kinds=tuple(look for look in LOOKS if any(bar.look == look for bar in bars)),
        label=_label(steps, badges, root),
    )


def _bar(
    steps: Sequence[Step],
    places: range,
    spans: Sequence[tuple[float, float]],
    badges: Mapping[int, frozenset[Badge]],
    root: int | None,
) -> Bar:
    here = [place for place in places if place in badges]
    looks = Counter(look_of(steps[place]) for place in places)
    x, end = spans[places[0]][0], max(spans[place][1] for place in places)
    width = max(_LEAST, min(end, 100.0) - x)
    rooted = root is not None and root in places
    target = root if rooted and root is not None else (here[0] if here else places[0])
    found: frozenset[Badge] = frozenset().union(*(badges[place] for place in here))
    return Bar(
        x=round(min(x, 100 - _LEAST), 3),
        width=round(width, 3),
        look=looks.most_common(1)[0][0],
        step=target,
        badges=found,
        root=rooted,
        label=_words(steps, places, found, rooted),
        letter=width >= _LETTER and len(places) == 1,
    )


def _words(steps: Sequence[Step], places: range, badges: frozenset[Badge], rooted: bool) -> str:
    first = steps[places[0]]
    if len(places) > 1:
        name = f"steps {places[0]} to {places[-1]}"
    else:
        name = f"step {places[0]}, {look_of(first).word.lower()}"
        name += f" {plain(first.agent, 60)}" if first.agent else ""
        if first.started_at is not None and first.ended_at is not None:
            name += f", {duration(max(0.0, first.ended_at - first.started_at))}"
    marks = (["root cause"] if rooted else []) + [_BADGES[one] for one in _BADGES if one in badges]
    return f"{name}: {', '.join(marks)}" if marks else name


_BADGES: dict[Badge, str] = {
    "error": "error",
    "finding": "finding",
    "rollback": "taken back to here",
    "effect": "effect",
    "use": "uses a value of the root cause",
}


def _even(count: int) -> list[tuple[float, float]]:
    return [(100 * i / count, 100 * (i + 1) / count) for i in range(count)]


def _times(steps: Sequence[Step]) -> list[tuple[float, float]] | None:
    """Begin and end of each step, in percent; None where too few steps have times, or they run backwards."""
    begins = [step.started_at for step in steps]
    known = [at for at in begins if at is not None]
    if len(known) < 2 or len(known) * 2 < len(steps):
        return None
    first = min(known)
    last = max([*known, *(step.ended_at for step in steps if step.ended_at is not None)])
    if not 0 < last - first < 1e9:
        return None
    filled = _filled(begins, first)

    def scale(at: float) -> float:
        return max(0.0, min(100.0, 100 * (at - first) / (last - first)))

    spans = []
    for place, begin in enumerate(filled):
        ended = steps[place].ended_at
        following = filled[place + 1] if place + 1 < len(filled) else last
        spans.append((scale(begin), scale(max(begin, ended if ended is not None else following))))
    return spans


def _filled(begins: Sequence[float | None], first: float) -> list[float]:
    """Steps without a time begin where the one before them did."""
    filled, last = [], first
    for at in begins:
        last = last if at is None else at
        filled.append(last)
    return filled


def _end(steps: Sequence[Step], axis: Axis) -> str:
    if axis == "steps":
        return str(max(0, len(steps) - 1))
    known = [at for step in steps for at in (step.started_at, step.ended_at) if at is not None]
    return duration(max(known) - min(known))


def _label(steps: Sequence[Step], badges: Mapping[int, frozenset[Badge]], root: int | None) -> str:
    errors = sum("error" in one for one in badges.values())
    found = sum("finding" in one for one in badges.values())
    said = f"{several(len(steps), 'step')}, {several(errors, 'error')}, findings in {several(found, 'step')}"
    return said + (f"; the root cause is step {root}" if root is not None else "")
