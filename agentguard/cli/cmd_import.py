"""``agentguard import``, ``export`` and ``validate``: recorded runs in, out, and checked."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import orjson
import typer
from rich.console import Console
from rich.table import Table

from agentguard.cli.exporting import exporters, record_document, stored_document, stored_records
from agentguard.cli.text import one_line
from agentguard.errors import ConfigError, InputError
from agentguard.trajectory.formats._json import MAX_LOG_DEPTH, clean, dumps
from agentguard.trajectory.formats.base import Broken, Dumps, formats
from agentguard.trajectory.formats.read import read
from agentguard.trajectory.model import Annotation, Record

_STDIN = Path("-")

Paths = Annotated[list[Path], typer.Argument(help="Recorded runs: files or folders; - reads standard input.")]
FormatName = Annotated[str | None, typer.Option(help="Format of the runs; recognised by itself if absent.")]
Redact = Annotated[bool, typer.Option("--redact", help="Replace secrets by placeholders.")]
Patterns = Annotated[
    list[str] | None,
    typer.Option("--pattern", help="KIND=REGEX of secrets of your own (RE2); implies --redact; repeatable."),
]
Force = Annotated[bool, typer.Option("--force", help="Replace the output file if it is there.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]


@dataclass(slots=True)
class _Tally:
    """What was read from one path."""

    path: str
    runs: int = 0
    steps: int = 0
    annotated: int = 0
    formats: Counter[str] = field(default_factory=Counter)
    errors: list[InputError] = field(default_factory=list)

    def add(self, record: Record) -> None:
        self.runs += 1
        self.steps += len(record.trajectory.steps)
        self.annotated += record.annotation != Annotation()
        self.formats[record.trajectory.format] += 1


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("import")(import_runs)
    app.command()(export)
    app.command()(validate)


def import_runs(
    paths: Paths,
    output: Annotated[Path, typer.Option("--output", "-o", help="The event log to write (JSON Lines).")],
    format: FormatName = None,
    redact: Redact = False,
    pattern: Patterns = None,
    append: Annotated[bool, typer.Option("--append", help="Add to the log if it is there.")] = False,
) -> None:
    """Read runs of any format into agentguard's event log.

    Exit status: 0 all were read, 1 some records could not be, 2 none could be.
    """
    from agentguard.trajectory.events import events_of
    from agentguard.trajectory.recorder import EventLog

    if not append:
        _check_free(output, hint="--append adds to it")
    redactor = _Redaction(pattern) if redact or pattern else None
    tallies: list[_Tally] = []
    log: EventLog | None = None
    try:
        for record in _records(paths, format, tallies):
            log = log or EventLog.open(output)
            log.extend(events_of(redactor(record) if redactor else record))
    finally:
        if log is not None:
            log.close()
    _report(tallies, redactor, done=f"written to {output}")
    raise typer.Exit(_status(tallies))


def export(
    runs: Annotated[
        list[str],
        typer.Argument(metavar="RUN...", help="Files or folders, - for standard input; ids, with --store."),
    ],
    to: Annotated[str, typer.Option("--to", help="Format to write: atif, openai_chat, event_log or html.")],
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; standard output if absent.")
    ] = None,
    format: FormatName = None,
    redact: Redact = False,
    pattern: Patterns = None,
    annotation: Annotated[
        bool, typer.Option("--annotation", help="Write how the runs were judged, too.")
    ] = False,
    force: Force = False,
    store: Annotated[
        str | None, typer.Option("--store", metavar="URL", help="The store that has the runs.")
    ] = None,
) -> None:
    """Write runs in another format: one run as a document, several as JSON Lines.

    Exit status: 0 all were written, 1 some records could not be read, 2 none could be.
    """
    if output is not None and not force:
        _check_free(output, hint="--force replaces it")
    redactor = _Redaction(pattern) if redact or pattern else None
    if to in exporters():
        document = _document(runs, to, redactor, store)
        with _opened(output) as stream:
            stream.write(document)
            stream.flush()
        if output is not None:
            typer.echo(f"1 run written to {output}", err=True)
        return
    target = _writer(to)
    tallies: list[_Tally] = []
    found = (
        _records([Path(run) for run in runs], format, tallies)
        if store is None
        else _stored(store, runs, tallies)
    )
    dumped = (target.dump(redactor(r) if redactor else r, annotation=annotation) for r in found)
    first = next(dumped, None)
    if first is not None:
        with _opened(output) as stream:
            _write(stream, first, dumped)
    _report(tallies, redactor, done=f"written to {output}" if output is not None else "")
    raise typer.Exit(_status(tallies))


def validate(paths: Paths, format: FormatName = None, json: Json = False) -> None:
    """Check that runs can be read; name every record that cannot be, with its place.

    Exit status: 0 all can be read, 1 some records cannot, 2 none can.
    """
    tallies: list[_Tally] = []
    for _ in _records(paths, format, tallies, quiet=True):
        pass
    if json:
        sys.stdout.buffer.write(orjson.dumps(_summary(tallies), option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
    else:
        _show(tallies)
    raise typer.Exit(_status(tallies))


class _Redaction:
    """A redactor that adds up its counts."""

    def __init__(self, patterns: list[str] | None) -> None:
        from agentguard.trajectory.redact import Redactor

        self.counts: Counter[str] = Counter()
        self._redactor = Redactor(patterns=dict(_pattern(one) for one in patterns or []))

    def __call__(self, record: Record) -> Record:
        redacted = self._redactor.redact(record)
        self.counts.update(redacted.counts)
        return redacted.record


def _pattern(text: str) -> tuple[str, str]:
    kind, equals, pattern = text.partition("=")
    if not equals or not pattern:
        raise ConfigError("--pattern takes KIND=REGEX")
    return kind.strip(), pattern


def _records(
    paths: list[Path], format: str | None, tallies: list[_Tally], *, quiet: bool = False
) -> Iterator[Record]:
    """All runs; what cannot be read is counted in ``tallies`` and, unless ``quiet``, said at once."""
    with Console(stderr=True).status("reading …") as status:
        total = 0
        for path in paths:
            tally = _Tally(str(path))
            tallies.append(tally)
            for found in _found(path, format):
                if isinstance(found, Broken):
                    tally.errors.append(found.error)
                    if not quiet:
                        typer.echo(f"not read: {found.error}", err=True)
                    continue
                tally.add(found)
                total += 1
                status.update(f"reading … {total} runs")
                yield found


def _found(path: Path, format: str | None) -> Iterator[Record | Broken]:
    try:
        yield from read(sys.stdin.buffer if path == _STDIN else path, format=format)
    except InputError as error:
        # One path that cannot be used at all must not keep the others from being read.
        yield Broken(error=error.located(file=str(path)))


def _stored(url: str, ids: list[str], tallies: list[_Tally]) -> Iterator[Record]:
    for id, record in stored_records(url, ids):
        tallies.append(_Tally(id))
        if record is None:
            typer.echo(f"not read: there is no run {id} in the store", err=True)
            continue
        tallies[-1].add(record)
        yield record


def _document(runs: list[str], to: str, redactor: _Redaction | None, url: str | None) -> bytes:
    """One run as a document that people read."""
    if len(runs) != 1:
        raise ConfigError(f"{to} takes one run a document; {len(runs)} were given")
    if url is None:
        found = [redactor(one) if redactor else one for one in _records([Path(runs[0])], None, [])]
        return record_document(found, runs[0], to)
    if redactor is not None:
        raise ConfigError(f"{to} of a stored run cannot be redacted: redact runs when they are stored")
    return stored_document(url, runs[0], to)


def _writer(name: str) -> Dumps:
    format = formats().get(name)
    if not isinstance(format, Dumps):
        able = [one for one in formats() if isinstance(formats().get(one), Dumps)] + list(exporters())
        raise ConfigError(f"{name} can only be read; runs can be written as {', '.join(able)}")
    return format


def _check_free(path: Path, *, hint: str) -> None:
    if path.exists():
        raise ConfigError(f"{path} is already there ({hint})")


def _opened(path: Path | None) -> AbstractContextManager[BinaryIO]:
    if path is None:
        return nullcontext(sys.stdout.buffer)
    try:
        return path.open("wb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def _write(stream: BinaryIO, first: Any, others: Iterator[Any]) -> None:
    """One document readable by people, or one line a run; a format of lines writes its lines."""
    second = next(others, None)
    if second is None and isinstance(first, dict):
        stream.write(orjson.dumps(clean(first, depth=MAX_LOG_DEPTH), option=orjson.OPT_INDENT_2) + b"\n")
        return
    for data in (first, *((second,) if second is not None else ())):
        _write_lines(stream, data)
    for data in others:
        _write_lines(stream, data)
    stream.flush()


def _write_lines(stream: BinaryIO, data: Any) -> None:
    for line in data if isinstance(data, list) else [data]:
        stream.write(dumps(line) + b"\n")


def _status(tallies: list[_Tally]) -> int:
    if not any(tally.runs for tally in tallies):
        return 2
    return 1 if any(tally.errors for tally in tallies) else 0


def _report(tallies: list[_Tally], redaction: _Redaction | None, *, done: str) -> None:
    runs = sum(tally.runs for tally in tallies)
    if runs:
        typer.echo(f"{_count(runs, 'run')} {done}".rstrip(), err=True)
    if redaction is not None:
        counts = ", ".join(f"{kind} {n}" for kind, n in sorted(redaction.counts.items()))
        typer.echo(f"redacted: {counts or 'nothing'}", err=True)


def _summary(tallies: list[_Tally]) -> dict[str, Any]:
    status = _status(tallies)
    return {
        "status": ("ok", "some_broken", "unusable")[status],
        "runs": sum(tally.runs for tally in tallies),
        "steps": sum(tally.steps for tally in tallies),
        "broken": sum(len(tally.errors) for tally in tallies),
        "sources": [
            {
                "path": tally.path,
                "formats": dict(tally.formats),
                "runs": tally.runs,
                "steps": tally.steps,
                "annotated": tally.annotated,
                "broken": [_error(error) for error in tally.errors],
            }
            for tally in tallies
        ],
    }


def _error(error: InputError) -> dict[str, Any]:
    return {
        "code": error.code,
        "reason": error.reason,
        "file": error.file,
        "record": error.record,
        "field": error.field,
        "hint": error.hint,
    }


def _show(tallies: list[_Tally]) -> None:
    console = Console()
    table = Table(box=None, pad_edge=False)
    table.add_column("source", overflow="fold")
    table.add_column("recorded as")
    for name in ("runs", "steps", "annotated", "broken"):
        table.add_column(name, justify="right")
    for tally in tallies:
        numbers = (tally.runs, tally.steps, tally.annotated, len(tally.errors))
        table.add_row(one_line(tally.path, 200), ", ".join(tally.formats) or "–", *map(str, numbers))
    console.print(table)
    for error in (error for tally in tallies for error in tally.errors):
        console.print(f"not read: {one_line(str(error), 500)}", style="red", markup=False, highlight=False)
    if not any(tally.errors for tally in tallies):
        console.print("all can be read", style="green")


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
