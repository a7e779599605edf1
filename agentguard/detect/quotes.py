"""Quotes with exact offsets: of a span, of a text, of a move, of an argument's value."""

from __future__ import annotations

from agentguard.detect.base import Evidence
from agentguard.detect.facts import Facts, canonical
from agentguard.trajectory.model import Step

QUOTE_LIMIT = 240
"""Longest quote, in code points: a finding shows the telling place, not the whole observation."""


def cite(step: Step, field: str, start: int = 0, end: int | None = None) -> tuple[Evidence, ...]:
    """Quote a span of a step's field, shortened to `QUOTE_LIMIT`; empty if the span holds nothing."""
    text = step.text(field)
    stop = min(len(text) if end is None else end, start + QUOTE_LIMIT)
    quote = text[start:stop]
    if not quote.strip():
        return ()
    return (Evidence(step=step.index, field=field, quote=quote, start=start, end=start + len(quote)),)


def cite_text(step: Step, field: str, needle: str) -> tuple[Evidence, ...]:
    """Quote the first place of ``needle`` in a field; the field's beginning where it is not in it."""
    at = step.text(field).find(needle) if needle else -1
    return cite(step, field, at, at + len(needle)) if at >= 0 else cite(step, field)


def cite_move(facts: Facts) -> tuple[Evidence, ...]:
    """Quote the first action of a step, or its text if it has none."""
    if not facts.actions:
        return cite(facts.step, "content")
    action = facts.actions[0]
    return cite(facts.step, action.field, action.start, action.end)


def cite_value(step: Step, field: str, value: object, key: str | None = None) -> tuple[Evidence, ...]:
    """Quote an argument's value, after its key where there is one; the arguments' beginning if not found."""
    text = step.text(field)
    at = max(0, text.find(f'"{key}"')) if key else 0
    needle = value if isinstance(value, str) else canonical(value)
    found = text.find(needle, at) if needle else -1
    return cite(step, field, found, found + len(needle)) if found >= 0 else cite(step, field)
