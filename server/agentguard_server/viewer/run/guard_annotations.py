"""Annotations of the guard in a step: messages to the agent, repairs, and votes.

A session writes them to ``step.extra["agentguard"]`` (`agentguard.runtime.step_annotations`). Imported runs
may contain any data there, so its structure is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentguard.trajectory.model import Step
from agentguard_server.viewer.escaping import to_single_line
from agentguard_server.viewer.formatting import format_field_name, format_quantity


@dataclass(frozen=True, slots=True, kw_only=True)
class TextRepair:
    """Text of a step that the guard replaced."""

    field: str
    original: str
    repaired: str


def read_guard_messages(step: Step) -> tuple[str, ...]:
    """Return the messages of the guard to the agent before the step."""
    return tuple(text for text in _read_list(step, "told") if isinstance(text, str))


def read_repairs(step: Step) -> tuple[TextRepair, ...]:
    """Return the repairs of the step by the guard."""
    found = (one for one in _read_list(step, "repaired") if isinstance(one, Mapping))
    return tuple(
        TextRepair(
            field=format_field_name(str(one.get("field", ""))),
            original=str(one.get("original", "")),
            repaired=str(one.get("repaired", "")),
        )
        for one in found
    )


def describe_election(step: Step) -> str:
    """Describe in a sentence how the step was elected; empty without a vote."""
    held = _read_annotations(step).get("elected")
    if not isinstance(held, Mapping):
        return ""
    candidates, votes = held.get("candidates"), held.get("votes")
    said = "Chosen among candidates"
    if isinstance(candidates, int) and isinstance(votes, int):
        said = f"Chosen among {format_quantity(candidates, 'candidate')}: {votes} agreed"
    reason = held.get("reason")
    return f"{said} ({to_single_line(reason, 200)})" if isinstance(reason, str) and reason else said


def _read_annotations(step: Step) -> Mapping[str, Any]:
    kept = step.extra.get("agentguard")
    return kept if isinstance(kept, Mapping) else {}


def _read_list(step: Step, name: str) -> Iterable[Any]:
    found = _read_annotations(step).get(name)
    return found if isinstance(found, list | tuple) else ()
