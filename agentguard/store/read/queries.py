"""What may be asked of a store: runs and what belongs to them, lists of runs, what changed."""

from __future__ import annotations

from contextlib import AbstractContextManager

from sqlalchemy import Connection

from agentguard.store.db import rows as r
from agentguard.store.db.run_summary import Facets, OverviewFilter, OverviewRow, Sort, SummaryChange
from agentguard.store.read import run_summaries as _overviews
from agentguard.store.read.pagination import Page, ResultPage, RunFilter
from agentguard.store.read.query_executor import QueryExecutor
from agentguard.store.read.storage_stats import Stats
from agentguard.trajectory.model import Record, Trajectory


class StoreQueries:
    """The reading half of `agentguard.store.Store`.

    Every question names a tenant, and raises StoreUnavailable where the database cannot be read now.
    """

    _reader: QueryExecutor

    def reading(self) -> AbstractContextManager[Connection]:
        """A transaction for questions that have a module of their own, as `agentguard.store.read.statistics`."""
        return self._reader.connect()

    def runs(
        self, filter: RunFilter | None = None, page: Page | None = None, *, tenant: str = ""
    ) -> ResultPage[r.RunRow]:
        """A page of runs, the newest first."""
        return self._reader.runs(filter or RunFilter(), page or Page(), tenant)

    def run(self, run_id: str, *, tenant: str = "") -> r.RunRow | None:
        """A run without its steps; None if it is not there."""
        return self._reader.by_key(r.RunRow, run_id, tenant)

    def trajectory(self, run_id: str, *, tenant: str = "") -> Trajectory | None:
        """A run as it was written, with its branches; None if it is not there."""
        found = self._reader.record(run_id, tenant, annotated=False)
        return None if found is None else found.trajectory

    def record(self, run_id: str, *, tenant: str = "") -> Record | None:
        """A run, and how its data set judged it; None if it is not there."""
        return self._reader.record(run_id, tenant, annotated=True)

    def run_rows(
        self, run_id: str, *, tenant: str = ""
    ) -> tuple[r.RunRow, list[r.StepRow], list[r.BranchRow]] | None:
        """The rows a run is made of, also where they make no run; None if it is not there.

        A row whose data cannot be read has the reason under ``"damaged"`` (`agentguard.store.db.row_mapping.DAMAGED`).
        """
        return self._reader.rows(run_id, tenant, damaged=True)

    def findings(self, run_id: str, *, tenant: str = "") -> tuple[r.FindingRow, ...]:
        """What detectors saw in a run."""
        return self._reader.of_run(r.FindingRow, run_id, tenant)

    def diagnoses(self, run_id: str, *, tenant: str = "") -> tuple[r.DiagnosisRow, ...]:
        """What localizers said of a run, the latest last."""
        return self._reader.of_run(r.DiagnosisRow, run_id, tenant)

    def schema(self, schema_id: str, *, tenant: str = "") -> r.SchemaRow | None:
        """A schema; None if it is not there."""
        return self._reader.by_key(r.SchemaRow, schema_id, tenant)

    def schemata(
        self, *, status: str | None = None, origin: str | None = None, tenant: str = ""
    ) -> tuple[r.SchemaRow, ...]:
        """All schemata, or those of a status and an origin, in the order they were made."""
        return self._reader.where(r.SchemaRow, {"status": status, "origin": origin}, tenant)

    def verdict(self, key: str, *, tenant: str = "") -> r.VerdictRow | None:
        """The answer of a judge stored under a key (`agentguard.store.db.rows.verdict_key`); None if none is."""
        return self._reader.by_key(r.VerdictRow, key, tenant)

    def recoveries(self, run_id: str, *, tenant: str = "") -> tuple[r.RecoveryRow, ...]:
        """Attempts to recover a run, and how they ended."""
        return self._reader.of_run(r.RecoveryRow, run_id, tenant)

    def effects(self, run_id: str, *, tenant: str = "") -> tuple[r.EffectRow, ...]:
        """Effects that were claimed in a run."""
        return self._reader.of_run(r.EffectRow, run_id, tenant)

    def snapshots(self, run_id: str, *, tenant: str = "") -> tuple[r.SnapshotRow, ...]:
        """Saved states of what a run acts on, the earliest step first."""
        return self._reader.snapshots(run_id, tenant)

    def backend_events(
        self, backend: str | None = None, page: Page | None = None, *, tenant: str = ""
    ) -> ResultPage[r.BackendEventRow]:
        """A page of what happened to backends, or to one, the newest first."""
        return self._reader.events(backend, page or Page(), tenant)

    def judgements(self, run_id: str, *, tenant: str = "") -> tuple[r.JudgementRow, ...]:
        """What people said of what was said of a run."""
        return self._reader.of_run(r.JudgementRow, run_id, tenant)

    def acceptances(self, page: Page | None = None, *, tenant: str = "") -> ResultPage[r.AcceptanceRow]:
        """A page of what acceptance tests said of attempts, the earliest first."""
        return self._reader.acceptances(page or Page(), tenant)

    def acceptances_of(self, run_id: str, *, tenant: str = "") -> tuple[r.AcceptanceRow, ...]:
        """What acceptance tests said of the attempts of a run, the earliest first."""
        return self._reader.of_run(r.AcceptanceRow, run_id, tenant)

    def stats(self, *, tenant: str | None = None) -> Stats:
        """How many rows there are, of which age and size; of all tenants for None."""
        return self._reader.stats(tenant)

    # -- lists of runs

    def overviews(
        self,
        filter: OverviewFilter | None = None,
        sort: Sort | None = None,
        page: Page | None = None,
        *,
        tenant: str = "",
    ) -> ResultPage[OverviewRow]:
        """A page of runs at a glance, the newest first unless another order is asked for.

        Raises StoreError where ``page`` goes on from a place in another order.
        """
        with self._reader.connect() as connection:
            return _overviews.page(
                connection, filter or OverviewFilter(), sort or Sort(), page or Page(), tenant
            )

    def overview(self, run_id: str, *, tenant: str = "") -> OverviewRow | None:
        """A run at a glance; None if it is not there."""
        found = self._reader.of_run(OverviewRow, run_id, tenant)
        return found[0] if found and found[0].known else None

    def count_overviews(
        self, filter: OverviewFilter | None = None, *, most: int = 10_000, tenant: str = ""
    ) -> int:
        """How many runs a filter lets through; counting stops at ``most``."""
        with self._reader.connect() as connection:
            return _overviews.count(connection, filter or OverviewFilter(), tenant, most)

    def facets(self, *, tenant: str = "") -> Facets:
        """What there is to filter runs by."""
        with self._reader.connect() as connection:
            return _overviews.facets(connection, tenant)

    def changes(self, since: float, *, most: int = 200, tenant: str = "") -> tuple[SummaryChange, ...]:
        """Runs that changed after ``since`` (epoch seconds), the latest first."""
        with self._reader.connect() as connection:
            return _overviews.changes(connection, since, tenant, most)
