"""Search within a run: every place of a text in what was said, called and returned, on all lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agentguard.detect.text import lowered
from agentguard_server.viewer.run.lines import Line, Lines

MOST = 200
_BEFORE, _AFTER = 60, 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Hit:
    """A place: ``before`` + ``found`` + ``after`` is a stretch of the step's field."""

    line: Line
    step: int
    agent: str
    field: str
    before: str
    found: str
    after: str
    more: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """What a search found; ``cut`` if there is more than is shown."""

    query: str
    hits: tuple[Hit, ...]
    cut: bool


def search(lines: Lines, query: str) -> Hits:
    """Find a text, whatever its case; one hit a field, with how often it stands there besides."""
    wanted = lowered(query.strip())
    if not wanted:
        return Hits(query=query, hits=(), cut=False)
    found: list[Hit] = []
    for hit in _hits(lines, wanted):
        if len(found) == MOST:
            return Hits(query=query, hits=tuple(found), cut=True)
        found.append(hit)
    return Hits(query=query, hits=tuple(found), cut=False)


def _hits(lines: Lines, wanted: str) -> Iterator[Hit]:
    for line in lines:
        for place, step in enumerate(line.own, line.fork):
            texts = [
                ("agent", step.agent),
                *((f"call of {call.name}", call.name) for call in step.tool_calls),
            ]
            for field, text in (*step.texts(), *texts):
                low = lowered(text)
                at = low.find(wanted)
                if at >= 0:
                    end = at + len(wanted)
                    yield Hit(
                        line=line,
                        step=place,
                        agent=step.agent,
                        field=field,
                        before=("…" if at > _BEFORE else "") + text[max(0, at - _BEFORE) : at],
                        found=text[at:end],
                        after=text[end : end + _AFTER] + ("…" if len(text) > end + _AFTER else ""),
                        more=low.count(wanted) - 1,
                    )
