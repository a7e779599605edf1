"""Batch mode of ``agentguard diagnose``: many runs into a folder of Parquet files."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import orjson
import typer
from rich.console import Console

from agentguard.cli.terminal_text import build_console
from agentguard.config.policy import Policy
from agentguard.errors import ConfigError
from agentguard.localize.base import Verdict

if TYPE_CHECKING:
    from agentguard.batch import InputOptions, JobEstimate, JobSummary


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchSettings:
    """Settings of the batch mode.

    Attributes:
        output: path or URL of the output folder.
        workers: number of worker processes; 0 takes one a core.
        max_cost_usd: cost of the judge after which no further rows start.
        is_dry_run: print an estimate and write no verdict.
        json: print the summary as JSON.
    """

    output: str
    workers: int = 0
    max_cost_usd: float | None = None
    is_dry_run: bool = False
    json: bool = False


def diagnose_batch(
    inputs: Sequence[str], policy: Policy, options: InputOptions, settings: BatchSettings
) -> int:
    """Diagnose the runs of files into a folder; return the exit status of the command.

    Returns:
        0 if every row has a verdict, 1 if some rows have an error, 2 if no row has a verdict.
    """
    from agentguard.batch import BatchJob, LocalEngine

    if any(one == "-" for one in inputs):
        raise ConfigError("--out reads files: standard input cannot be resumed")
    job = BatchJob(inputs, settings.output, policy, options)
    workers = settings.workers or _count_cores()
    if settings.is_dry_run:
        _print_estimate(job.estimate(), workers, json=settings.json)
        return 0
    begin = time.monotonic()
    with Console(stderr=True).status("diagnosing …") as status:

        def show_progress(summary: JobSummary) -> None:
            rate = summary.rows / max(time.monotonic() - begin, 1e-9)
            cost = f", ${summary.cost_usd:.2f}" if summary.cost_usd else ""
            status.update(f"diagnosing … {summary.rows:,} rows, {rate:,.0f} rows/s{cost}")

        summary = job.run(LocalEngine(workers), max_cost_usd=settings.max_cost_usd, on_progress=show_progress)
    _print_summary(summary, settings)
    if summary.rows and summary.errors == summary.rows:
        return 2
    return 1 if summary.errors else 0


def _count_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _print_summary(summary: JobSummary, settings: BatchSettings) -> None:
    if settings.json:
        sys.stdout.buffer.write(orjson.dumps(asdict(summary), option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
        return
    labels = {
        Verdict.FAILURE: "failed",
        Verdict.NO_FAILURE: "no failure found",
        Verdict.ABSTAINED: "undecided",
    }
    counts = ", ".join(f"{summary.verdicts[verdict]:,} {label}" for verdict, label in labels.items())
    console = build_console()
    console.print(f"{summary.rows:,} rows: {counts}, {summary.errors:,} without a verdict", highlight=False)
    if summary.resumed_rows:
        console.print(f"{summary.resumed_rows:,} rows were done before", highlight=False)
    if summary.errors:
        console.print(f"rows without a verdict: {settings.output}/dead_letters", highlight=False)
    if not summary.is_complete:
        console.print("stopped at --max-cost; repeat the command to continue", style="yellow")


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
