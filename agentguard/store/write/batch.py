"""Rows as statements: what the writer does inside one transaction."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Executable, Table, and_, bindparam, delete, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import SQLAlchemyError

from agentguard.store.db.engine import COUNTED, is_outage
from agentguard.store.db.payload import RowRejected
from agentguard.store.db.row_mapping import checked_id, to_parameters
from agentguard.store.db.rows import (
    BranchRow,
    ClearRow,
    DropSnapshotsRow,
    EffectRow,
    Row,
    RunRow,
    SnapshotRow,
    StepRow,
)
from agentguard.store.db.run_summary import OverviewRow
from agentguard.store.db.statements import any_id, execute_all, ids_given
from agentguard.store.db.tables import BRANCHES, HOMES, MAX_TENANT, SNAPSHOTS, STEPS, TableMapping
from agentguard.store.write.summary_maintenance import SummaryUpdater

_LOG = logging.getLogger(__name__)
_Ready = tuple[type[Row], Row, dict[str, Any]]

Refusals = dict[int, str]
"""Position of a row to the reason why it cannot be stored."""


_FORGET = {
    dialect: tuple(
        delete(table).where(table.c.tenant == bindparam("tenant"), any_id(table.c.run_id, dialect))
        for table in (STEPS, BRANCHES, SNAPSHOTS)
    )
    for dialect in ("sqlite", "postgresql")
}
_WRITTEN = HOMES.keys() - {EffectRow, OverviewRow}
_ONE_BY_ONE = (BranchRow, DropSnapshotsRow)


@dataclass(frozen=True, slots=True)
class Batch:
    """Rows ready to be written, with their positions, and those that never will be."""

    ready: list[tuple[int, _Ready]]
    refused: Refusals


def prepare(rows: Sequence[Row]) -> Batch:
    """Make rows ready, before any lock is taken. A row that cannot be stored is left out."""
    ready: list[tuple[int, _Ready]] = []
    refused: Refusals = {}
    for place, row in enumerate(rows):
        try:
            ready.append((place, (type(row), row, _parameters(row))))
        except RowRejected as error:
            refused[place] = f"{type(row).__name__}: {error}"
        except Exception as error:  # whatever a caller hands over, its neighbours are written
            refused[place] = f"{type(row).__name__}: cannot be stored ({type(error).__name__})"
    return Batch(ready, refused)


def apply(connection: Connection, batch: Batch, *, careful: bool = True) -> Refusals:
    """Write rows, in order; returns all that were refused, by the database too. They harm no others.

    Args:
        connection: in the transaction.
        batch: the rows.
        careful: go on without a row that the database refuses. Otherwise that is an error, as an outage is:
            nothing must be committed, and all of it can be tried again with care.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database is in trouble; nothing must be committed.
        ValueError, OverflowError: only without ``careful``: the driver does not take a row.
    """
    refused = dict(batch.refused)
    upkeep: SummaryUpdater | None = None
    with _passed_over():
        upkeep = SummaryUpdater(connection, [(place, row) for place, (_, row, _values) in batch.ready])
    for kind, group in groupby(_arranged(batch.ready), key=lambda one: one[1][0]):
        if careful:
            _write(connection, kind, list(group), refused)
        else:
            _write_group(connection, kind, [ready for _, ready in group])
    with _passed_over():
        if upkeep is not None and (overviews := upkeep.rows(connection, refused)):
            execute_all(connection, _upsert(HOMES[OverviewRow], connection.dialect.name), overviews)
    return refused


def _arranged(ready: list[tuple[int, _Ready]]) -> list[tuple[int, _Ready]]:
    """Rows of one kind together, where the outcome is the same: many short runs are then few statements.

    Each kind has a table of its own, within which rows keep their order. What reaches into other tables must
    keep its place: branches, and forgetting what earlier rows of the batch have brought. Forgetting comes
    first else, as it does in each run.
    """
    kinds = dict.fromkeys(kind for _, (kind, _, _) in ready)
    if BranchRow in kinds or DropSnapshotsRow in kinds:
        return ready
    if ClearRow in kinds and _forgets_its_own(ready):
        return ready
    ranks = {kind: rank for rank, kind in enumerate(kinds, 1)} | {ClearRow: 0}
    return sorted(ready, key=lambda one: ranks[one[1][0]])


def _forgets_its_own(ready: list[tuple[int, _Ready]]) -> bool:
    """Whether rows forget what rows before them bring."""
    brought: set[tuple[Any, Any]] = set()
    for _, (kind, _row, values) in ready:
        if kind is StepRow or kind is SnapshotRow:
            brought.add((values["tenant"], values["run_id"]))
        elif kind is ClearRow and (values["tenant"], values["run_id"]) in brought:
            return True
    return False


@contextmanager
def _passed_over() -> Iterator[None]:
    """A fault in what lists show must not keep rows from being written; the database's trouble is another."""
    try:
        yield
    except (SQLAlchemyError, OSError):
        raise
    except Exception as error:
        _LOG.warning("an overview was not kept up (%s): Store.refresh_overviews makes it anew", error)


