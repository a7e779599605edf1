"""Queries of the store: runs and their rows, lists of runs, changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, Table, and_, or_, select
from sqlalchemy.exc import SQLAlchemyError

from agentguard.store.db import rows as r
from agentguard.store.db.database import Database
from agentguard.store.db.engine import to_unavailable_error
from agentguard.store.db.row_mapping import (
    sanitize_text,
    to_row,
    to_row_or_damaged,
    validate_query_id,
    validate_query_tenant,
)
from agentguard.store.db.run_summary import RunFacets, RunSort, RunSummaryFilter, RunSummaryRow, SummaryChange
from agentguard.store.db.tables import BRANCHES, RUNS, SNAPSHOTS, STEPS, TABLE_MAPPINGS
from agentguard.store.read import summary_queries
from agentguard.store.read.pagination import (
    MAX_PAGE_SIZE,
    Page,
    ResultPage,
    RunFilter,
    decode_row_cursor,
    encode_cursor,
)
from agentguard.store.read.step_search import StepSearcher, StepSearchResult
from agentguard.store.read.store_stats import StoreStats, collect_stats
from agentguard.store.trajectory_mapping import build_trajectory, decode_run_annotation
from agentguard.trajectory.model import Record, Trajectory

R = TypeVar("R", bound=r.Row)

_BRANCH_ORDER = (BRANCHES.c.created_at, BRANCHES.c.place, BRANCHES.c.id)


class QueryExecutor:
    """Executor of queries; each has its own transaction and sees the rows committed before it began."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @contextmanager
    def begin_read(self) -> Iterator[Connection]:
        """Begin a read transaction. Raises StoreUnavailable if the database cannot be read now."""
        try:
            with self._database.get_engine().connect() as connection, connection.begin():
                yield connection
        except (SQLAlchemyError, OSError) as error:
            raise to_unavailable_error(error, self._database.address) from None

    def get_by_key(self, kind: type[R], key: str, tenant: str) -> R | None:
        """Return the row of a key, or None."""
        table = TABLE_MAPPINGS[kind].table
        column = "key" if "key" in table.c else "id"
        query = _select_for_tenant(table, tenant).where(table.c[column] == validate_query_id(key, column))
        with self.begin_read() as connection:
            row = connection.execute(query).mappings().first()
        return None if row is None else to_row(kind, row)

    def list_for_run(self, kind: type[R], run_id: str, tenant: str) -> tuple[R, ...]:
        """Return all rows of a type for a run, in order of creation."""
        table = TABLE_MAPPINGS[kind].table
        query = _select_for_tenant(table, tenant).where(table.c.run_id == validate_query_id(run_id))
        query = query.order_by(table.c.created_at, list(table.primary_key.columns)[-1])
        with self.begin_read() as connection:
            return tuple(to_row(kind, one) for one in connection.execute(query).mappings())

    def list_snapshots(self, run_id: str, tenant: str) -> tuple[r.SnapshotRow, ...]:
        """Return the snapshots of a run, earliest step first."""
        query = _select_for_tenant(SNAPSHOTS, tenant).where(SNAPSHOTS.c.run_id == validate_query_id(run_id))
        with self.begin_read() as connection:
            rows = connection.execute(query.order_by(SNAPSHOTS.c.step)).mappings()
            return tuple(to_row(r.SnapshotRow, row) for row in rows)

    def list_where(self, kind: type[R], values: dict[str, str | None], tenant: str) -> tuple[R, ...]:
        """Return all rows with these column values in order of creation; None matches any value."""
        table = TABLE_MAPPINGS[kind].table
        query = _select_for_tenant(table, tenant).order_by(table.c.created_at, table.c.id)
        for name, value in values.items():
            if value is not None:
                query = query.where(table.c[name] == sanitize_text(value))
        with self.begin_read() as connection:
            return tuple(to_row(kind, one) for one in connection.execute(query).mappings())

    def list_runs(self, filter: RunFilter, page: Page, tenant: str) -> ResultPage[r.RunRow]:
        """Return a page of runs, newest first."""
        query = _apply_run_filter(_select_for_tenant(RUNS, tenant), filter)
        return self._fetch_page(r.RunRow, query, page, newest_first=True)

    def list_acceptances(self, page: Page, tenant: str) -> ResultPage[r.AcceptanceRow]:
        """Return a page of results of acceptance tests, earliest first."""
        return self._fetch_page(
            r.AcceptanceRow,
            _select_for_tenant(TABLE_MAPPINGS[r.AcceptanceRow].table, tenant),
            page,
            newest_first=False,
        )

    def get_record(self, run_id: str, tenant: str, *, with_annotation: bool) -> Record | None:
        """Return a run with its steps and branches, optionally with its annotation."""
        run_rows = self.get_run_rows(run_id, tenant)
        if run_rows is None:
            return None
        head, steps, branches = run_rows
        run = build_trajectory(head, steps, branches)
        return (
            Record(trajectory=run, annotation=decode_run_annotation(head))
            if with_annotation
            else Record(trajectory=run)
        )

    def get_run_rows(
        self, run_id: str, tenant: str, *, allow_damaged: bool = False
    ) -> tuple[r.RunRow, list[r.StepRow], list[r.BranchRow]] | None:
        """Return the rows of a run; ``allow_damaged`` returns unreadable rows with the error as data."""
        key, decode = validate_query_id(run_id), to_row_or_damaged if allow_damaged else to_row
        with self.begin_read() as connection:
            run_row = (
                connection.execute(_select_for_tenant(RUNS, tenant).where(RUNS.c.id == key))
                .mappings()
                .first()
            )
            if run_row is None:
                return None
            steps = (
                _select_for_tenant(STEPS, tenant)
                .where(STEPS.c.run_id == key)
                .order_by(STEPS.c.line, STEPS.c.index)
            )
            branches = (
                _select_for_tenant(BRANCHES, tenant).where(BRANCHES.c.run_id == key).order_by(*_BRANCH_ORDER)
            )
            step_rows = [decode(r.StepRow, row) for row in connection.execute(steps).mappings()]
            branch_rows = [decode(r.BranchRow, row) for row in connection.execute(branches).mappings()]
        return decode(r.RunRow, run_row), step_rows, branch_rows

    def get_stats(self, tenant: str | None) -> StoreStats:
        """Return statistics of a tenant; None means all tenants."""
        with self.begin_read() as connection:
            return collect_stats(connection, self._database.address, tenant)

    def _fetch_page(
        self, kind: type[R], query: Select[Any], page: Page, *, newest_first: bool
    ) -> ResultPage[R]:
        table = TABLE_MAPPINGS[kind].table
        created_at, id = table.c.created_at, table.c.id
        if page.after is not None:
            cursor_time, cursor_id = decode_row_cursor(page.after)
            earlier = or_(created_at < cursor_time, and_(created_at == cursor_time, id < cursor_id))
            later = or_(created_at > cursor_time, and_(created_at == cursor_time, id > cursor_id))
            query = query.where(earlier if newest_first else later)
        order = (created_at.desc(), id.desc()) if newest_first else (created_at, id)
        with self.begin_read() as connection:
            rows = connection.execute(query.order_by(*order).limit(page.limit + 1)).mappings().all()
        decoded_rows = tuple(to_row(kind, row) for row in rows[: page.limit])
        has_more = len(rows) > page.limit
        last_row = rows[page.limit - 1] if has_more else None
        return ResultPage(
            rows=decoded_rows,
            next=encode_cursor(last_row["created_at"], last_row["id"]) if last_row else None,
        )


