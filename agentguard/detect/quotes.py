"""Quotes with exact offsets, of a span, a text, a move or the value of an argument."""

from __future__ import annotations

from agentguard.detect.base import Evidence
from agentguard.detect.step_facts import StepFacts, canonicalize_json
from agentguard.trajectory.model import Step

MAX_QUOTE_CHARS = 240
"""Maximum length of a quote in code points.

A finding quotes the relevant span, not the complete observation.
"""


def describe_field(step: Step, field: str) -> str:
    """Describe a field of a step: ``text``, ``call of search``, ``result of search``."""
    kind, _, place = field.partition("[")
    index = int(place[:-1]) if place[:-1].isdecimal() and len(place) < 8 else 0
    if kind == "tool_calls":
        return f"call of {step.tool_calls[index].name}" if index < len(step.tool_calls) else "call"
    if kind == "observations":
        tool = step.observations[index].tool if index < len(step.observations) else ""
        return f"result of {tool}" if tool else "result"
    return {"content": "text"}.get(kind, kind)


def quote_span(step: Step, field: str, start: int = 0, end: int | None = None) -> tuple[Evidence, ...]:
    """Quote a span of a field of a step, cut to `MAX_QUOTE_CHARS`; return () if the span is blank."""
    text = step.text(field)
    stop = min(len(text) if end is None else end, start + MAX_QUOTE_CHARS)
    quote = text[start:stop]
    if not quote.strip():
        return ()
    return (Evidence(step=step.index, field=field, quote=quote, start=start, end=start + len(quote)),)


def quote_text(step: Step, field: str, needle: str) -> tuple[Evidence, ...]:
    """Quote the first occurrence of ``needle`` in a field; without an occurrence, the start of the field."""
    position = step.text(field).find(needle) if needle else -1
    return (
        quote_span(step, field, position, position + len(needle))
        if position >= 0
        else quote_span(step, field)
    )


def quote_move(facts: StepFacts) -> tuple[Evidence, ...]:
    """Quote the first action of a step, or its text if it has none."""
    if not facts.actions:
        return quote_span(facts.step, "content")
    action = facts.actions[0]
    return quote_span(facts.step, action.field, action.start, action.end)


def quote_value(step: Step, field: str, value: object, key: str | None = None) -> tuple[Evidence, ...]:
    """Quote the value of an argument after its key.

    If the value is not found, quote the start of the arguments.
    """
    text = step.text(field)
    key_position = max(0, text.find(f'"{key}"')) if key else 0
    needle = value if isinstance(value, str) else canonicalize_json(value)
    position = text.find(needle, key_position) if needle else -1
    return (
        quote_span(step, field, position, position + len(needle))
        if position >= 0
        else quote_span(step, field)
    )
