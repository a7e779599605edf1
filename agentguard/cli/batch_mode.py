"""Batch mode of commands: many runs into a folder of Parquet files."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal

import typer
from rich.console import Console

from agentguard.cli.json_output import print_json
from agentguard.errors import ConfigError
from agentguard.quantity import format_quantity

if TYPE_CHECKING:
    from agentguard.batch import BatchJob, InputOptions, JobEstimate, JobSummary, Operation


_PANEL: Final = "Batch (with --batch-output)"
_URL_PATTERN = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+):/{1,2}(?=[^/])")
"""Beginning of a URL; `Path` removes its second slash. A drive letter is not a URL."""

EngineKind = Literal["local", "ray"]

BatchFolder = Annotated[
    str | None,
    typer.Option(
        "--batch-output",
        metavar="FOLDER",
        rich_help_panel=_PANEL,
        help="Write one row for each run as Parquet to this folder or URL, resumably; --jobs workers.",
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
DocumentColumn = Annotated[
    str | None,
    typer.Option(
        metavar="FIELD",
        rich_help_panel=_PANEL,
        help="Field with the run as JSON text; else the row is the run.",
    ),
]
Limit = Annotated[
    int | None,
    typer.Option(min=1, metavar="N", rich_help_panel=_PANEL, help="Process at most N rows."),
]
Workers = Annotated[
    int | None,
    typer.Option("--jobs", min=1, max=1_024, rich_help_panel=_PANEL, help="Workers; by default one a core."),
]
Sample = Annotated[
    float, typer.Option(min=0, max=1, rich_help_panel=_PANEL, help="Share of the rows to process.")
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
        workers: number of workers; None takes one a core.
        max_cost_usd: cost of the judge after which no further rows start.
        is_dry_run: print an estimate and write no row.
        json: print the summary as JSON.
        outcome_labels: words for each outcome; empty to print the outcomes as they are.
    """

    output: str
    engine: EngineKind = "local"
    workers: int | None = None
    max_cost_usd: float | None = None
    is_dry_run: bool = False
    json: bool = False
    outcome_labels: Mapping[str, str] = field(default_factory=dict)


def run_batch(
    inputs: Sequence[Path], operation: Operation, options: InputOptions, settings: BatchSettings
) -> int:
    """Apply an operation to the runs of files; print a summary and return the exit status of the command.

    Returns:
        0 if every row has a result, 1 if some rows have an error, 2 if no row has a result.
    """
    job = build_batch_job(inputs, operation, options, settings)
    if settings.is_dry_run:
        print_estimate(job, settings)
        return 0
    summary = run_batch_job(job, settings)
    print_summary(summary, settings)
    return compute_batch_status(summary)


def build_batch_job(
    inputs: Sequence[Path], operation: Operation, options: InputOptions, settings: BatchSettings
) -> BatchJob:
    """Return the job of a command. Raises ConfigError without files, and for standard input."""
    from agentguard.batch import BatchJob

    if not inputs:
        raise ConfigError("name the files, folders or URLs of the runs")
    if Path("-") in inputs:
        raise ConfigError("--batch-output reads files: standard input cannot be read again after a stop")
    return BatchJob([_restore_url(one) for one in inputs], settings.output, operation, options)


def run_batch_job(job: BatchJob, settings: BatchSettings) -> JobSummary:
    """Run a job and show its progress on standard error."""
    from agentguard.batch import LocalEngine, RayEngine

    begin = time.monotonic()
    with Console(stderr=True).status("processing …") as status:

        def show_progress(summary: JobSummary) -> None:
            status.update(f"processing … {format_progress(summary, time.monotonic() - begin)}")

        workers = _count_workers(settings)
        engine = RayEngine(workers) if settings.engine == "ray" else LocalEngine(workers)
        return job.run(engine, max_cost_usd=settings.max_cost_usd, on_progress=show_progress)


def format_progress(summary: JobSummary, elapsed_s: float) -> str:
    """Return a line with the rows, their rate and share, the remaining time and the cost."""
    rate = summary.rows / max(elapsed_s, 1e-9)
    parts = [format_quantity(summary.rows, "row"), f"{rate:,.0f} rows/s", f"{100 * summary.share:.0f} %"]
    if (remaining := summary.estimate_remaining_s(elapsed_s)) is not None:
        parts.append(f"{timedelta(seconds=round(remaining))} left")
    if summary.cost_usd:
        parts.append(f"${summary.cost_usd:.2f}")
    return ", ".join(parts)


def compute_batch_status(summary: JobSummary) -> int:
    """Return the exit status of a job; see `run_batch`."""
    if summary.rows and summary.errors == summary.rows:
        return 2
    return 1 if summary.errors else 0


def _count_workers(settings: BatchSettings) -> int:
    return settings.workers or _count_cores()


def _count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _restore_url(path: Path) -> str:
    """Restore the second slash of a URL, which `Path` has removed."""
    text = str(path)
    return f"file://{text[5:]}" if text.startswith("file:/") else _URL_PATTERN.sub(r"\1://", text)


def print_summary(summary: JobSummary, settings: BatchSettings) -> None:
    """Print the counts of a job."""
    if settings.json:
        # `asdict` builds a Counter of the pairs of a Counter.
        data = asdict(summary) | {"outcomes": dict(summary.outcomes)}
        print_json(data)
        return
    labels = settings.outcome_labels or {name: name for name in sorted(summary.outcomes)}
    counts = [f"{summary.outcomes[name]:,} {label}" for name, label in labels.items()]
    counts.append(f"{summary.errors:,} without a result")
    typer.echo(f"{format_quantity(summary.rows, 'row')}: {', '.join(counts)}")
    if summary.resumed_rows:
        typer.echo(f"done before: {format_quantity(summary.resumed_rows, 'row')}")
    if summary.errors:
        typer.echo(f"rows without a result: {settings.output.rstrip('/')}/dead_letters")
    if not summary.is_complete:
        typer.echo("stopped at --max-cost; repeat the command to continue")


def print_estimate(job: BatchJob, settings: BatchSettings) -> None:
    """Print the estimate of a job that is not run."""
    estimate = job.estimate()
    if settings.json:
        print_json(asdict(estimate))
        return
    for line in _format_estimate(estimate, _count_workers(settings)):
        typer.echo(line)


def _format_estimate(estimate: JobEstimate, workers: int) -> list[str]:
    remaining = estimate.rows - estimate.finished_rows
    seconds = remaining * estimate.seconds_per_row / workers
    lines = [
        f"{format_quantity(estimate.files, 'file')}, {format_quantity(estimate.rows, 'row')}, "
        f"{estimate.finished_rows:,} of them done",
        f"estimate: {seconds:,.0f} s with {format_quantity(workers, 'worker')} "
        f"({1e3 * estimate.seconds_per_row:.1f} ms a row)",
    ]
    if estimate.tokens_per_row:
        lines.append(
            f"judge: {remaining * estimate.tokens_per_row:,.0f} tokens, "
            f"${remaining * estimate.cost_usd_per_row:,.2f}"
        )
    return lines
