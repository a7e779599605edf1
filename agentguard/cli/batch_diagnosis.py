"""Batch mode of ``agentguard diagnose``: many runs into a folder of Parquet files."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import orjson
import typer
from rich.console import Console

from agentguard.cli.run_summary import VERDICT_NAMES
from agentguard.config.policy import Policy
from agentguard.errors import ConfigError

if TYPE_CHECKING:
    from agentguard.batch import InputOptions, JobEstimate, JobSummary


_PANEL: Final = "Batch (with --out)"
_URL_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?=[^/])")
"""Beginning of a URL; `Path` removes its second slash. A drive letter is not a URL."""

EngineKind = Literal["local", "ray"]

Out = Annotated[
    str | None,
    typer.Option(
        metavar="FOLDER",
        rich_help_panel=_PANEL,
        help="Write one row a run as Parquet to this folder or URL, resumably; --jobs workers.",
    ),
]
EngineName = Annotated[
    EngineKind, typer.Option(rich_help_panel=_PANEL, help="Processes of this machine, or a Ray cluster.")
]
Partitions = Annotated[
    list[str] | None,
    typer.Option(
        metavar="KEY=VALUE", rich_help_panel=_PANEL, help="Read only files in this directory; repeatable."
    ),
]
IdColumn = Annotated[
    str | None, typer.Option(metavar="FIELD", rich_help_panel=_PANEL, help="Field with the id of the run.")
]
Sample = Annotated[
    float, typer.Option(min=0, max=1, rich_help_panel=_PANEL, help="Share of the rows to diagnose.")
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", help="Show at most N rows; with --out, diagnose at most N rows."),
]
MaxCost = Annotated[
    float | None,
    typer.Option(
        min=0, metavar="USD", rich_help_panel=_PANEL, help="Start no further rows at this cost of the judge."
    ),
]
DryRun = Annotated[
    bool, typer.Option("--dry-run", rich_help_panel=_PANEL, help="Count the rows and estimate time and cost.")
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Settings of the batch mode.

    Attributes:
        output: path or URL of the output folder.
        engine: engine of the workers.
        workers: number of workers; 1 takes one a core.
        max_cost_usd: cost of the judge after which no further rows start.
        is_dry_run: print an estimate and write no verdict.
        json: print the summary as JSON.
    """

    output: str
    engine: EngineKind = "local"
    workers: int = 1
    max_cost_usd: float | None = None
    is_dry_run: bool = False
    json: bool = False


def diagnose_batch(
    inputs: Sequence[Path], policy: Policy, options: InputOptions, settings: BatchSettings
) -> int:
    """Diagnose the runs of files into a folder; return the exit status of the command.

    Returns:
        0 if every row has a verdict, 1 if some rows have an error, 2 if no row has a verdict.
    """
    from agentguard.batch import BatchJob, LocalEngine, RayEngine

    if Path("-") in inputs:
        raise ConfigError("--out reads files: standard input cannot be read again after a stop")
    names = [_restore_url(one) for one in inputs]
    job = BatchJob(names, settings.output, policy, options)
    workers = settings.workers if settings.workers > 1 else _count_cores()
    if settings.is_dry_run:
        _print_estimate(job.estimate(), workers, json=settings.json)
        return 0
    begin = time.monotonic()
    with Console(stderr=True).status("diagnosing …") as status:

        def show_progress(summary: JobSummary) -> None:
            rate = summary.rows / max(time.monotonic() - begin, 1e-9)
            cost = f", ${summary.cost_usd:.2f}" if summary.cost_usd else ""
            status.update(f"diagnosing … {summary.rows:,} rows, {rate:,.0f} rows/s{cost}")

        engine = RayEngine(workers) if settings.engine == "ray" else LocalEngine(workers)
        summary = job.run(engine, max_cost_usd=settings.max_cost_usd, on_progress=show_progress)
    _print_summary(summary, settings)
    if summary.rows and summary.errors == summary.rows:
        return 2
    return 1 if summary.errors else 0


def _restore_url(path: Path) -> str:
    """Return the URL that `Path` has read as a path without the second slash."""
    text = str(path)
    return f"file://{text[5:]}" if text.startswith("file:/") else _URL_PATTERN.sub(r"\1://", text)


def _count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _print_summary(summary: JobSummary, settings: BatchSettings) -> None:
    if settings.json:
        # `asdict` builds a Counter of the pairs of a Counter.
        data = asdict(summary) | {"verdicts": dict(summary.verdicts)}
        sys.stdout.buffer.write(orjson.dumps(data, option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
        return
    counts = ", ".join(f"{summary.verdicts[verdict]:,} {label}" for verdict, label in VERDICT_NAMES.items())
    typer.echo(f"{summary.rows:,} rows: {counts}, {summary.errors:,} without a verdict")
    if summary.resumed_rows:
        typer.echo(f"{summary.resumed_rows:,} rows were done before")
    if summary.errors:
        typer.echo(f"rows without a verdict: {settings.output}/dead_letters")
    if not summary.is_complete:
        typer.echo("stopped at --max-cost; repeat the command to continue")


def _print_estimate(estimate: JobEstimate, workers: int, *, json: bool) -> None:
    if json:
        sys.stdout.buffer.write(orjson.dumps(asdict(estimate), option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
        return
    remaining = estimate.rows - estimate.finished_rows
    seconds = remaining * estimate.seconds_per_row / workers
    lines = [
        f"{estimate.files:,} files, {estimate.rows:,} rows, {estimate.finished_rows:,} of them done",
        f"estimate: {seconds:,.0f} s with {workers} workers ({1e3 * estimate.seconds_per_row:.1f} ms a row)",
    ]
    if estimate.tokens_per_row:
        lines.append(
            f"judge: {remaining * estimate.tokens_per_row:,.0f} tokens, "
            f"${remaining * estimate.cost_usd_per_row:,.2f}"
        )
    for line in lines:
        typer.echo(line)