def _select_for_tenant(table: Table, tenant: str) -> Select[Any]:
    return select(table).where(table.c.tenant == validate_query_tenant(tenant))


def _apply_run_filter(query: Select[Any], filter: RunFilter) -> Select[Any]:
    for column, value in (("failed", filter.failed), ("format", filter.format), ("group", filter.group)):
        if value is not None:
            query = query.where(RUNS.c[column] == (sanitize_text(value) if isinstance(value, str) else value))
    if filter.since is not None:
        query = query.where(RUNS.c.created_at >= filter.since)
    if filter.until is not None:
        query = query.where(RUNS.c.created_at < filter.until)
    return query


class StoreQueries:
    """Read methods of `agentguard.store.Store`.

    Each method takes a tenant and raises StoreUnavailable if the database cannot be read now.
    """

    _executor: QueryExecutor

    def begin_read(self) -> AbstractContextManager[Connection]:
        """Begin a read transaction, for queries of other modules such as `failure_statistics`."""
        return self._executor.begin_read()

    def list_runs(
        self, filter: RunFilter | None = None, page: Page | None = None, *, tenant: str = ""
    ) -> ResultPage[r.RunRow]:
        """Return a page of runs, newest first."""
        return self._executor.list_runs(filter or RunFilter(), page or Page(), tenant)

    def get_run(self, run_id: str, *, tenant: str = "") -> r.RunRow | None:
        """Return a run without its steps, or None."""
        return self._executor.get_by_key(r.RunRow, run_id, tenant)

    def get_trajectory(self, run_id: str, *, tenant: str = "") -> Trajectory | None:
        """Return a run with its steps and branches, or None."""
        record = self._executor.get_record(run_id, tenant, with_annotation=False)
        return None if record is None else record.trajectory

    def get_record(self, run_id: str, *, tenant: str = "") -> Record | None:
        """Return a run with its annotation, or None."""
        return self._executor.get_record(run_id, tenant, with_annotation=True)

    def get_run_rows(
        self, run_id: str, *, tenant: str = ""
    ) -> tuple[r.RunRow, list[r.StepRow], list[r.BranchRow]] | None:
        """Return the rows of a run, also of an invalid one; None if there is no such run.

        A row whose data cannot be read has the error under ``"damaged"``
        (`agentguard.store.db.row_mapping.DAMAGED_KEY`).
        """
        return self._executor.get_run_rows(run_id, tenant, allow_damaged=True)

    def list_findings(self, run_id: str, *, tenant: str = "") -> tuple[r.FindingRow, ...]:
        """Return the findings of a run."""
        return self._executor.list_for_run(r.FindingRow, run_id, tenant)

    def list_diagnoses(self, run_id: str, *, tenant: str = "") -> tuple[r.DiagnosisRow, ...]:
        """Return the diagnoses of a run, latest last."""
        return self._executor.list_for_run(r.DiagnosisRow, run_id, tenant)

    def list_schemata(
        self, *, status: str | None = None, origin: str | None = None, tenant: str = ""
    ) -> tuple[r.SchemaRow, ...]:
        """Return the schemata, optionally of one status or origin, in order of creation."""
        return self._executor.list_where(r.SchemaRow, {"status": status, "origin": origin}, tenant)

    def get_verdict(self, key: str, *, tenant: str = "") -> r.VerdictRow | None:
        """Return a cached answer of a judge by its key (`compute_verdict_key`), or None."""
        return self._executor.get_by_key(r.VerdictRow, key, tenant)

    def list_recoveries(self, run_id: str, *, tenant: str = "") -> tuple[r.RecoveryRow, ...]:
        """Return the recoveries of a run with their outcomes."""
        return self._executor.list_for_run(r.RecoveryRow, run_id, tenant)

    def list_effects(self, run_id: str, *, tenant: str = "") -> tuple[r.EffectRow, ...]:
        """Return the claimed effects of a run."""
        return self._executor.list_for_run(r.EffectRow, run_id, tenant)

    def list_snapshots(self, run_id: str, *, tenant: str = "") -> tuple[r.SnapshotRow, ...]:
        """Return the snapshots of a run, earliest step first."""
        return self._executor.list_snapshots(run_id, tenant)

    def list_judgements(self, run_id: str, *, tenant: str = "") -> tuple[r.JudgementRow, ...]:
        """Return the feedback on a run's diagnoses and findings."""
        return self._executor.list_for_run(r.JudgementRow, run_id, tenant)

    def list_acceptances(self, page: Page | None = None, *, tenant: str = "") -> ResultPage[r.AcceptanceRow]:
        """Return a page of results of acceptance tests, earliest first."""
        return self._executor.list_acceptances(page or Page(), tenant)

    def list_run_acceptances(self, run_id: str, *, tenant: str = "") -> tuple[r.AcceptanceRow, ...]:
        """Return the results of acceptance tests of a run, earliest first."""
        return self._executor.list_for_run(r.AcceptanceRow, run_id, tenant)

    def get_stats(self, *, tenant: str | None = None) -> StoreStats:
        """Return counts, ages and sizes of the rows of a tenant; None means all tenants."""
        return self._executor.get_stats(tenant)

    # -- lists of runs

    def list_run_summaries(
        self,
        filter: RunSummaryFilter | None = None,
        sort: RunSort | None = None,
        page: Page | None = None,
        *,
        tenant: str = "",
    ) -> ResultPage[RunSummaryRow]:
        """Return a page of run summaries, newest first by default.

        Raises StoreError if the cursor of ``page`` is from another sort order.
        """
        with self._executor.begin_read() as connection:
            return summary_queries.fetch_page(
                connection, filter or RunSummaryFilter(), sort or RunSort(), page or Page(), tenant
            )

    def iter_run_summaries(
        self, filter: RunSummaryFilter | None = None, sort: RunSort | None = None, *, tenant: str = ""
    ) -> Iterator[RunSummaryRow]:
        """Yield all run summaries, newest first by default; pages are read on demand."""
        after: str | None = None
        while True:
            page = Page(limit=MAX_PAGE_SIZE, after=after)
            found = self.list_run_summaries(filter, sort, page, tenant=tenant)
            yield from found.rows
            after = found.next
            if after is None:
                return

    def get_run_summary(self, run_id: str, *, tenant: str = "") -> RunSummaryRow | None:
        """Return the summary of a run, or None."""
        summaries = self._executor.list_for_run(RunSummaryRow, run_id, tenant)
        return summaries[0] if summaries and summaries[0].known else None

    def count_run_summaries(
        self, filter: RunSummaryFilter | None = None, *, max_count: int = 10_000, tenant: str = ""
    ) -> int:
        """Return the number of matching runs, at most ``max_count``."""
        with self._executor.begin_read() as connection:
            return summary_queries.count_runs(connection, filter or RunSummaryFilter(), tenant, max_count)

    def search_steps(
        self,
        text: str,
        filter: RunSummaryFilter | None = None,
        page: Page | None = None,
        *,
        timeout_s: float | None = None,
        tenant: str = "",
    ) -> StepSearchResult:
        """Search the texts, calls and results of runs that match ``filter``, newest runs first.

        After ``timeout_s`` seconds the result is partial, and its cursor continues the search. Raises
        StoreError if the text is empty or the cursor is invalid.
        """
        searcher = StepSearcher(text, tenant)
        with self._executor.begin_read() as connection:
            return searcher.search(connection, filter or RunSummaryFilter(), page or Page(), timeout_s)

    def get_facets(self, *, tenant: str = "") -> RunFacets:
        """Return the available filter values."""
        with self._executor.begin_read() as connection:
            return summary_queries.compute_facets(connection, tenant)

    def list_changes(self, since: float, *, limit: int = 200, tenant: str = "") -> tuple[SummaryChange, ...]:
        """Return the runs that changed after ``since`` (epoch seconds), latest first."""
        with self._executor.begin_read() as connection:
            return summary_queries.list_changes(connection, since, tenant, limit)