def _parameters(row: Row) -> dict[str, Any]:
    if type(row) in _WRITTEN:
        return to_parameters(row)
    if isinstance(row, EffectRow):
        raise RowRejected("an effect is claimed, not written")
    if isinstance(row, ClearRow | DropSnapshotsRow):
        tenant = checked_id(row.tenant, "tenant", most=MAX_TENANT, empty=True)
        return {"tenant": tenant, "run_id": checked_id(row.run_id, "run_id")}
    raise RowRejected("no row of the store")


def _write(
    connection: Connection, kind: type[Row], group: list[tuple[int, _Ready]], refused: Refusals
) -> None:
    """Write rows of one type at once; where that fails, each on its own to find the bad ones."""
    if kind not in _ONE_BY_ONE:
        try:
            with connection.begin_nested():
                _write_all(connection, kind, [one[2] for _, one in group])
            return
        except (SQLAlchemyError, ValueError, OverflowError) as error:
            if is_outage(error):
                raise
    for place, ready in group:
        try:
            with connection.begin_nested():
                _write_one(connection, ready)
        except (SQLAlchemyError, ValueError, OverflowError) as error:
            if is_outage(error):
                raise
            refused[place] = f"{kind.__name__}: the database refused it ({_cause(error)})"


def _write_group(connection: Connection, kind: type[Row], group: list[_Ready]) -> None:
    """As `_write`, of rows of which none is expected to be refused."""
    if kind in _ONE_BY_ONE:
        for ready in group:
            _write_one(connection, ready)
    else:
        _write_all(connection, kind, [values for _, _, values in group])


def _write_all(connection: Connection, kind: type[Row], values: list[dict[str, Any]]) -> None:
    if kind is ClearRow:
        _forget(connection, values)
        return
    if kind is RunRow:
        values = _last_of_each(values)
    execute_all(connection, _upsert(HOMES[kind], connection.dialect.name), values)


def _forget(connection: Connection, values: list[dict[str, Any]]) -> None:
    """Forget the steps, branches and snapshots of runs."""
    dialect = connection.dialect.name
    by_tenant: dict[str, list[str]] = {}
    for one in values:
        by_tenant.setdefault(one["tenant"], []).append(one["run_id"])
    gone = [{"tenant": tenant, "ids": ids_given(ids, dialect)} for tenant, ids in by_tenant.items()]
    for statement in _FORGET[dialect]:
        execute_all(connection, statement, gone)


def _last_of_each(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Runs as all of these rows leave them: a run is written again and again while it goes on."""
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for one in values:
        key = one["tenant"], one["id"]
        first = last.get(key)
        last[key] = one if first is None else one | {name: first[name] for name in HOMES[RunRow].keep}
    return list(last.values())


def _write_one(connection: Connection, ready: _Ready) -> None:
    kind, row, values = ready
    if kind is ClearRow:
        _write_all(connection, kind, [values])
        return
    if isinstance(row, DropSnapshotsRow):
        gone = and_(_of_run(SNAPSHOTS, values, "run_id"), SNAPSHOTS.c.step.in_(row.steps))
        connection.execute(delete(SNAPSHOTS).where(gone))
        return
    statement = _upsert(HOMES[kind], connection.dialect.name)
    made = connection.execute(statement, values, execution_options=COUNTED).rowcount
    # Written again after a commit whose answer was lost, the branch must not take the new line's steps.
    if isinstance(row, BranchRow) and row.takes and made == 1:
        _take_steps(connection, values)


def _take_steps(connection: Connection, values: dict[str, Any]) -> None:
    """Move the live line's steps, and the branches that left it after that point, to the new branch."""
    moved = and_(_of_run(STEPS, values, "run_id"), STEPS.c.line == "", STEPS.c.index >= values["fork_step"])
    connection.execute(update(STEPS).where(moved).values(line=values["id"]))
    later = and_(
        _of_run(BRANCHES, values, "run_id"),
        BRANCHES.c.parent.is_(None),
        BRANCHES.c.id != values["id"],
        BRANCHES.c.fork_step > values["fork_step"],
    )
    connection.execute(update(BRANCHES).where(later).values(parent=values["id"]))


def _of_run(table: Table, values: dict[str, Any], column: str) -> Any:
    return and_(table.c.tenant == values["tenant"], table.c[column] == values["run_id"])


@cache
def _upsert(home: TableMapping, dialect: str) -> Executable:
    # The two have the same methods, and no common base that has them.
    insert: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement: Any = insert(home.table)
    keys = [column.name for column in home.table.primary_key.columns]
    if not home.replace:
        unless: Executable = statement.on_conflict_do_nothing(index_elements=keys)
        return unless
    new = statement.excluded
    columns = {c.name: new[c.name] for c in home.table.columns if c.name not in {*keys, *home.keep}}
    where = new[home.guard] >= home.table.c[home.guard] if home.guard else None
    upsert: Executable = statement.on_conflict_do_update(index_elements=keys, set_=columns, where=where)
    return upsert


def _cause(error: Exception) -> str:
    orig = getattr(error, "orig", None)
    return getattr(orig, "sqlstate", None) or type(orig or error).__name__
