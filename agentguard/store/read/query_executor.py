"""Questions to the store. Every one names the tenant; values are bound, identifiers are ours."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from sqlalchemy import Connection, Select, Table, and_, or_, select
from sqlalchemy.exc import SQLAlchemyError

from agentguard.store.db import rows as r
from agentguard.store.db.database import Database
from agentguard.store.db.engine import unavailable
from agentguard.store.db.row_mapping import asked_id, asked_tenant, cleaned, row_or_damaged, to_row
from agentguard.store.db.tables import BRANCHES, HOMES, RUNS, SNAPSHOTS, STEPS
from agentguard.store.read.pagination import Page, ResultPage, RunFilter, place, placed
from agentguard.store.read.storage_stats import Stats, stats
from agentguard.store.trajectory_mapping import annotation_of, trajectory_of
from agentguard.trajectory.model import Record

R = TypeVar("R", bound=r.Row)

_BRANCH_ORDER = (BRANCHES.c.created_at, BRANCHES.c.place, BRANCHES.c.id)


class QueryExecutor:
    """Answers questions; each opens a transaction of its own, and sees what was durable when it began."""

    def __init__(self, place: Database) -> None:
        self._place = place

    @contextmanager
    def connect(self) -> Iterator[Connection]:
        """A transaction for reading. Raises StoreUnavailable if the database cannot be read now."""
        try:
            with self._place.engine().connect() as connection, connection.begin():
                yield connection
        except (SQLAlchemyError, OSError) as error:
            raise unavailable(error, self._place.address) from None

    def by_key(self, kind: type[R], key: str, tenant: str) -> R | None:
        """The row of a key; None if there is none."""
        table = HOMES[kind].table
        column = "key" if "key" in table.c else "id"
        query = _of(table, tenant).where(table.c[column] == asked_id(key, column))
        with self.connect() as connection:
            found = connection.execute(query).mappings().first()
        return None if found is None else to_row(kind, found)

    def of_run(self, kind: type[R], run_id: str, tenant: str) -> tuple[R, ...]:
        """All rows of a type that belong to a run, in the order they were made."""
        table = HOMES[kind].table
        query = _of(table, tenant).where(table.c.run_id == asked_id(run_id))
        query = query.order_by(table.c.created_at, list(table.primary_key.columns)[-1])
        with self.connect() as connection:
            return tuple(to_row(kind, one) for one in connection.execute(query).mappings())

    def snapshots(self, run_id: str, tenant: str) -> tuple[r.SnapshotRow, ...]:
        """The saved states of a run, the earliest step first."""
        query = _of(SNAPSHOTS, tenant).where(SNAPSHOTS.c.run_id == asked_id(run_id))
        with self.connect() as connection:
            found = connection.execute(query.order_by(SNAPSHOTS.c.step)).mappings()
            return tuple(to_row(r.SnapshotRow, one) for one in found)

    def where(self, kind: type[R], equal: dict[str, str | None], tenant: str) -> tuple[R, ...]:
        """All rows whose columns have these values, in the order they were made; None matches anything."""
        table = HOMES[kind].table
        query = _of(table, tenant).order_by(table.c.created_at, table.c.id)
        for name, value in equal.items():
            if value is not None:
                query = query.where(table.c[name] == cleaned(value))
        with self.connect() as connection:
            return tuple(to_row(kind, one) for one in connection.execute(query).mappings())

    def runs(self, filter: RunFilter, page: Page, tenant: str) -> ResultPage[r.RunRow]:
        """A page of runs, the newest first."""
        query = _filtered(_of(RUNS, tenant), filter)
        return self._slice(r.RunRow, query, page, newest_first=True)

    def events(self, backend: str | None, page: Page, tenant: str) -> ResultPage[r.BackendEventRow]:
        """A page of what happened to a backend, the newest first."""
        table = HOMES[r.BackendEventRow].table
        query = _of(table, tenant)
        if backend is not None:
            query = query.where(table.c.backend == cleaned(backend))
        return self._slice(r.BackendEventRow, query, page, newest_first=True)

    def acceptances(self, page: Page, tenant: str) -> ResultPage[r.AcceptanceRow]:
        """A page of what acceptance tests said, the earliest first."""
        return self._slice(
            r.AcceptanceRow, _of(HOMES[r.AcceptanceRow].table, tenant), page, newest_first=False
        )

    def record(self, run_id: str, tenant: str, *, annotated: bool) -> Record | None:
        """A run with its steps and branches, and how it was judged if that is asked for."""
        found = self.rows(run_id, tenant)
        if found is None:
            return None
        head, steps, branches = found
        run = trajectory_of(head, steps, branches)
        return Record(trajectory=run, annotation=annotation_of(head)) if annotated else Record(trajectory=run)

    def rows(
        self, run_id: str, tenant: str, *, damaged: bool = False
    ) -> tuple[r.RunRow, list[r.StepRow], list[r.BranchRow]] | None:
        """The rows a run is made of; with ``damaged``, one whose data cannot be read has what is wrong."""
        key, read = asked_id(run_id), row_or_damaged if damaged else to_row
        with self.connect() as connection:
            found = connection.execute(_of(RUNS, tenant).where(RUNS.c.id == key)).mappings().first()
            if found is None:
                return None
            steps = _of(STEPS, tenant).where(STEPS.c.run_id == key).order_by(STEPS.c.line, STEPS.c.index)
            branches = _of(BRANCHES, tenant).where(BRANCHES.c.run_id == key).order_by(*_BRANCH_ORDER)
            step_rows = [read(r.StepRow, one) for one in connection.execute(steps).mappings()]
            branch_rows = [read(r.BranchRow, one) for one in connection.execute(branches).mappings()]
        return read(r.RunRow, found), step_rows, branch_rows

    def stats(self, tenant: str | None) -> Stats:
        """What is in the store; of all tenants for None."""
        with self.connect() as connection:
            return stats(connection, self._place.address, tenant)

    def _slice(self, kind: type[R], query: Select[Any], page: Page, *, newest_first: bool) -> ResultPage[R]:
        table = HOMES[kind].table
        made, id = table.c.created_at, table.c.id
        if page.after is not None:
            at, last = placed(page.after)
            earlier = or_(made < at, and_(made == at, id < last))
            later = or_(made > at, and_(made == at, id > last))
            query = query.where(earlier if newest_first else later)
        order = (made.desc(), id.desc()) if newest_first else (made, id)
        with self.connect() as connection:
            found = connection.execute(query.order_by(*order).limit(page.limit + 1)).mappings().all()
        kept = tuple(to_row(kind, one) for one in found[: page.limit])
        more = len(found) > page.limit
        last_one = found[page.limit - 1] if more else None
        return ResultPage(rows=kept, next=place(last_one["created_at"], last_one["id"]) if last_one else None)


def _of(table: Table, tenant: str) -> Select[Any]:
    return select(table).where(table.c.tenant == asked_tenant(tenant))


def _filtered(query: Select[Any], filter: RunFilter) -> Select[Any]:
    for column, value in (("failed", filter.failed), ("format", filter.format), ("group", filter.group)):
        if value is not None:
            query = query.where(RUNS.c[column] == (cleaned(value) if isinstance(value, str) else value))
    if filter.since is not None:
        query = query.where(RUNS.c.created_at >= filter.since)
    if filter.until is not None:
        query = query.where(RUNS.c.created_at < filter.until)
    return query
