"""``agentguard export``: runs in other formats, as documents for people, or to a collector of traces."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, BinaryIO

import orjson
import typer

from agentguard.cli.exporting import exporters, record_document, stored_document, stored_records
from agentguard.cli.otlp_export import Wishes, send_runs
from agentguard.cli.reading import (
    Force,
    FormatName,
    Patterns,
    Redact,
    Redaction,
    Tally,
    check_free,
    records_of,
    report,
    status_of,
)
from agentguard.errors import ConfigError
from agentguard.trajectory.formats._json import MAX_LOG_DEPTH, clean, dumps
from agentguard.trajectory.formats.base import Dumps, formats
from agentguard.trajectory.model import Record

_OTLP = "otlp"
_TRAINING = ("sft", "preference", "preference_openai")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(export)


def export(
    to: Annotated[
        str,
        typer.Option(
            "--to", help="What to write: atif, openai_chat, event_log, html, otlp, sft, or preference."
        ),
    ],
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", help="Files or folders, - for standard input; ids, with --store."),
    ] = None,
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
    tenant: Annotated[str, typer.Option(help="Whose runs of the store they are.")] = "",
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="otlp: address of the collector's traces.")
    ] = None,
    logs_endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="otlp: send evaluations there, as log records.")
    ] = None,
    header: Annotated[
        list[str] | None, typer.Option(metavar="NAME=VALUE", help="otlp: a header to send; repeatable.")
    ] = None,
    encoding: Annotated[str, typer.Option(help="otlp: protobuf or json.")] = "protobuf",
    service: Annotated[str, typer.Option(help="otlp: name of the service in the traces.")] = "agentguard",
    content: Annotated[
        bool, typer.Option("--content/--no-content", help="otlp: whether what was said is sent.")
    ] = True,
) -> None:
    """Write runs in another format: one run as a document, several as JSON Lines.

    Or send them to a collector of OpenTelemetry traces, with --to otlp. Or write what acceptance tests
    accepted and refused as data to fine-tune with, of all runs of a store if none is named: --to sft (chat
    messages), --to preference (prompt, chosen, rejected) or --to preference_openai.

    Exit status: 0 all were written, 1 some records could not be read (or were not taken), 2 none could be.
    """
    wishes = Wishes(
        endpoint=endpoint,
        logs_endpoint=logs_endpoint,
        headers=tuple(header or ()),
        encoding=encoding,
        service=service,
        content=content,
    )
    if to != _OTLP and wishes.given():
        raise ConfigError("--endpoint, --header and their like go with --to otlp")
    if output is not None and not force:
        check_free(output, hint="--force replaces it")
    redactor = Redaction(pattern) if redact or pattern else None
    ways = _Ways(format, output, annotation, store, tenant)
    if to in _TRAINING:
        raise typer.Exit(_trained_on(runs or [], to, redactor, ways))
    if tenant and store is None:
        raise ConfigError("--tenant goes with --store: runs of files are nobody's")
    if not runs:
        raise ConfigError("name the runs to export: files or folders, or ids with --store")
    if to == _OTLP:
        raise typer.Exit(_sent(runs, wishes, redactor, ways))
    if to in exporters():
        document = _document(runs, to, redactor, ways)
        with _opened(output) as stream:
            stream.write(document)
            stream.flush()
        if output is not None:
            typer.echo(f"1 run written to {output}", err=True)
        return
    raise typer.Exit(_written(runs, to, redactor, ways))


@dataclass(frozen=True, slots=True)
class _Ways:
    """How runs are read and written."""

    format: str | None
    output: Path | None
    annotation: bool
    store: str | None
    tenant: str


def _trained_on(ids: list[str], to: str, redactor: Redaction | None, ways: _Ways) -> int:
    """Write the record of acceptance tests; returns the exit status."""
    from agentguard.cli.export_training import export_training, store_of
    from agentguard.store.store import Store

    url = store_of(ways.store, ways.format)
    with Store.open(url) as opened:
        lines = export_training(opened, ids, to, tenant=ways.tenant, redaction=redactor)
        first = next(lines, None)
        if first is None:
            return 2
        with _opened(ways.output) as stream:
            for line in itertools.chain((first,), lines):
                stream.write(line + b"\n")
            stream.flush()
    report([], redactor, done="")
    return 0


def _written(runs: list[str], to: str, redactor: Redaction | None, ways: _Ways) -> int:
    """Write runs in a format; returns the exit status."""
    target = _writer(to)
    tallies: list[Tally] = []
    found = (
        records_of([Path(run) for run in runs], ways.format, tallies)
        if ways.store is None
        else _stored(ways.store, runs, tallies, ways.tenant)
    )
    dumped = (target.dump(redactor(r) if redactor else r, annotation=ways.annotation) for r in found)
    first = next(dumped, None)
    if first is not None:
        with _opened(ways.output) as stream:
            _write(stream, first, dumped)
    report(tallies, redactor, done=f"written to {ways.output}" if ways.output is not None else "")
    return status_of(tallies)


def _sent(runs: list[str], wishes: Wishes, redactor: Redaction | None, ways: _Ways) -> int:
    """Send runs to a collector; returns the exit status."""
    if ways.store is not None:
        if redactor is not None:
            raise ConfigError("stored runs cannot be redacted: redact runs when they are stored")
        return send_runs(wishes, store=ways.store, ids=runs, tenant=ways.tenant)
    tallies: list[Tally] = []
    found = records_of([Path(run) for run in runs], None, tallies)
    status = send_runs(
        wishes, records=(redactor(one) if redactor else one for one in found), store=None, ids=[]
    )
    return max(status, status_of(tallies))


def _stored(url: str, ids: list[str], tallies: list[Tally], tenant: str) -> Iterator[Record]:
    for id, record in stored_records(url, ids, tenant=tenant):
        tallies.append(Tally(id))
        if record is None:
            typer.echo(f"not read: there is no run {id} in the store", err=True)
            continue
        tallies[-1].add(record)
        yield record


def _document(runs: list[str], to: str, redactor: Redaction | None, ways: _Ways) -> bytes:
    """One run as a document that people read."""
    if len(runs) != 1:
        raise ConfigError(f"{to} takes one run a document; {len(runs)} were given")
    if ways.store is None:
        found = [redactor(one) if redactor else one for one in records_of([Path(runs[0])], ways.format, [])]
        return record_document(found, runs[0], to)
    if redactor is not None:
        raise ConfigError(f"{to} of a stored run cannot be redacted: redact runs when they are stored")
    return stored_document(ways.store, runs[0], to, tenant=ways.tenant)


def _writer(name: str) -> Dumps:
    format = formats().get(name)
    if not isinstance(format, Dumps):
        able = [one for one in formats() if isinstance(formats().get(one), Dumps)] + list(exporters())
        raise ConfigError(f"{name} can only be read; runs can be written as {', '.join(able)}")
    return format


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
