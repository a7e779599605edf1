"""Quotes that several groups of detectors make: of a move, and of an argument's value."""

from __future__ import annotations

from agentguard.detect.base import Evidence
from agentguard.detect.facts import Facts, canonical
from agentguard.detect.text import cite
from agentguard.trajectory.model import Step


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
