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

MOST = 240
MOST_LANES = 8
_YEAR = 366 * 86_400.0
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
        first: its first step.
        badges: what is worth seeing in it.
        root: it holds the root-cause step.
        label: in words.
        letter: whether there is room for the kind's letter.
    """

    x: float
    width: float
    look: Look
    step: int
    first: int
    badges: frozenset[Badge]
    root: bool
    label: str
    letter: bool

    @property
    def middle(self) -> float:
        """The middle of the bar, in percent."""
        return round(self.x + self.width / 2, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """A line that was left, as a thin bar under the strip.

    Attributes:
        x, width: in percent of the strip.
        number: of the branch; ``line`` is its id.
        step: its first step.
        root: where on it the root cause lies, in percent.
        label: in words.
    """

    x: float
    width: float
    number: int
    line: str
    step: int
    root: float | None
    label: str


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
        lanes: lines that were left.
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
    lanes: tuple[Lane, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A line to show under the strip, and its root-cause step if it is there."""

    line: Line
    root: int | None


def strip_of(
    line: Line,
    badges: Mapping[int, frozenset[Badge]],
    *,
    root: int | None,
    axis: Axis | None = None,
    beside: Sequence[Beside] = (),
) -> Strip:
    """Lay a line out.

    Args:
        line: the line.
        badges: by step.
        root: the root-cause step on it.
        axis: as asked for; time if most steps have times.
        beside: lines that were left, to be shown under it.
    """
    steps, shown = line.steps, tuple(beside[:MOST_LANES])
    clock = _clock([line, *(one.line for one in shown)])
    spans = clock.spans(steps) if clock is not None else None
    chosen: Axis = "time" if spans is not None and axis != "steps" else "steps"
    longest = max([len(steps), *(len(one.line.steps) for one in shown)])
    places = spans if chosen == "time" and spans is not None else _even(len(steps), longest)
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
        end=duration(clock.last - clock.first) if chosen == "time" and clock else str(max(0, longest - 1)),
        root=rooted.middle if rooted else None,
        reach=used[-1].middle if used and rooted else None,
        kinds=tuple(look for look in LOOKS if any(bar.look == look for bar in bars)),
        label=_label(steps, badges, root),
        lanes=tuple(
            lane
            for one in shown
            if (lane := _lane(one, clock if chosen == "time" else None, longest)) is not None
        ),
    )


def _lane(one: Beside, clock: _Clock | None, longest: int) -> Lane | None:
    line = one.line
    spans = clock.spans(line.steps) if clock is not None else _even(len(line.steps), longest)
    if not line.own or spans is None:
        return None
    own = spans[line.fork :]
    x, end = min(begin for begin, _ in own), max(end for _, end in own)
    rooted = sum(spans[one.root]) / 2 if one.root is not None and one.root >= line.fork else None
    return Lane(
        x=round(x, 3),
        width=round(max(_LEAST, end - x), 3),
        number=line.number,
        line=line.id,
        step=line.fork,
        root=round(rooted, 3) if rooted is not None else None,
        label=f"branch {line.number}, {several(len(line.own), 'step')} left behind from step {line.fork} on"
        + (", with the root cause" if rooted is not None else ""),
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
        x=round(min(x, 100 - _LEAST), 2),
        width=round(width, 2),
        look=looks.most_common(1)[0][0],
        step=target,
        first=places[0],
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


def _even(count: int, longest: int) -> list[tuple[float, float]]:
    return [(100 * i / longest, 100 * (i + 1) / longest) for i in range(count)]


@dataclass(frozen=True, slots=True)
class _Clock:
    """First and last moment of a run; epoch seconds."""

    first: float
    last: float

    def spans(self, steps: Sequence[Step]) -> list[tuple[float, float]] | None:
        """Begin and end of each step, in percent; None where too few steps have times."""
        known = [step.started_at for step in steps if step.started_at is not None]
        if len(known) * 2 < len(steps):
            return None
        spans, at = [], self.first
        for place, step in enumerate(steps):
            at = (
                at if step.started_at is None else step.started_at
            )  # without a time: where the one before was
            following = steps[place + 1].started_at if place + 1 < len(steps) else None
            end = step.ended_at if step.ended_at is not None else following
            spans.append((self._percent(at), self._percent(max(at, at if end is None else end))))
        return spans

    def _percent(self, at: float) -> float:
        return max(0.0, min(100.0, 100 * (at - self.first) / (self.last - self.first)))


def _clock(lines: Sequence[Line]) -> _Clock | None:
    """None where the run has no times, or times that cannot be."""
    steps = [step for line in lines for step in line.steps]
    known = [at for step in steps for at in (step.started_at, step.ended_at) if at is not None]
    if len(known) < 2 or not 0 < max(known) - min(known) < _YEAR:
        return None
    return _Clock(min(known), max(known))


def _label(steps: Sequence[Step], badges: Mapping[int, frozenset[Badge]], root: int | None) -> str:
    errors = sum("error" in one for one in badges.values())
    found = sum("finding" in one for one in badges.values())
    said = f"{several(len(steps), 'step')}, {several(errors, 'error')}, findings in {several(found, 'step')}"
    return said + (f"; the root cause is step {root}" if root is not None else "")
