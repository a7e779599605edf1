"""``agentguard validate``: check that recorded runs can be read."""

from __future__ import annotations

import sys
from typing import Any

import orjson
import typer
from rich.console import Console
from rich.table import Table

from agentguard.cli.run_input import (
    FormatName,
    Json,
    Paths,
    ReadSummary,
    compute_exit_status,
    read_records,
)
from agentguard.cli.terminal_text import to_one_line
from agentguard.errors import InputError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(validate)


def validate(paths: Paths, format: FormatName = None, json: Json = False) -> None:
    """Check that runs can be read; name every record that cannot be, with its place.

    Exit status: 0 all can be read, 1 some records cannot, 2 none can.
    """
    tallies: list[ReadSummary] = []
    for _ in read_records(paths, format, tallies, is_quiet=True):
        pass
    if json:
        sys.stdout.buffer.write(orjson.dumps(_to_summary(tallies), option=orjson.OPT_APPEND_NEWLINE))
        sys.stdout.buffer.flush()
    else:
        _show(tallies)
    raise typer.Exit(compute_exit_status(tallies))


def _to_summary(tallies: list[ReadSummary]) -> dict[str, Any]:
    status = compute_exit_status(tallies)
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
                "broken": [_error_to_dict(error) for error in tally.errors],
            }
            for tally in tallies
        ],
    }


def _error_to_dict(error: InputError) -> dict[str, Any]:
    return {
        "code": error.code,
        "reason": error.reason,
        "file": error.file,
        "record": error.record,
        "field": error.field,
        "hint": error.hint,
    }


def _show(tallies: list[ReadSummary]) -> None:
    console = Console()
    table = Table(box=None, pad_edge=False)
    table.add_column("source", overflow="fold")
    table.add_column("recorded as")
    for name in ("runs", "steps", "annotated", "broken"):
        table.add_column(name, justify="right")
    for tally in tallies:
        numbers = (tally.runs, tally.steps, tally.annotated, len(tally.errors))
        table.add_row(to_one_line(tally.path, 200), ", ".join(tally.formats) or "–", *map(str, numbers))
    console.print(table)
    for error in (error for tally in tallies for error in tally.errors):
        console.print(f"not read: {to_one_line(str(error), 500)}", style="red", markup=False, highlight=False)
    if not any(tally.errors for tally in tallies):
        console.print("all can be read", style="green")
