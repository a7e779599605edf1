"""``agentguard report``: summarize the verdicts of a batch job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from agentguard.batch import BatchReport, build_batch_report
from agentguard.batch.report_page import format_rate, format_reference, render_batch_report
from agentguard.cli.json_output import print_json
from agentguard.cli.terminal_text import build_console, to_one_line
from agentguard.quantity import format_quantity
from agentguard.taxonomy.catalog import TaxonomyCatalog
from agentguard.verdict import Verdict

_MAX_ROWS = 5


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(report)


def report(
    verdicts: Annotated[
        str, typer.Argument(help="Folder or URL that `agentguard diagnose … --batch-output` has written.")
    ],
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", metavar="FILE.html", help="Write an HTML page; it needs no network."),
    ] = None,
    max_tasks: Annotated[int, typer.Option(min=0, help="Number of tasks whose runs are compared.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Summarize the verdicts of a batch job: rates, clusters of failures, and first divergences."""
    summary = build_batch_report(verdicts, max_tasks=max_tasks)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(render_batch_report(summary, f"Verdicts of {verdicts}"), encoding="utf-8")
    if json:
        print_json(summary.to_dict())
        return
    _print_report(build_console(), summary)
    if output is not None:
        typer.echo(f"report: {output}", err=True)


def _print_report(console: Console, report: BatchReport) -> None:
    counts = report.verdicts
    console.print(
        Text(
            f"{format_quantity(report.rows, 'row')}: {counts[str(Verdict.FAILED)]:,} failed, "
            f"{counts[str(Verdict.NO_FAILURE_FOUND)]:,} no failure found, "
            f"{counts[str(Verdict.UNDECIDED)]:,} undecided, {report.errors:,} without a verdict",
            "bold",
        )
    )
    console.print(f"{format_rate(report.failure_rate)} % failed", highlight=False)
    titles = TaxonomyCatalog.load()
    for dimension, rates in report.rates.items():
        if rates:
            table = _new_table(dimension, "runs", "failed", "% failed")
            for rate in rates[-_MAX_ROWS:] if dimension == "week" else rates[:_MAX_ROWS]:
                name = titles.get_title(rate.name) if dimension == "code" else rate.name
                table.add_row(
                    Text(to_one_line(name, 60)), f"{rate.runs:,}", f"{rate.failed:,}", format_rate(rate)
                )
            console.print()
            console.print(table)
    if report.clusters:
        table = _new_table("cluster", "runs", "example")
        for cluster in report.clusters[:_MAX_ROWS]:
            kind = titles.get_title(cluster.code) if cluster.code else "no code"
            name = " · ".join(part for part in (cluster.agent, cluster.tool, kind) if part)
            table.add_row(
                Text(to_one_line(name, 80)), f"{cluster.runs:,}", format_reference(cluster.examples[0])
            )
        console.print()
        console.print(table)
    if report.divergences:
        table = _new_table("task", "action", "failed run", "passed run")
        for one in report.divergences[:_MAX_ROWS]:
            actions = (one.failed_action, one.passed_action)
            cells = [Text(to_one_line(action or "(ended)", 50)) for action in actions]
            table.add_row(Text(to_one_line(one.task, 50)), str(one.action), *cells)
        console.print()
        console.print(table)


def _new_table(first: str, *others: str) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(
            name, justify="right" if name in ("runs", "failed", "action") else "left", no_wrap=True
        )
    return table
