"""``agentguard convert``: write runs in another format, as a document, or to a collector of traces."""

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

from agentguard.batch import ConversionOperation, InputOptions
from agentguard.batch.conversion import get_writable_format
from agentguard.cli.batch_mode import (
    BatchFolder,
    BatchSettings,
    DocumentColumn,
    DryRun,
    EngineName,
    IdColumn,
    Limit,
    Partitions,
    Sample,
    Workers,
    run_batch,
)
from agentguard.cli.document_export import (
    export_record_document,
    export_stored_document,
    exporter_registry,
    read_stored_records,
)
from agentguard.cli.otlp_export import ExportOptions, send_runs
from agentguard.cli.run_input import (
    ClaudeCode,
    Codex,
    Force,
    FormatName,
    Last,
    Patterns,
    ReadSummary,
    Redact,
    Redaction,
    compute_exit_status,
    parse_pattern,
    print_report,
    read_records,
    require_absent,
    resolve_paths,
)
from agentguard.errors import ConfigError
from agentguard.trajectory.model import Record
from agentguard.trajectory.safe_json import MAX_LOG_DEPTH, dumps, normalize_json

_EVENT_LOG_TARGET, _OTLP_TARGET = "event_log", "otlp"
_TRAINING_FORMATS = ("sft", "preference", "preference_openai", "judge_sft", "judge_preference")


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(convert)


def convert(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...",
            help="Files, folders, addresses of traces, - for standard input; ids, with --store.",
        ),
    ] = None,
    to: Annotated[
        str,
        typer.Option(
            "--to",
            help="Target: event_log, atif, openai_chat, html, otlp, sft, preference, preference_openai, "
            "judge_sft or judge_preference.",
        ),
    ] = _EVENT_LOG_TARGET,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write; standard output if absent.")
    ] = None,
    format: FormatName = None,
    claude_code: ClaudeCode = False,
    codex: Codex = False,
    last: Last = None,
    redact: Redact = False,
    pattern: Patterns = None,
    annotation: Annotated[
        bool, typer.Option("--annotation", help="Also write the annotations of the runs.")
    ] = False,
    force: Force = False,
    append: Annotated[bool, typer.Option("--append", help="event_log: append to an existing file.")] = False,
    store: Annotated[str | None, typer.Option("--store", metavar="URL", help="Store with the runs.")] = None,
    tenant: Annotated[str, typer.Option(help="Tenant of the runs in the store.")] = "",
    endpoint: Annotated[
        str | None,
        typer.Option("--otlp-endpoint", metavar="URL", help="otlp: address of the collector's traces."),
    ] = None,
    logs_endpoint: Annotated[
        str | None,
        typer.Option(
            "--otlp-logs-endpoint", metavar="URL", help="otlp: send evaluations there, as log records."
        ),
    ] = None,
    header: Annotated[
        list[str] | None,
        typer.Option("--otlp-header", metavar="NAME=VALUE", help="otlp: a header to send; repeatable."),
    ] = None,
    encoding: Annotated[str, typer.Option("--otlp-encoding", help="otlp: protobuf or json.")] = "protobuf",
    service: Annotated[
        str, typer.Option("--otlp-service", help="otlp: name of the service in the traces.")
    ] = "agentguard",
    include_content: Annotated[
        bool, typer.Option("--otlp-content/--no-otlp-content", help="otlp: send the contents of messages.")
    ] = True,
    batch_output: BatchFolder = None,
    engine: EngineName = "local",
    jobs: Workers = None,
    partition: Partitions = None,
    id_column: IdColumn = None,
    document_column: DocumentColumn = None,
    sample: Sample = 1.0,
    limit: Limit = None,
    dry_run: DryRun = False,
) -> None:
    """Convert runs to another format: one run to a document, several to JSON Lines.

    The default target is agentguard's event log. --to otlp sends the runs to a collector of OpenTelemetry
    traces. --to sft (chat messages), preference (prompt, chosen, rejected) and preference_openai write the
    results of acceptance tests as data for fine-tuning; without RUN they take all runs of the store.
    --to judge_sft and judge_preference write the judge's questions with the labels of reviewers.
    --batch-output writes a table of Parquet files, with one run per row, and continues after a stop.

    Exit status: 0 if all runs are written, 1 if some records are not readable or not accepted, 2 if none is
    written.
    """
    otlp_options = ExportOptions(
        endpoint=endpoint,
        logs_endpoint=logs_endpoint,
        headers=tuple(header or ()),
        encoding=encoding,
        service=service,
        content=include_content,
    )
    if to != _OTLP_TARGET and otlp_options.is_specified():
        raise ConfigError("--otlp-endpoint, --otlp-header and other options of otlp need --to otlp")
    _check_output(output, to, force=force, append=append)
    if claude_code or codex or last is not None:
        folders = [Path(run) for run in runs or []]
        runs = [str(path) for path in resolve_paths(folders, claude_code=claude_code, codex=codex, last=last)]
    is_redacted = redact or bool(pattern)
    if batch_output is not None:
        if output is not None or store is not None:
            raise ConfigError(
                "--batch-output reads files and writes a folder: leave --output and --store out"
            )
        patterns = tuple(map(parse_pattern, pattern or [])) if is_redacted else None
        operation = ConversionOperation(target=to, has_annotation=annotation, redaction_patterns=patterns)
        inputs = InputOptions(
            format=format,
            id_column=id_column,
            document_column=document_column,
            partitions=tuple(partition or ()),
            sample=sample,
            limit=limit,
        )
        settings = BatchSettings(output=batch_output, engine=engine, workers=jobs, is_dry_run=dry_run)
        raise typer.Exit(run_batch([Path(run) for run in runs or []], operation, inputs, settings))
    redactor = Redaction(pattern) if is_redacted else None
    export_io = _ExportIO(format, output, annotation, store, tenant)
    raise typer.Exit(_write_runs(runs or [], to, redactor, export_io, otlp_options, append=append))


