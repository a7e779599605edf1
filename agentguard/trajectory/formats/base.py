"""Trajectory formats: what an importer is, and the registry of them.

An importer is one module of this package. It turns parsed JSON (or text) into `Record`s, keeps unknown
fields in ``extra``, and never executes, resolves or fetches anything it reads. Reading files, streams, JSON,
JSON Lines and big arrays, recognising the format and reporting broken records is done once, in ``read.py``,
for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from agentguard.errors import InputError
from agentguard.plugins import Registry
from agentguard.trajectory.model import Record

if TYPE_CHECKING:
    from agentguard.trajectory.formats._stream_reader import SourceItem


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRecord:
    """A record that could not be read; the others of its file still are."""

    error: InputError


class Format(Protocol):
    """One trajectory format; `SequenceFormat`, `FolderFormat` and `WritableFormat` are what it may be able to do beyond this.

    Attributes:
        name: as the user writes it, e.g. ``"who_and_when"``.
        summary: one line for the list of formats.
    """

    name: str
    summary: str

    def score_match(self, value: Any) -> float:
        """How likely, in [0, 1], a parsed top-level record (or a str of text) is of this format."""
        ...

    def parse(self, value: Any, *, name: str) -> Iterator[Record]:
        """Yield the runs in one parsed record. Raises FormatError with the field.

        Args:
            value: plain JSON data as `read` hands it over: no NaN, no lone surrogates, of bounded depth.
            name: id of the run where the record has none.
        """
        ...


@runtime_checkable
class SequenceFormat(Protocol):
    """A format whose runs may span several values of a sequence (lines of a log)."""

    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs of a JSON array or JSON Lines; an item with an error becomes a Broken."""
        ...


@runtime_checkable
class FolderFormat(Protocol):
    """A format whose data set is a folder in which files belong together."""

    def parse_folder(self, folder: Path) -> Iterator[Record | UnreadableRecord] | None:
        """Yield the runs of the folder; None where it is not such a folder."""
        ...


@runtime_checkable
class WritableFormat(Protocol):
    """A format that can also be written."""

    def dump(self, record: Record, *, annotation: bool = False) -> Any:
        """Return the run as JSON data of this format: a dict, or a list of lines for a format of JSON Lines.

        The annotation is written only if asked and only where the format has a place for it.
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
