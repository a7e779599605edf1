"""A judge that can also write a line: corrective feedback, for one.

What it writes came from a model that has read a hostile text, so it is bounded by a schema, made one line,
and `neutral`; nobody acts on it. It is told to an agent as what a reviewer says, beside what the rules found.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from agentguard.trajectory.model import Trajectory

LONGEST: Final = 400


def form(characters: int) -> Mapping[str, Any]:
    """The JSON schema of a line of at most so many characters."""
    return {
        "type": "object",
        "properties": {"text": {"type": "string", "minLength": 1, "maxLength": characters}},
        "required": ["text"],
        "additionalProperties": False,
    }


FORM: Final = form(LONGEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """One line; empty with ``error`` if it could not be written."""

    text: str = ""
    error: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class Writer(Protocol):
    """A judge that writes."""

    def write_line(self, transcript: Trajectory, asked: str) -> Written:
        """Write at most `LONGEST` characters about a run; a line it cannot write is a value."""
        ...