def _write_runs(
    runs: list[str],
    to: str,
    redactor: Redaction | None,
    export_io: _ExportIO,
    otlp_options: ExportOptions,
    *,
    append: bool,
) -> int:
    """Write runs to the target; return the exit status."""
    if to in _TRAINING_FORMATS:
        return _export_training_data(runs, to, redactor, export_io)
    if export_io.tenant and export_io.store is None:
        raise ConfigError("--tenant needs --store: runs of files have no tenant")
    if not runs:
        raise ConfigError("name the runs to convert: files or folders, or ids with --store")
    if to == _OTLP_TARGET:
        return _send_runs(runs, otlp_options, redactor, export_io)
    if to in exporter_registry():
        return _write_document(runs, to, redactor, export_io)
    if to == _EVENT_LOG_TARGET and export_io.output is not None:
        return _write_event_log(runs, export_io.output, redactor, export_io, append=append)
    return _export_runs(runs, to, redactor, export_io)


def _check_output(output: Path | None, to: str, *, force: bool, append: bool) -> None:
    if append and (to != _EVENT_LOG_TARGET or output is None):
        raise ConfigError("--append needs --output, and --to event_log")
    if output is not None and not force and not append:
        append_hint = ", --append adds to it" if to == _EVENT_LOG_TARGET else ""
        require_absent(output, hint=f"--force replaces it{append_hint}")


@dataclass(frozen=True, slots=True)
class _ExportIO:
    """Input and output settings of an export."""

    format: str | None
    output: Path | None
    annotation: bool
    store: str | None
    tenant: str


def _export_training_data(ids: list[str], to: str, redactor: Redaction | None, export_io: _ExportIO) -> int:
    """Write the record of acceptance tests; return the exit status."""
    from agentguard.cli.label_export import export_judge_questions
    from agentguard.cli.training_export import export_training, require_store
    from agentguard.store.store import Store

    url = require_store(export_io.store, export_io.format)
    with Store.open(url) as opened_store:
        export = export_judge_questions if to.startswith("judge_") else export_training
        lines = export(opened_store, ids, to, tenant=export_io.tenant, redaction=redactor)
        first_line = next(lines, None)
        if first_line is None:
            return 2
        with _open_output(export_io.output) as stream:
            for line in itertools.chain((first_line,), lines):
                stream.write(line + b"\n")
            stream.flush()
    print_report([], redactor, done="")
    return 0


def _export_runs(runs: list[str], to: str, redactor: Redaction | None, export_io: _ExportIO) -> int:
    """Write runs in a format; return the exit status."""
    try:
        target = get_writable_format(to)
    except ConfigError as error:
        further = (*exporter_registry(), _OTLP_TARGET, *_TRAINING_FORMATS)
        raise ConfigError(f"{error}; further targets: {', '.join(further)}") from None
    tallies: list[ReadSummary] = []
    records = _read_runs(runs, export_io, tallies)
    dumped = (target.dump(redactor(r) if redactor else r, annotation=export_io.annotation) for r in records)
    first_document = next(dumped, None)
    if first_document is not None:
        with _open_output(export_io.output) as stream:
            _write(stream, first_document, dumped)
    print_report(
        tallies, redactor, done=f"written to {export_io.output}" if export_io.output is not None else ""
    )
    return compute_exit_status(tallies)


