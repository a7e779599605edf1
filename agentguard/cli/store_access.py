"""Access of commands to the store: opening, diagnosis of stored runs, and storage of diagnosed runs."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from agentguard.errors import ConfigError, StoreError
from agentguard.localize.base import Diagnosis
from agentguard.quantity import format_quantity
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.guard import Guard
    from agentguard.store import Store
    from agentguard.store.run_id_assignment import RunIdAssigner

StoreUrl = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="Path or postgresql://...; by default AGENTGUARD_STORE, else .agentguard/store.db.",
    ),
]

DiagnosisResults = Iterator[tuple[Trajectory, Diagnosis]]

_FLUSH_TIMEOUT_S = 60.0
_AGE_PATTERN = re.compile(r"(\d{1,9})([smhdw])")
_UNIT_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}


class StoredRuns:
    """Runs of a store, to be diagnosed.

    Args:
        ids: ids of the runs.
        url: address of the store; the default store if absent.
        tenant: tenant of the runs.
    """

    def __init__(self, ids: list[str], url: str | None, *, tenant: str) -> None:
        self._ids, self._url, self._tenant = ids, url, tenant

    @contextmanager
    def diagnose(
        self, guard: Guard, diagnose_runs: Callable[[Iterator[Trajectory]], DiagnosisResults]
    ) -> Iterator[DiagnosisResults]:
        """Yield the runs with their diagnoses; write the diagnoses to the store.

        Raises:
            StoreError: a run does not exist, or the store cannot be read; raised by the iteration.
        """
        from agentguard.localize.serialization import build_diagnosis_rows
        from agentguard.store import Store

        with Store.open(self._url) as store, guard.override(store=store), keep_verdicts(store, self._tenant):

            def write_results() -> DiagnosisResults:
                for trajectory, diagnosis in diagnose_runs(self._read_runs(store)):
                    store.write(*build_diagnosis_rows(diagnosis, tenant=self._tenant))
                    yield trajectory, add_label_note(store, diagnosis, tenant=self._tenant)

            yield write_results()
            flush_store(store)

    def _read_runs(self, store: Store) -> Iterator[Trajectory]:
        for id in self._ids:
            run = store.get_trajectory(id, tenant=self._tenant)
            if run is None:
                tenant_note = f" of tenant {self._tenant!r}" if self._tenant else ""
                raise StoreError(f"{store.address} has no run {id!r}{tenant_note}")
            yield run


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
        from agentguard.store.db.database_address import resolve_address

        return str(resolve_address(self._url))

    @contextmanager
    def diagnose(
        self,
        guard: Guard,
        runs: Iterator[Trajectory],
        diagnose_runs: Callable[[Iterator[Trajectory]], DiagnosisResults],
    ) -> Iterator[DiagnosisResults]:
        """Yield the diagnoses of the runs, which have their ids in the store; write both to the store.

        The labels of people for earlier diagnoses in the store correct the probabilities of the new ones.
        """
        if self._url is None:
            with keep_verdicts(None):
                yield diagnose_runs(runs)
            return
        from agentguard.store import Store
        from agentguard.store.run_id_assignment import RunIdAssigner

        with Store.open(self._url) as store, guard.override(store=store), keep_verdicts(store):
            versions = RunIdAssigner(store)
            selected = self._skip_stored(runs, store, versions) if self._only_new else runs
            yield self._write_results(diagnose_runs(selected), store, versions)
            flush_store(store)
        if self.skipped:
            count = format_quantity(self.skipped, "run")
            text = f"not diagnosed again, because the store has them with equal content: {count}"
            typer.echo(text, err=True)
        if versions.conflicts:
            count = format_quantity(versions.conflicts, "run")
            typer.echo(f"stored as FILE:ID, because another stored run has the id: {count}", err=True)
        typer.echo(f"stored in {self.address}: {format_quantity(self.stored, 'run')}", err=True)

    def _skip_stored(
        self, runs: Iterator[Trajectory], store: Store, versions: RunIdAssigner
    ) -> Iterator[Trajectory]:
        for run in runs:
            stored_id = versions.find_equal(run, self._files.get(run.id))
            if stored_id is not None and store.list_diagnoses(stored_id):
                self.skipped += 1
            else:
                yield run

    def _write_results(
        self, results: DiagnosisResults, store: Store, versions: RunIdAssigner
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


def add_label_note(store: Store, diagnosis: Diagnosis, *, tenant: str = "") -> Diagnosis:
    """Return the diagnosis with a note if people labelled this run; the stored diagnosis has no such note."""
    from agentguard.localize.human_labels import describe_label, merge_run_labels

    run_id = diagnosis.trajectory_id
    judgements = store.list_judgements(run_id, tenant=tenant)
    if not judgements:
        return diagnosis
    label = merge_run_labels(judgements, store.list_diagnoses(run_id, tenant=tenant))
    text = "" if label is None else describe_label(label)
    if not text:
        return diagnosis
    return replace(diagnosis, notes=(f"labelled by a person: {text}", *diagnosis.notes))


@contextmanager
def keep_verdicts(store: Store | None, tenant: str = "") -> Iterator[None]:
    """Keep the answers of judges in the store; at the end, print the number of questions."""
    from agentguard.judge.cache import VerdictScope

    with VerdictScope(store, tenant=tenant) as scope:
        yield
    counts = scope.stats
    if counts.hits or counts.misses:
        questions = format_quantity(counts.misses, "question")
        typer.echo(f"judge: {questions} asked, {counts.hits} answered from the cache", err=True)
    if counts.store_errors:
        typer.echo(f"judge: not readable: {format_quantity(counts.store_errors, 'stored answer')}", err=True)


@contextmanager
def open_verdict_store(url: str | None) -> Iterator[None]:
    """Keep the answers of judges in the store; without an address, in the default store if it exists."""
    from agentguard.store import Store
    from agentguard.store.db.database_address import resolve_address

    path = resolve_address(url).path
    if url is None and path is not None and not path.exists():
        with keep_verdicts(None):
            yield
        return
    with Store.open(url) as store, keep_verdicts(store):
        yield
        flush_store(store)


def flush_store(store: Store) -> None:
    """Wait until all rows are written; print the number of lost rows."""
    store.flush(_FLUSH_TIMEOUT_S)
    health = store.get_health()
    if health.lost or health.refused:
        typer.echo(
            f"not stored: {format_quantity(health.lost + health.refused, 'row')}; {health.last_error}",
            err=True,
        )


def open_store(url: str | None, *, new: bool = False) -> Store:
    """Open the store. Raises StoreError if it does not exist, unless ``new`` creates it."""
    from agentguard.store import Store
    from agentguard.store.db.database_address import resolve_address

    address = resolve_address(url)
    if not new and address.path is not None and not address.path.exists():
        raise StoreError(f"there is no store {address}: create one with `agentguard store init`")
    return Store.open(url)


def parse_age(text: str, option: str) -> int:
    """Return an age such as ``30m`` or ``8w`` in seconds. Raises ConfigError with the option."""
    match = _AGE_PATTERN.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{option}: {text!r} is not an age such as 90s, 30m, 12h, 30d or 8w")
    return int(match[1]) * _UNIT_SECONDS[match[2]]
