"""Diagnosis of runs from files or products, with the runs and their diagnoses written to a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from agentguard.cli.stored_runs import DiagnosisResults, add_label_note, flush_store, keep_verdicts
from agentguard.cli.terminal_text import format_count
from agentguard.guard import Guard
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.store import Store
    from agentguard.store.run_versions import RunVersions


class StoreImport:
    """Import of runs into a store.

    Args:
        url: address of the store; None for no store.
        files: file of each run by id; it gets the changed ids.
        only_new: skip runs that the store has with equal content and a diagnosis.

    Attributes:
        skipped: number of skipped runs.
        stored: number of written runs.
    """

    def __init__(self, url: str | None, files: dict[str, str], *, only_new: bool = False) -> None:
        self._url, self._files, self._only_new = url, files, only_new
        self.skipped = self.stored = 0

    @property
    def address(self) -> str:
        """Address of the store without its password; empty without a store."""
        if self._url is None or "://" not in self._url:
            return self._url or ""
        from agentguard.store.db.url import resolve_address

        return str(resolve_address(self._url))

    @contextmanager
    def diagnose(
        self,
        guard: Guard,
        runs: Iterator[Trajectory],
        diagnose_runs: Callable[[Iterator[Trajectory]], DiagnosisResults],
    ) -> Iterator[DiagnosisResults]:
        """Yield the runs with their diagnoses and the ids under which they are stored.

        People's labels of earlier diagnoses in the store correct the probabilities of these.
        """
        if self._url is None:
            with keep_verdicts(None):
                yield diagnose_runs(runs)
            return
        from agentguard.store import Store
        from agentguard.store.run_versions import RunVersions

        with Store.open(self._url) as store, guard.override(store=store), keep_verdicts(store):
            versions = RunVersions(store)
            selected = self._skip_stored(runs, store, versions) if self._only_new else runs
            yield self._write_results(diagnose_runs(selected), store, versions)
            flush_store(store)
        if self.skipped:
            count = format_count(self.skipped, "run")
            text = f"not diagnosed again, because the store has them with equal content: {count}"
            typer.echo(text, err=True)
        if versions.conflicts:
            count = format_count(versions.conflicts, "run")
            typer.echo(f"stored as FILE:ID, because another stored run has the id: {count}", err=True)
        typer.echo(f"stored in {self.address}: {format_count(self.stored, 'run')}", err=True)

    def _skip_stored(
        self, runs: Iterator[Trajectory], store: Store, versions: RunVersions
    ) -> Iterator[Trajectory]:
        for run in runs:
            stored_id = versions.find_equal(run, self._files.get(run.id))
            if stored_id is not None and store.list_diagnoses(stored_id):
                self.skipped += 1
            else:
                yield run

    def _write_results(
        self, results: DiagnosisResults, store: Store, versions: RunVersions
    ) -> DiagnosisResults:
        from agentguard.localize.serialization import build_diagnosis_rows

        for trajectory, diagnosis in results:
            file = self._files.get(trajectory.id)
            run = versions.assign_id(trajectory, file)
            if file is not None:
                self._files[run.id] = file
            stored_diagnosis = replace(diagnosis, trajectory_id=run.id)
            store.write_run(run)
            store.write(*build_diagnosis_rows(stored_diagnosis))
            self.stored += 1
            yield run, add_label_note(store, stored_diagnosis)