def _write_event_log(
    runs: list[str], output: Path, redactor: Redaction | None, export_io: _ExportIO, *, append: bool
) -> int:
    """Write each run to the log as soon as it is read; return the exit status."""
    from agentguard.trajectory.event_log.log_file import EventLog
    from agentguard.trajectory.event_log.recorder import build_events

    summaries: list[ReadSummary] = []
    log: EventLog | None = None
    try:
        for record in _read_runs(runs, export_io, summaries):
            if log is None:
                if not append:
                    output.unlink(missing_ok=True)
                log = EventLog(output)
            log.extend(build_events(redactor(record) if redactor else record))
    finally:
        if log is not None:
            log.close()
    print_report(summaries, redactor, done=f"written to {output}")
    return compute_exit_status(summaries)


def _send_runs(
    runs: list[str], otlp_options: ExportOptions, redactor: Redaction | None, export_io: _ExportIO
) -> int:
    """Send runs to a collector; return the exit status."""
    if export_io.store is not None:
        if redactor is not None:
            raise ConfigError("stored runs cannot be redacted: redact runs when they are stored")
        return send_runs(otlp_options, store=export_io.store, ids=runs, tenant=export_io.tenant)
    tallies: list[ReadSummary] = []
    records = read_records([Path(run) for run in runs], None, tallies)
    status = send_runs(
        otlp_options,
        records=(redactor(record) if redactor else record for record in records),
        store=None,
        ids=[],
    )
    return max(status, compute_exit_status(tallies))


def _read_runs(runs: list[str], export_io: _ExportIO, summaries: list[ReadSummary]) -> Iterator[Record]:
    """Yield the runs of files, or of the store."""
    if export_io.store is None:
        return read_records([Path(run) for run in runs], export_io.format, summaries)
    return _read_stored(export_io.store, runs, summaries, export_io.tenant)


def _read_stored(url: str, ids: list[str], tallies: list[ReadSummary], tenant: str) -> Iterator[Record]:
    for id, record in read_stored_records(url, ids, tenant=tenant):
        tallies.append(ReadSummary(id))
        if record is None:
            typer.echo(f"not read: there is no run {id} in the store", err=True)
            continue
        tallies[-1].add(record)
        yield record


def _write_document(runs: list[str], to: str, redactor: Redaction | None, export_io: _ExportIO) -> int:
    document = _build_document(runs, to, redactor, export_io)
    with _open_output(export_io.output) as stream:
        stream.write(document)
        stream.flush()
    if export_io.output is not None:
        typer.echo(f"1 run written to {export_io.output}", err=True)
    return 0


def _build_document(runs: list[str], to: str, redactor: Redaction | None, export_io: _ExportIO) -> bytes:
    """Build the document of one run, for people."""
    if len(runs) != 1:
        raise ConfigError(f"{to} writes one run to a document; {len(runs)} were given")
    if export_io.store is None:
        records = [
            redactor(record) if redactor else record
            for record in read_records([Path(runs[0])], export_io.format, [])
        ]
        return export_record_document(records, runs[0], to)
    if redactor is not None:
        raise ConfigError(f"{to} of a stored run cannot be redacted: redact runs when they are stored")
    return export_stored_document(export_io.store, runs[0], to, tenant=export_io.tenant)


def _open_output(path: Path | None) -> AbstractContextManager[BinaryIO]:
    if path is None:
        return nullcontext(sys.stdout.buffer)
    try:
        return path.open("wb")
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None


def _write(stream: BinaryIO, first: Any, others: Iterator[Any]) -> None:
    """Write one run as an indented document, several as JSON Lines; a format of lines writes its lines."""
    second_document = next(others, None)
    if second_document is None and isinstance(first, dict):
        stream.write(
            orjson.dumps(normalize_json(first, depth=MAX_LOG_DEPTH), option=orjson.OPT_INDENT_2) + b"\n"
        )
        return
    for data in (first, *((second_document,) if second_document is not None else ())):
        _write_lines(stream, data)
    for data in others:
        _write_lines(stream, data)
    stream.flush()


def _write_lines(stream: BinaryIO, data: Any) -> None:
    for line in data if isinstance(data, list) else [data]:
        stream.write(dumps(line) + b"\n")
