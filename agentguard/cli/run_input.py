"""Input of commands: readers of runs, counts of unreadable records, and redaction."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import orjson
import typer
from rich.console import Console

from agentguard.errors import ConfigError, InputError
from agentguard.quantity import format_quantity
from agentguard.trace_sources import format_trace_url, is_trace_url, parse_trace_url, read_traces
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read, separate_id
from agentguard.trajectory.local_sessions import find_claude_code_sessions, find_codex_sessions
from agentguard.trajectory.model import Annotation, Record

STDIN = Path("-")

Paths = Annotated[
    list[Path] | None,
    typer.Argument(
        help="Recorded runs: files, folders, addresses of traces (phoenix://PROJECT?since=2d); - reads "
        "standard input."
    ),
]
ClaudeCode = Annotated[
    bool,
    typer.Option(
        "--claude-code", help="Read Claude Code's sessions on this machine; the paths are project folders."
    ),
]
Codex = Annotated[
    bool,
    typer.Option("--codex", help="Read Codex CLI's sessions on this machine; the paths are project folders."),
]
Last = Annotated[
    int | None,
    typer.Option("--last", metavar="N", min=1, help="Read the N newest sessions; by default 1."),
]
FormatName = Annotated[str | None, typer.Option(help="Format of the runs; recognised by default.")]
Redact = Annotated[bool, typer.Option("--redact", help="Replace secrets by placeholders.")]
Patterns = Annotated[
    list[str] | None,
    typer.Option("--pattern", help="KIND=REGEX of your own secrets (RE2); implies --redact; repeatable."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace an existing output file.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(slots=True)
class ReadSummary:
    """Summary of the runs of one path."""

    path: str
    runs: int = 0
    steps: int = 0
    annotated: int = 0
    without_content: int = 0
    unknown_parts: Counter[str] = field(default_factory=Counter)
    formats: Counter[str] = field(default_factory=Counter)
    errors: list[InputError] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Count a run."""
        self.runs += 1
        self.steps += len(record.trajectory.steps)
        self.annotated += record.annotation != Annotation()
        self.formats[record.trajectory.format] += 1
        self.without_content += not record.trajectory.is_content_recorded
        self.unknown_parts.update(record.trajectory.unknown_parts)


class Redaction:
    """Redactor that sums its counts over all runs."""

    def __init__(self, patterns: list[str] | None) -> None:
        from agentguard.trajectory.redaction import Redactor

        self.counts: Counter[str] = Counter()
        self._redactor = Redactor(patterns=dict(parse_pattern(one) for one in patterns or []))

    def __call__(self, record: Record) -> Record:
        """Return the run without its secrets."""
        redacted = self._redactor.redact(record)
        self.counts.update(redacted.counts)
        return redacted.record

    def redact_data(self, value: Mapping[str, Any]) -> dict[str, Any]:
        """Return JSON data without its secrets."""
        redacted = self._redactor.redact_data(dict(value))
        self.counts.update(_count_placeholders(redacted) - _count_placeholders(value))
        return redacted


def _count_placeholders(value: Any) -> Counter[str]:
    return Counter(re.findall(r"\[redacted:(\w+):", orjson.dumps(value, default=str).decode()))


def parse_pattern(text: str) -> tuple[str, str]:
    """Return kind and pattern of ``KIND=REGEX``. Raises ConfigError."""
    kind, equals, pattern = text.partition("=")
    if not equals or not pattern:
        raise ConfigError(f"--pattern {text}: write KIND=REGEX")
    return kind.strip(), pattern


def resolve_paths(
    paths: list[Path] | None, *, claude_code: bool = False, codex: bool = False, last: int | None = None
) -> list[Path]:
    """Return the paths of the runs: those that were named, or the newest sessions of this machine.

    Raises:
        ConfigError: the options contradict each other.
        FormatError: there is no session.
    """
    if claude_code and codex:
        raise ConfigError("--claude-code and --codex exclude each other")
    if not claude_code and not codex:
        if last is not None:
            raise ConfigError("--last needs --claude-code or --codex")
        return paths or []
    find_sessions = find_claude_code_sessions if claude_code else find_codex_sessions
    return find_sessions(paths or [], last=last or 1)


def read_records(
    paths: list[Path], format: str | None, summaries: list[ReadSummary], *, is_quiet: bool = False
) -> Iterator[Record]:
    """Yield all runs; count unreadable records in ``summaries``, and print them unless ``is_quiet``."""
    with Console(stderr=True).status("reading …") as status:
        total = 0
        for path in paths:
            tally = ReadSummary(format_trace_url(str(path)))
            summaries.append(tally)
            for record in read_path(path, format):
                if isinstance(record, UnreadableRecord):
                    tally.errors.append(record.error)
                    if not is_quiet:
                        typer.echo(f"not read: {record.error}", err=True)
                    continue
                tally.add(record)
                total += 1
                status.update(f"reading … {format_quantity(total, 'run')}")
                yield record


def read_paths(paths: Iterable[Path], format: str | None) -> Iterator[Record | UnreadableRecord]:
    """Yield the runs of several paths; an id that runs of two paths have gets the file of the later one."""
    file_by_id: dict[str, str] = {}
    for path in paths:
        for item in read_path(path, format):
            if isinstance(item, Record):
                yield separate_id(item, item.file or str(path), file_by_id)
            else:
                yield item


def read_path(path: Path, format: str | None) -> Iterator[Record | UnreadableRecord]:
    """Yield the runs of a file, a folder, standard input (``-``) or an address of traces."""
    if is_trace_url(str(path)) and not path.exists():
        query = parse_trace_url(str(path))
        typer.echo(f"reading traces from {format_trace_url(str(path))} …", err=True)
        yield from read_traces(query)
        return
    try:
        yield from read(sys.stdin.buffer if path == STDIN else path, format=format)
    except InputError as error:
        # Continue with the other paths if one of them cannot be used.
        yield UnreadableRecord(error=error.with_location(file=str(path)))


def require_absent(path: Path, *, hint: str) -> None:
    """Raise ConfigError if the file exists."""
    if path.exists():
        raise ConfigError(f"{path} exists ({hint})")


def compute_exit_status(summaries: list[ReadSummary]) -> int:
    """Return the exit status: 0 if all records are readable, 1 if some are not, 2 if none is."""
    if not any(tally.runs for tally in summaries):
        return 2
    return 1 if any(tally.errors for tally in summaries) else 0


def print_report(summaries: list[ReadSummary], redaction: Redaction | None, *, done: str) -> None:
    """Print the number of runs and of redacted secrets on standard error."""
    runs = sum(tally.runs for tally in summaries)
    if runs:
        typer.echo(f"{format_quantity(runs, 'run')} {done}".rstrip(), err=True)
    if redaction is not None:
        counts = ", ".join(f"{kind} {n}" for kind, n in sorted(redaction.counts.items()))
        typer.echo(f"redacted: {counts or 'nothing'}", err=True)
