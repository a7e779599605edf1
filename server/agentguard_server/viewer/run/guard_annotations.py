"""Annotations of the guard in a step: messages to the agent, repairs, and votes.

A session writes them to ``step.extra["agentguard"]`` (`agentguard.runtime.session`). Imported runs
may contain any data there, so its structure is checked.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from agentguard.quantity import format_quantity
from agentguard.trajectory.model import Step
from agentguard_server.viewer.escaping import to_single_line
from agentguard_server.viewer.formatting import format_field_name


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
    repairs = (repair for repair in _read_list(step, "repaired") if isinstance(repair, Mapping))
    return tuple(
        TextRepair(
            field=format_field_name(str(repair.get("field", ""))),
            original=str(repair.get("original", "")),
            repaired=str(repair.get("repaired", "")),
        )
        for repair in repairs
    )


def describe_election(step: Step) -> str:
    """Describe in a sentence how the step was elected; empty without a vote."""
    election = _read_annotations(step).get("elected")
    if not isinstance(election, Mapping):
        return ""
    candidates, votes = election.get("candidates"), election.get("votes")
    summary = "Chosen among candidates"
    if isinstance(candidates, int) and isinstance(votes, int):
        summary = f"Chosen among {format_quantity(candidates, 'candidate')}: {votes} agreed"
    reason = election.get("reason")
    return f"{summary} ({to_single_line(reason, 200)})" if isinstance(reason, str) and reason else summary


def _read_annotations(step: Step) -> Mapping[str, Any]:
    annotations = step.extra.get("agentguard")
    return annotations if isinstance(annotations, Mapping) else {}


def _read_list(step: Step, name: str) -> Iterable[Any]:
    values = _read_annotations(step).get(name)
    return values if isinstance(values, list | tuple) else ()
