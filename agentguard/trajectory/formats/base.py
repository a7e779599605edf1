"""Interface and registry of trajectory formats.

An importer is a module of this package. It converts parsed JSON (or text) into `Record` objects and keeps
unknown fields in ``extra``. It never executes, resolves or fetches its input. ``reader.py`` does the common
work for all importers: files, streams, JSON, JSON Lines, big arrays, format detection and reports of
unreadable records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from agentguard.errors import FormatError, InputError
from agentguard.plugins import Registry
from agentguard.trajectory.json_node import JsonNode
from agentguard.trajectory.model import Record


@dataclass(frozen=True, slots=True)
class SourceItem:
    """JSON value of a source, or the reason why it cannot be read; ``position`` counts from 0."""

    position: int
    value: Any = None
    error: FormatError | None = None

    def read(self) -> Any:
        """Return the value. Raises the error of an unreadable one."""
        if self.error is not None:
            raise self.error
        return self.value


@dataclass(frozen=True, slots=True, kw_only=True)
class UnreadableRecord:
    """Record that cannot be read; the other records of its file are still read."""

    error: InputError


def parse_runs(
    values: Iterable[tuple[object, str]], parse: Callable[[JsonNode], Record]
) -> Iterator[Record | UnreadableRecord]:
    """Yield the run of each value of a record; a value with an error becomes an UnreadableRecord.

    Args:
        values: pairs of a value and its dotted path in the record.
        parse: converter of one value; it may raise an InputError.
    """
    for value, path in values:
        try:
            yield parse(JsonNode.from_value(value, path))
        except InputError as error:
            yield UnreadableRecord(error=error)


def raise_unreadable(records: Iterable[Record | UnreadableRecord]) -> Iterator[Record]:
    """Yield the records. Raises the error of the first unreadable one."""
    for record in records:
        if isinstance(record, UnreadableRecord):
            raise record.error
        yield record


class Format(Protocol):
    """Trajectory format; `SequenceFormat`, `FolderFormat` and the other protocols are optional abilities.

    Attributes:
        name: name in commands and options, such as ``"who_and_when"``.
        summary: one line for the list of formats.
    """

    name: str
    summary: str

    def score_match(self, value: Any) -> float:
        """Return the likelihood in [0, 1] that a parsed top-level record (or a text) is of this format."""
        ...

    def parse(self, value: Any, *, name: str) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs in one parsed record. Raises FormatError with the field.

        A record of several runs yields an UnreadableRecord for each run with an error.

        Args:
            value: plain JSON data from the reader: no NaN, no lone surrogates, bounded depth.
            name: id of the run if the record has no id.
        """
        ...


@runtime_checkable
class SequenceFormat(Protocol):
    """Format whose runs may span several values of a sequence (lines of a log)."""

    def parse_sequence(
        self, items: Iterator[SourceItem], *, name: str
    ) -> Iterator[Record | UnreadableRecord]:
        """Yield the runs of a JSON array or JSON Lines; an item with an error becomes an UnreadableRecord."""
        ...


@runtime_checkable
class BinaryFormat(Protocol):
    """Format whose files are not JSON or text (a zip archive, Parquet).

    Attributes:
        suffixes: endings of its file names in lower case, such as ``(".parquet",)``.
    """

    suffixes: tuple[str, ...]

    def parse_file(self, path: Path, *, name: str) -> Iterator[Record | UnreadableRecord] | None:
        """Yield the runs of the file; None if it is not such a file. Raises FormatError if it is damaged.

        Args:
            path: the file.
            name: id of the run if the file has no id.
        """
        ...


@runtime_checkable
class FolderFormat(Protocol):
    """Format whose data set is a folder of related files."""

    def parse_folder(self, folder: Path) -> Iterator[Record | UnreadableRecord] | None:
        """Yield the runs of the folder; None if it is not such a folder."""
        ...


@runtime_checkable
class DeepFormat(Protocol):
    """Format whose records may have more nested levels than the limit of the other formats.

    Attributes:
        max_depth: maximum number of nested levels of a record.
    """

    max_depth: int


@runtime_checkable
class WritableFormat(Protocol):
    """Format that can also be written."""

    def dump(self, record: Record, *, annotation: bool = False) -> Any:
        """Return the run as JSON data of this format: a dict, or a list of lines for a format of JSON Lines.

        The annotation is written only on request and only if the format has a place for it.
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
            "agentdojo",
            "agentrx",
            "alfworld",
            "anthropic_messages",
            "atif",
            "autogen",
            "browser_use",
            "claude_code",
            "codex_cli",
            "codex_exec",
            "crewai",
            "event_log",
            "gemini_cli",
            "inspect_log",
            "intercode",
            "langchain",
            "langfuse",
            "langsmith",
            "mast",
            "model_requests",
            "openai_agents",
            "openai_chat",
            "openai_responses",
            "openhands",
            "otel_spans",
            "otlp_json",
            "pydantic_ai",
            "smolagents",
            "stepshield",
            "swe_agent",
            "tau2_bench",
            "tau_bench",
            "terminal_bench",
            "text_actions",
            "trail",
            "vercel_ai",
            "who_and_when",
        )
    },
)


def formats() -> Registry[Format]:
    """Return the registry of trajectory formats: the built-in ones and the installed plug-ins."""
    return _REGISTRY
