"""``agentguard convert --to otlp``: runs to a collector of traces."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import typer

from agentguard.errors import ConfigError
from agentguard.quantity import format_quantity
from agentguard.trajectory.model import Record

if TYPE_CHECKING:
    from agentguard.otlp.exporter import ExportResult, ExportTarget
    from agentguard.otlp.model import OtlpSpan


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Options of the command line for a collector; headers are ``NAME=VALUE``."""

    endpoint: str | None = None
    logs_endpoint: str | None = None
    headers: tuple[str, ...] = ()
    encoding: str = "protobuf"
    service: str = "agentguard"
    content: bool = True

    def is_specified(self) -> bool:
        """Return whether any option was given."""
        return self != ExportOptions()

    def build_target(self) -> ExportTarget:
        """Return the export target. Raises ConfigError."""
        from agentguard.otlp.exporter import ExportTarget, parse_header

        if self.encoding not in ("protobuf", "json"):
            raise ConfigError(f"--encoding {self.encoding}: write protobuf or json")
        encoding: Literal["protobuf", "json"] = "json" if self.encoding == "json" else "protobuf"
        return ExportTarget.from_environment(
            self.endpoint,
            dict(map(parse_header, self.headers)),
            os.environ,
            logs_endpoint=self.logs_endpoint,
            encoding=encoding,
            service_name=self.service,
        )


def send_runs(
    options: ExportOptions,
    *,
    records: Iterable[Record] = (),
    store: str | None,
    ids: list[str],
    tenant: str = "",
) -> int:
    """Send runs of files, or stored runs with their diagnoses; return the exit status.

    Stored runs are the tenant's. A run of a file is sent without a diagnosis: only a store has diagnoses.
    """
    from agentguard.otlp.exporter import send

    target = options.build_target()
    runs, missing_count, total = 0, 0, None
    span_groups = (
        _export_records(records, options) if store is None else _export_stored(store, ids, options, tenant)
    )
    for spans in span_groups:
        if spans is None:
            missing_count += 1
            continue
        result = send(target, spans)
        runs += 1
        total = result if total is None else _add_results(total, result)
    if total is not None:
        _print_result(total, runs, target)
    if not runs:
        return 2
    return 1 if missing_count or (total is not None and total.rejected) else 0


def _export_records(
    records: Iterable[Record], options: ExportOptions
) -> Iterator[tuple[OtlpSpan, ...] | None]:
    from agentguard.otlp.assessed_spans import build_assessed_spans

    for record in records:
        yield build_assessed_spans(record.trajectory, include_content=options.content)


def _export_stored(
    url: str, ids: list[str], options: ExportOptions, tenant: str
) -> Iterator[tuple[OtlpSpan, ...] | None]:
    from agentguard.otlp.assessed_spans import load_stored_spans
    from agentguard.store.store import Store

    with Store.open(url) as store:
        for id in ids:
            spans = load_stored_spans(store, id, tenant=tenant, include_content=options.content)
            if spans is None:
                typer.echo(f"not sent: there is no run {id} in the store", err=True)
            yield spans


def _add_results(one: ExportResult, other: ExportResult) -> ExportResult:
    from agentguard.otlp.exporter import ExportResult

    return ExportResult(
        spans=one.spans + other.spans,
        events=one.events + other.events,
        requests=one.requests + other.requests,
        rejected=one.rejected + other.rejected,
        messages=tuple(dict.fromkeys((*one.messages, *other.messages))),
    )


def _print_result(result: ExportResult, runs: int, target: ExportTarget) -> None:
    typer.echo(
        f"{format_quantity(runs, 'run')} sent to {target.endpoint}: {format_quantity(result.spans, 'span')}, "
        f"{format_quantity(result.events, 'evaluation')}",
        err=True,
    )
    if result.rejected:
        typer.echo(f"rejected by the collector: {result.rejected}", err=True)
    for message in result.messages:
        typer.echo(f"message of the collector: {message!r}", err=True)
