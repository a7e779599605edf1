"""Diagnosis of runs from files or products, with the runs and their diagnoses written to a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import typer

from agentguard.cli.stored_runs import DiagnosisResults, flush_store, keep_verdicts
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
    """

    def __init__(self, url: str | None, files: dict[str, str], *, only_new: bool = False) -> None:
        self._url, self._files, self._only_new = url, files, only_new
        self.skipped = 0

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
            text = f"{self.skipped} runs are in the store with equal content: they are not diagnosed again"
            typer.echo(text, err=True)
        if versions.conflicts:
            text = f"{versions.conflicts} runs have the id of another stored run: they are stored as FILE:ID"
            typer.echo(text, err=True)

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
            yield run, stored_diagnosis
