"""Quotes of evidence, verified against the text, numbered, and indexed by branch and step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from agentguard.detect.base import Evidence
from agentguard.detect.quotes import describe_field
from agentguard.trajectory.model import Step

QuoteMatch = Literal["exact", "moved", "gone"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Quote:
    """Quote on the page.

    Attributes:
        number: displayed number, from 1.
        branch_id: id of its branch; empty for the current branch.
        step, field, start, end: its position.
        source: description of the field, such as ``call of search``.
        text: the quoted text.
        match: ``exact`` if the offsets are correct; ``moved`` if the text is elsewhere in the field; ``gone``
            if the field does not contain it.
        is_primary: whether it supports the root cause.
    """

    number: int
    branch_id: str
    step: int
    field: str
    start: int
    end: int
    source: str
    text: str
    match: QuoteMatch
    is_primary: bool = False

    @property
    def anchor(self) -> str:
        """Return the id of its HTML element."""
        return f"q{self.number}"


@dataclass(slots=True)
class QuoteIndex:
    """All quotes of a page, without duplicates."""

    all: list[Quote] = field(default_factory=list)
    _by_location: dict[tuple[str, int, str, int, int, str], Quote] = field(default_factory=dict)
    _by_step: dict[tuple[str, int], list[Quote]] = field(default_factory=dict)

    def add(
        self,
        evidence: Iterable[Evidence],
        steps: Sequence[Step],
        branch_ids: Sequence[str],
        *,
        is_primary: bool = False,
    ) -> tuple[Quote, ...]:
        """Add evidence and return its quotes; ``steps[i]`` was recorded on the branch ``branch_ids[i]``."""
        return tuple(self._add_quote(one, steps, branch_ids, is_primary) for one in evidence)

    def find_in_step(self, branch_id: str, step: int) -> Mapping[str, list[Quote]]:
        """Return the quotes in a step, by field."""
        by_field: dict[str, list[Quote]] = {}
        for quote in self._by_step.get((branch_id, step), ()):
            by_field.setdefault(quote.field, []).append(quote)
        return by_field

    def _add_quote(
        self, evidence: Evidence, steps: Sequence[Step], branch_ids: Sequence[str], is_primary: bool
    ) -> Quote:
        is_in_run = 0 <= evidence.step < len(steps)
        branch_id = branch_ids[evidence.step] if is_in_run else ""
        key = (branch_id, evidence.step, evidence.field, evidence.start, evidence.end, evidence.quote)
        if key not in self._by_location:
            text = steps[evidence.step].text(evidence.field) if is_in_run else ""
            start, end, match = _locate_quote(evidence, text)
            quote = Quote(
                number=len(self.all) + 1,
                branch_id=branch_id,
                step=evidence.step,
                field=evidence.field,
                source=describe_field(steps[evidence.step], evidence.field) if is_in_run else evidence.field,
                start=start,
                end=end,
                text=evidence.quote,
                match=match,
                is_primary=is_primary,
            )
            self.all.append(quote)
            self._by_location[key] = quote
            if match != "gone":
                self._by_step.setdefault((branch_id, evidence.step), []).append(quote)
        return self._by_location[key]


def _locate_quote(evidence: Evidence, text: str) -> tuple[int, int, QuoteMatch]:
    """Return start and end of a quote in a text, and its match; start and end are 0 for ``gone``."""
    if (
        evidence.quote
        and 0 <= evidence.start < evidence.end
        and text[evidence.start : evidence.end] == evidence.quote
    ):
        return evidence.start, evidence.end, "exact"
    position = text.find(evidence.quote) if evidence.quote else -1
    return (position, position + len(evidence.quote), "moved") if position >= 0 else (0, 0, "gone")
