"""Quotes as places in a run: checked against the text, numbered, found again by line and step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentguard.detect.base import Evidence
from agentguard.trajectory.model import Step

Standing = Literal["exact", "moved", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """One quote of the page.

    Attributes:
        number: as it is shown, from 1.
        line: id of the branch it stands in; empty for the live line.
        step, field, start, end: its place.
        text: what it says.
        standing: ``exact`` where the offsets are true; ``moved`` where the text was found elsewhere in the
            field; ``gone`` where the run does not say this there.
        chief: it speaks for the root cause.
    """

    number: int
    line: str
    step: int
    field: str
    start: int
    end: int
    text: str
    standing: Standing
    chief: bool = False

    @property
    def anchor(self) -> str:
        """The id of its place in the page."""
        return f"q{self.number}"


@dataclass(slots=True)
class Quotes:
    """All quotes of a page, each place once."""

    all: list[Quote] = field(default_factory=list)
    _known: dict[tuple[str, int, str, int, int, str], Quote] = field(default_factory=dict)
    _placed: dict[tuple[str, int], list[Quote]] = field(default_factory=dict)

    def add(
        self, given: Iterable[Evidence], steps: Sequence[Step], lines: Sequence[str], *, chief: bool = False
    ) -> tuple[Quote, ...]:
        """Take in evidence about a line: ``steps[i]`` stands on the line ``lines[i]``."""
        return tuple(self._one(one, steps, lines, chief) for one in given)

    def of(self, line: str, step: int) -> Mapping[str, list[Quote]]:
        """Quotes that stand in a step, by field."""
        by_field: dict[str, list[Quote]] = {}
        for quote in self._placed.get((line, step), ()):
            by_field.setdefault(quote.field, []).append(quote)
        return by_field

    def _one(self, one: Evidence, steps: Sequence[Step], lines: Sequence[str], chief: bool) -> Quote:
        there = 0 <= one.step < len(steps)
        line = lines[one.step] if there else ""
        key = (line, one.step, one.field, one.start, one.end, one.quote)
        if key not in self._known:
            text = steps[one.step].text(one.field) if there else ""
            start, end, standing = _place(one, text)
            quote = Quote(
                number=len(self.all) + 1,
                line=line,
                step=one.step,
                field=one.field,
                start=start,
                end=end,
                text=one.quote,
                standing=standing,
                chief=chief,
            )
            self.all.append(quote)
            self._known[key] = quote
            if standing != "gone":
                self._placed.setdefault((line, one.step), []).append(quote)
        return self._known[key]


def _place(one: Evidence, text: str) -> tuple[int, int, Standing]:
    if one.quote and 0 <= one.start < one.end and text[one.start : one.end] == one.quote:
        return one.start, one.end, "exact"
    at = text.find(one.quote) if one.quote else -1
    return (at, at + len(one.quote), "moved") if at >= 0 else (0, 0, "gone")
