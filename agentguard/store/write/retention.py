"""Deletion of runs, of tenants, and of data beyond an age or size limit."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Table,
    and_,
    delete,
    exists,
    func,
    literal,
    not_,
    or_,
    select,
    tablesample,
    text,
    tuple_,
)
from sqlalchemy.exc import SQLAlchemyError

from agentguard.errors import StoreError
from agentguard.store.db.database import Database
from agentguard.store.db.engine import IMMEDIATE_TRANSACTION, to_unavailable_error
from agentguard.store.db.row_mapping import validate_query_id, validate_query_tenant
from agentguard.store.db.tables import (
    DIAGNOSES,
    EFFECTS,
    HINTS,
    JUDGEMENTS,
    OVERVIEWS,
    PREFIX,
    RUN_TABLES,
    RUNS,
    SAVED_VIEWS,
    SEARCH_DOCUMENTS,
    SESSIONS,
    SNAPSHOTS,
    TABLES,
    VERDICTS,
)
from agentguard.store.write.effect_claims import SHARED_BRANCH_PREFIX
from agentguard.store.write.run_counts import CountedValues, apply_changes, delete_summaries
from agentguard.store.write.search_index import delete_documents
from agentguard.verdict import Verdict

_RUNS_PER_TRANSACTION = 200
_ROWS_PER_TRANSACTION = 5_000
_MAX_MEASURED_BYTES: Final = 64 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionResult:
    """Numbers of deleted rows by table, and bytes in use (of the whole store) before and after."""

    rows: Mapping[str, int] = field(default_factory=dict)
    bytes_before: int = 0
    bytes_after: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionLimits:
    """Limits of `Retention.prune`.

    Attributes:
        older_than_s: delete runs older than this with all their rows, and older rows without a run, such as
            verdicts.
        max_bytes: delete the oldest runs, then the oldest verdicts, until at most this many bytes are in use.
        keep_failed: keep runs that failed or that a diagnosis considers failed.
        tenant: delete only rows of this tenant; None means all tenants.
    """

    older_than_s: float | None = None
    max_bytes: int | None = None
    keep_failed: bool = False
    tenant: str | None = None

    def __post_init__(self) -> None:
        if self.older_than_s is not None and not (
            math.isfinite(self.older_than_s) and self.older_than_s >= 0
        ):
            raise StoreError("the age for pruning must be at least 0 seconds")
        if self.max_bytes is not None and self.max_bytes < 0:
            raise StoreError("the number of bytes to keep must be at least 0")
        if self.tenant is not None:
            validate_query_tenant(self.tenant)


class Retention:
    """Deletion in small transactions, so that writers never wait long.

    The methods raise StoreUnavailable if the database cannot be used.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def delete_run(self, run_id: str, tenant: str) -> DeletionResult:
        """Delete a run and all its rows, including its effect claims."""
        pair = (validate_query_tenant(tenant), validate_query_id(run_id))
        return self._measure_deletion(lambda row_counts: self._remove_runs([pair], row_counts))

    def delete_saved_view(self, name: str, tenant: str) -> bool:
        """Delete a saved view; return False if no view has the name."""
        row_counts: Counter[str] = Counter()
        columns = SAVED_VIEWS.c
        condition = and_(columns.tenant == validate_query_tenant(tenant), columns.name == name)
        self._remove(SAVED_VIEWS, condition, row_counts)
        return row_counts.total() > 0

    def delete_tenant(self, tenant: str) -> DeletionResult:
        """Delete all rows of a tenant, including its schemata."""
        validate_query_tenant(tenant)

        def work(row_counts: Counter[str]) -> None:
            limits = RetentionLimits(tenant=tenant)
            while pairs := self._select_oldest_runs(limits, _RUNS_PER_TRANSACTION):
                self._remove_runs(pairs, row_counts)
            for table in TABLES.values():
                self._remove(table, table.c.tenant == tenant, row_counts)

        return self._measure_deletion(work)

    def prune(self, limits: RetentionLimits) -> DeletionResult:
        """Delete rows beyond the limits."""

        def work(row_counts: Counter[str]) -> None:
            if limits.older_than_s is not None:
                self._remove_old(time.time() - limits.older_than_s, limits, row_counts)
            if limits.max_bytes is not None:
                self._remove_excess(limits.max_bytes, limits, row_counts)

        return self._measure_deletion(work)

    def delete_expired_shared_state(self, *, session_ttl_s: float, hint_ttl_s: float) -> int:
        """Delete sessions and hints not updated within their TTL; return the number of rows.

        Effects that proxies share are deleted with the last session of their run.
        """
        row_counts: Counter[str] = Counter()
        now = time.time()
        try:
            for table, seconds in ((SESSIONS, session_ttl_s), (HINTS, hint_ttl_s)):
                self._remove(table, table.c.updated_at < now - seconds, row_counts)
            is_session_of_run = and_(
                SESSIONS.c.tenant == EFFECTS.c.tenant, SESSIONS.c.run_id == EFFECTS.c.run_id
            )
            is_expired = and_(
                EFFECTS.c.line.startswith(SHARED_BRANCH_PREFIX), EFFECTS.c.created_at < now - session_ttl_s
            )
            self._remove(EFFECTS, and_(is_expired, not_(exists().where(is_session_of_run))), row_counts)
        except (SQLAlchemyError, OSError) as error:
            raise to_unavailable_error(error, self._database.address) from None
        return row_counts.total()

    def _measure_deletion(self, delete_rows: Callable[[Counter[str]], None]) -> DeletionResult:
        row_counts: Counter[str] = Counter()
        try:
            bytes_before = self._measure_used_bytes()
            delete_rows(row_counts)
            self._reclaim_disk_space()
            del row_counts[_get_short_name(OVERVIEWS)]  # summaries are derived from the deleted rows
            return DeletionResult(
                rows=dict(row_counts), bytes_before=bytes_before, bytes_after=self._measure_used_bytes()
            )
        except (SQLAlchemyError, OSError) as error:
            raise to_unavailable_error(error, self._database.address) from None

    def _remove_old(self, before: float, limits: RetentionLimits, row_counts: Counter[str]) -> None:
        while pairs := self._select_oldest_runs(limits, _RUNS_PER_TRANSACTION, before):
            self._remove_runs(pairs, row_counts)
        for table in RUN_TABLES:
            has_run = exists().where(RUNS.c.tenant == table.c.tenant, RUNS.c.id == table.c.run_id)
            is_expired = and_(table.c.created_at < before, not_(has_run), _match_tenant(table, limits.tenant))
            # Keep feedback on schemata: it has no run, and people do not give it again.
            self._remove(
                table,
                and_(is_expired, table.c.run_id != "") if table is JUDGEMENTS else is_expired,
                row_counts,
            )

    def _remove_excess(self, max_bytes: int, limits: RetentionLimits, row_counts: Counter[str]) -> None:
        while (used_bytes := self._measure_used_bytes()) > max_bytes:
            if pairs := self._select_oldest_runs(limits, self._estimate_excess_runs(used_bytes, max_bytes)):
                self._remove_runs(pairs, row_counts)
            elif not self._remove_oldest(VERDICTS, limits.tenant, row_counts):
                return

    def _estimate_excess_runs(self, used: int, max_bytes: int) -> int:
        """Return the number of runs to delete next: half of the excess share, since runs differ in size."""
        with self._database.get_engine().connect() as connection:
            runs = connection.execute(select(func.count()).select_from(RUNS)).scalar_one()
        return min(_RUNS_PER_TRANSACTION, max(1, int(runs * (used - max_bytes) / used / 2)))

    def _select_oldest_runs(
        self, limits: RetentionLimits, count: int, before: float | None = None
    ) -> list[tuple[str, str]]:
        query = select(RUNS.c.tenant, RUNS.c.id).where(_match_tenant(RUNS, limits.tenant))
        if before is not None:
            query = query.where(RUNS.c.created_at < before)
        if limits.keep_failed:
            diagnosed = exists().where(
                DIAGNOSES.c.tenant == RUNS.c.tenant,
                DIAGNOSES.c.run_id == RUNS.c.id,
                DIAGNOSES.c.verdict == Verdict.FAILED.value,
            )
            query = query.where(or_(RUNS.c.failed.is_(None), RUNS.c.failed.is_(False)), not_(diagnosed))
        with self._database.get_engine().connect() as connection:
            rows = connection.execute(query.order_by(RUNS.c.created_at, RUNS.c.id).limit(count))
            return [(row.tenant, row.id) for row in rows]

    def _remove_runs(self, pairs: Iterable[tuple[str, str]], row_counts: Counter[str]) -> None:
        by_tenant: dict[str, list[str]] = {}
        for tenant, run_id in pairs:
            by_tenant.setdefault(tenant, []).append(run_id)
        with (
            self._database.get_engine().connect().execution_options(**IMMEDIATE_TRANSACTION) as connection,
            connection.begin(),
        ):
            deleted: list[CountedValues] = []
            for tenant, ids in by_tenant.items():
                for table in RUN_TABLES:
                    condition = and_(table.c.tenant == tenant, table.c.run_id.in_(ids))
                    row_counts[_get_short_name(table)] += _delete_rows(connection, table, condition, deleted)
                documents = SEARCH_DOCUMENTS.c
                delete_documents(connection, and_(documents.tenant == tenant, documents.run_id.in_(ids)))
                condition = and_(RUNS.c.tenant == tenant, RUNS.c.id.in_(ids))
                row_counts[_get_short_name(RUNS)] += _delete_rows(connection, RUNS, condition, deleted)
            apply_changes(connection, ((values, None) for values in deleted))

    def _remove(self, table: Table, condition: ColumnElement[bool], row_counts: Counter[str]) -> None:
        key = tuple_(*table.primary_key.columns)
        chunk = select(*table.primary_key.columns).where(condition).limit(_ROWS_PER_TRANSACTION)
        count = _ROWS_PER_TRANSACTION
        while count == _ROWS_PER_TRANSACTION:
            with (
                self._database.get_engine()
                .connect()
                .execution_options(**IMMEDIATE_TRANSACTION) as connection,
                connection.begin(),
            ):
                deleted: list[CountedValues] = []
                count = _delete_rows(connection, table, key.in_(chunk), deleted)
                apply_changes(connection, ((values, None) for values in deleted))
            row_counts[_get_short_name(table)] += count

    def _remove_oldest(self, table: Table, tenant: str | None, row_counts: Counter[str]) -> bool:
        """Delete some of the oldest rows of a table; return False if the table has no more rows."""
        with self._database.get_engine().connect() as connection:
            query = (
                select(table.c.created_at).where(_match_tenant(table, tenant)).order_by(table.c.created_at)
            )
            times = connection.execute(query.limit(_RUNS_PER_TRANSACTION)).scalars().all()
        if times:
            self._remove(
                table, and_(table.c.created_at <= times[-1], _match_tenant(table, tenant)), row_counts
            )
        return bool(times)

    def _measure_used_bytes(self) -> int:
        """Return the bytes in use; see `measure_used_bytes`."""
        with self._database.get_engine().connect() as connection:
            return measure_used_bytes(connection)

    def _reclaim_disk_space(self) -> None:
        """Return free pages of SQLite to the disk; PostgreSQL does so by itself (autovacuum)."""
        engine = self._database.get_engine()
        if engine.dialect.name != "sqlite":
            return
        connection = engine.raw_connection()
        try:
            cursor = connection.cursor()
            for pragma in ("incremental_vacuum", "wal_checkpoint(TRUNCATE)"):
                cursor.execute(f"PRAGMA {pragma}")
                cursor.fetchall()
        finally:
            connection.close()


