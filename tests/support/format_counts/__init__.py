"""Counts of runs in recorded files, made without the importers, to compare with the importers.

A module ``<format>.py`` of this package has ``count_file(path) -> FormatCounts``.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from agentguard.trajectory.model import Record, Source


@dataclass(frozen=True, slots=True, kw_only=True)
class FormatCounts:
    """Counts of one file.

    Attributes:
        runs: runs.
        turns: turns of agents.
        calls: tool calls.
        results: results of calls.
        errors: results with an error flag.
    """

    runs: int = 0
    turns: int = 0
    calls: int = 0
    results: int = 0
    errors: int = 0


def count_records(records: Iterable[Record]) -> FormatCounts:
    """Return the counts of imported runs, without branches."""
    runs = [record.trajectory for record in records]
    turns = [step for run in runs for step in run.steps if step.source is Source.AGENT]
    observations = [seen for step in turns for seen in step.observations]
    return FormatCounts(
        runs=len(runs),
        turns=len(turns),
        calls=sum(len(step.tool_calls) for step in turns),
        results=len(observations),
        errors=sum(seen.is_error is True for seen in observations),
    )
