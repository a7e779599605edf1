"""Counts of runs in recorded files, made without the importers, to compare with the importers."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Source, Step


@dataclass(slots=True, kw_only=True)
class FormatCounts:
    """Totals of a file or folder.

    Attributes:
        runs: runs.
        turns: turns of agents.
        calls: tool calls.
        results: results of tools.
        errors: results with an error flag.
    """

    runs: int = 0
    turns: int = 0
    calls: int = 0
    results: int = 0
    errors: int = 0


def count_imported(path: Path) -> FormatCounts:
    """Return the totals of the runs that the reader finds; raise the error of an unreadable record."""
    records = load_records(path)
    return count_steps((record.trajectory.steps for record in records), runs=len(records))


def count_steps(runs_steps: Iterable[Iterable[Step]], *, runs: int) -> FormatCounts:
    """Return the totals of steps; an environment step with the id of a call is its late result."""
    totals = FormatCounts(runs=runs)
    for step in (step for steps in runs_steps for step in steps):
        is_late_result = step.source is Source.ENVIRONMENT and "tool_call_id" in step.extra
        totals.turns += step.source is Source.AGENT
        totals.calls += len(step.tool_calls)
        totals.results += len(step.observations) + is_late_result
        totals.errors += sum(one.is_error is True for one in step.observations)
        totals.errors += is_late_result and step.extra.get("is_error") is True
    return totals


def iter_lines(path: Path) -> Iterator[Any]:
    """Yield the values of JSON Lines, compressed or not."""
    open_file = gzip.open if path.suffix == ".gz" else open
    with open_file(path, "rt", encoding="utf-8") as lines:
        for line in lines:
            if line.strip():
                yield json.loads(line)