def _delete_rows(
    connection: Connection, table: Table, condition: ColumnElement[bool], deleted: list[CountedValues]
) -> int:
    """Delete rows and return their number; add the values of deleted summaries to ``deleted``."""
    if table is not OVERVIEWS:
        return connection.execute(delete(table).where(condition)).rowcount
    summaries = delete_summaries(connection, condition)
    deleted += summaries
    return len(summaries)


def measure_used_bytes(connection: Connection) -> int:
    """Return the bytes in use: pages that are not free in SQLite, contents of rows in PostgreSQL.

    The size of a PostgreSQL table above 64 MiB is an estimate from a sample of 64 MiB of its pages.
    """
    if connection.dialect.name == "sqlite":
        pages, free_pages, size = (
            connection.exec_driver_sql(f"PRAGMA {name}").scalar_one()
            for name in ("page_count", "freelist_count", "page_size")
        )
        return int((pages - free_pages) * size)
    contents = [table.c.data for table in TABLES.values()] + [SNAPSHOTS.c.state]
    return sum(_measure_column_bytes(connection, column) for column in contents)


def _measure_column_bytes(connection: Connection, column: Column[Any]) -> int:
    """Return the bytes in a column of PostgreSQL; of a large table from a sample of its pages."""
    size = text("SELECT pg_relation_size(CAST(:name AS regclass))")
    table_bytes = int(connection.execute(size, {"name": column.table.name}).scalar_one())
    share = min(1.0, _MAX_MEASURED_BYTES / max(table_bytes, 1))
    source: ColumnElement[Any] = column
    if share < 1.0:
        # With a constant seed, two measurements read the same pages, so their difference is that of the rows.
        sample = tablesample(column.table, func.system(100 * share), seed=literal(0))
        source = sample.c[column.name]
    contents = select(func.coalesce(func.sum(func.length(source)), 0))
    return int(int(connection.execute(contents).scalar_one()) / share)


def _match_tenant(table: Table, tenant: str | None) -> ColumnElement[bool]:
    return table.c.tenant == tenant if tenant is not None else table.c.tenant.is_not(None)


def _get_short_name(table: Table) -> str:
    return table.name.removeprefix(PREFIX)
