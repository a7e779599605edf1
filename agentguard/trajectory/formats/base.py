"""Trajectory formats: what an importer is, and the registry of them.

An importer is one module of this package. It turns parsed JSON (or text) into `Record`s, keeps unknown
fields in ``extra``, and never executes, resolves or fetches anything it reads. Reading files, streams, JSON,
JSON Lines and big arrays, recognising the format and reporting broken records is done once, in ``read.py``,
for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from agentguard.errors import InputError
from agentguard.registry import Registry
from agentguard.trajectory.model import Record


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A record that could not be read; the others of its file still are."""

    error: InputError


class Format(Protocol):
    """One trajectory format.

    Attributes:
        name: as the user writes it, e.g. ``"who_and_when"``.
        summary: one line for the list of formats.
    """

    name: str
    summary: str

    def recognises(self, value: Any) -> float:
        """How likely, in [0, 1], a parsed top-level record (or a str of text) is of this format."""
        ...

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the runs in one parsed record; ``name`` is a fallback id.

        Raises FormatError with the field.
        """
        ...


_REGISTRY: Registry[Format] = Registry(
    "format",
    group="agentguard.formats",
    builtin={
        name: f"agentguard.trajectory.formats.{name}:FORMAT"
        for name in (
            "agent_error_bench",
            "agent_process_bench",
            "agentrx",
            "atif",
            "event_log",
            "mast",
            "openai_chat",
            "openai_responses",
            "otlp_json",
            "swe_agent",
            "tau_bench",
            "trail",
            "who_and_when",
        )
    },
)


def formats() -> Registry[Format]:
    """The registry of trajectory formats: those in this package and installed ones."""
    return _REGISTRY
