"""``agentguard validate``: check that recorded runs can be read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import typer
from rich.table import Table

from agentguard.cli.json_output import print_json
from agentguard.cli.run_input import (
    ClaudeCode,
    Codex,
    FormatName,
    Json,
    Last,
    Paths,
    ReadSummary,
    compute_exit_status,
    read_records,
    resolve_paths,
)
from agentguard.cli.terminal_text import build_console, to_one_line
from agentguard.errors import ConfigError, InputError
from agentguard.quantity import format_quantity
from agentguard.trajectory.completeness import describe_unknown_parts

_MAX_REASONS = 20
_MAX_PLACES = 3


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(validate)


def validate(
    paths: Paths = None,
    format: FormatName = None,
    claude_code: ClaudeCode = False,
    codex: Codex = False,
    last: Last = None,
    json: Json = False,
) -> None:
    """Check that runs are readable; print the position of every record that is not.

    Exit status: 0 if all records are readable, 1 if some are not, 2 if none is.
    """
    run_paths = resolve_paths(paths, claude_code=claude_code, codex=codex, last=last)
    if not run_paths:
        raise ConfigError("name files or folders of runs")
    tallies: list[ReadSummary] = []
    for _ in read_records(run_paths, format, tallies, is_quiet=True):
        pass
    if json:
        print_json(_to_summary(tallies))
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
                "without_content": tally.without_content,
                "unknown_parts": dict(tally.unknown_parts.most_common()),
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
    console = build_console()
    table = Table(box=None, pad_edge=False)
    table.add_column("source", overflow="fold")
    table.add_column("recorded as")
    for name in ("runs", "steps", "annotated", "broken"):
        table.add_column(name, justify="right")
    for tally in tallies:
        numbers = (tally.runs, tally.steps, tally.annotated, len(tally.errors))
        table.add_row(to_one_line(tally.path, 200), ", ".join(tally.formats) or "–", *map(str, numbers))
    console.print(table)
    for tally in tallies:
        for line in _describe_gaps(tally):
            console.print(line, style="yellow", markup=False, highlight=False)
    for line in _group_errors([error for tally in tallies for error in tally.errors]):
        console.print(f"not read: {line}", style="red", markup=False, highlight=False)
    if not any(tally.errors for tally in tallies):
        console.print("all records are readable", style="green")


def _describe_gaps(tally: ReadSummary) -> Iterator[str]:
    path = to_one_line(tally.path, 200)
    if tally.unknown_parts:
        yield f"{path}: {describe_unknown_parts(tally.unknown_parts)}"
    if tally.without_content:
        runs = format_quantity(tally.runs, "run")
        yield f"{path}: {tally.without_content} of {runs} without message content"


def _group_errors(errors: list[InputError]) -> Iterator[str]:
    """Yield one line per reason, with the number of records and the first places; at most `_MAX_REASONS`."""
    groups: dict[str, list[InputError]] = {}
    for error in errors:
        groups.setdefault(error.reason, []).append(error)
    order = sorted(groups.values(), key=len, reverse=True)
    for group in order[:_MAX_REASONS]:
        yield from (to_one_line(str(error), 500) for error in group[:_MAX_PLACES])
        if len(group) > _MAX_PLACES:
            yield f"{len(group) - _MAX_PLACES} more for the same reason: {to_one_line(group[0].reason, 200)}"
    if hidden := sum(map(len, order[_MAX_REASONS:])):
        yield f"{hidden} more for {len(order) - _MAX_REASONS} other reasons; --json lists all"
