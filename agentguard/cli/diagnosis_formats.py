"""Output of ``agentguard diagnose``: full diagnoses, a table of many runs, JSON lines, or a report for CI."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Final

import typer
from rich.console import Console

from agentguard.cli.ci_reports import OutputFormat, write_report
from agentguard.cli.diagnosis_table import render_diagnosis_table
from agentguard.cli.diagnosis_text import DiagnosisView, render_diagnosis
from agentguard.cli.json_output import print_json
from agentguard.cli.run_summary import RunSelection, RunSummary, mark_shared_files
from agentguard.cli.terminal_text import build_console
from agentguard.localize.base import Diagnosis
from agentguard.quantity import format_quantity
from agentguard.trajectory.costs import compute_run_cost
from agentguard.trajectory.model import Trajectory

JSON_SCHEMA_VERSION: Final = 2
"""Version of the JSON lines; a removed or changed field increments it."""

_MAX_FULL_RUNS: Final = 3  # more runs are shown as a table

DiagnosisResults = Iterable[tuple[Trajectory, Diagnosis]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiagnosisPrinter:
    """Printer of diagnosed runs.

    Attributes:
        format: format of the output.
        view: amount of detail of a full diagnosis.
        selection: runs and order of a table or report.
        is_full: print each run in full as soon as it is diagnosed.
        find_file: function that returns the file of a run by its id; None if the run has no file.
        unreadable: messages of the records that could not be read; it grows while the results are read.
        store: address of the store that has the runs; empty for no store.
    """

    format: OutputFormat
    view: DiagnosisView
    selection: RunSelection
    is_full: bool
    find_file: Callable[[str], str | None]
    unreadable: Sequence[str]
    store: str = ""

    def print_results(self, results: DiagnosisResults) -> None:
        """Print the results on standard output."""
        if self.format is OutputFormat.JSON:
            self._print_json(results)
        elif self.format is OutputFormat.TEXT:
            self._print_text(results)
        else:
            runs = mark_shared_files([self._summarize(*result) for result in results])
            chosen = self.selection.select_runs(runs)[: self.selection.limit]
            typer.echo(write_report(self.format, chosen, self.unreadable), nl=False)

    def _print_json(self, results: DiagnosisResults) -> None:
        chosen = (one for one in results if self.selection.includes(one[1].verdict))
        for trajectory, diagnosis in islice(chosen, self.selection.limit):
            line = _build_json(trajectory, diagnosis, self.find_file(trajectory.id))
            print_json(line)

    def _print_text(self, results: DiagnosisResults) -> None:
        console = build_console()
        runs: list[RunSummary] = []
        try:
            for shown in self._iter_full_diagnoses(results, runs):
                render_diagnosis(console, *shown, self.view)
        finally:
            # After Ctrl-C, the table has the runs that were diagnosed before.
            if len(runs) > 1:
                if self.is_full or len(runs) <= _MAX_FULL_RUNS:
                    console.print()
                render_diagnosis_table(console, runs, self.selection, store=self.store)

    def _iter_full_diagnoses(
        self, results: DiagnosisResults, runs: list[RunSummary]
    ) -> Iterator[tuple[Trajectory, Diagnosis]]:
        """Yield the diagnoses to print in full: each at once, or a few at the end; add all to ``runs``."""
        few: list[tuple[Trajectory, Diagnosis]] = []
        with Console(stderr=True).status("diagnosing …") as status:
            for trajectory, diagnosis in results:
                runs.append(self._summarize(trajectory, diagnosis))
                status.update(f"diagnosing … {format_quantity(len(runs), 'run')}")
                if self.is_full and self.selection.includes(diagnosis.verdict):
                    yield trajectory, diagnosis
                elif not self.is_full and len(runs) <= _MAX_FULL_RUNS:
                    few.append((trajectory, diagnosis))
        if len(runs) <= _MAX_FULL_RUNS:
            yield from few

    def _summarize(self, trajectory: Trajectory, diagnosis: Diagnosis) -> RunSummary:
        return RunSummary.from_diagnosis(trajectory, diagnosis, self.find_file(trajectory.id))


def _build_json(trajectory: Trajectory, diagnosis: Diagnosis, file: str | None) -> dict[str, Any]:
    cost = compute_run_cost(trajectory)
    line: dict[str, Any] = {
        "schema_version": JSON_SCHEMA_VERSION,
        "file": file,
        "run_cost": {"usd": cost.cost_usd, "unpriced_steps": cost.unpriced_steps},
    }
    return line | {one.name: getattr(diagnosis, one.name) for one in fields(diagnosis)}
