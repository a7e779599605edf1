"""Execution of a batch of rows as SQL statements within one transaction."""

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

from agentguard.store.db.compiled_statements import execute_many, match_any_id, to_id_parameter
from agentguard.store.db.engine import PRESERVE_ROWCOUNT, is_outage
from agentguard.store.db.payload import RowRejected
from agentguard.store.db.row_mapping import to_parameters, validate_id
from agentguard.store.db.rows import (
    BranchRow,
    ClearRunRow,
    DropSnapshotsRow,
    EffectRow,
    Row,
    RunRow,
    SnapshotRow,
    StepRow,
)
from agentguard.store.db.run_summary import RunSummaryRow
from agentguard.store.db.tables import BRANCHES, MAX_TENANT, SNAPSHOTS, STEPS, TABLE_MAPPINGS, TableMapping
from agentguard.store.write.summary_updater import SummaryUpdater

_LOG = logging.getLogger(__name__)
_PreparedRow = tuple[type[Row], Row, dict[str, Any]]

Rejections = dict[int, str]
"""Reasons of rejections, by position of the row in the batch."""


_CLEAR_STATEMENTS = {
    dialect: tuple(
        delete(table).where(table.c.tenant == bindparam("tenant"), match_any_id(table.c.run_id, dialect))
        for table in (STEPS, BRANCHES, SNAPSHOTS)
    )
    for dialect in ("sqlite", "postgresql")
}
_WRITABLE_TYPES = TABLE_MAPPINGS.keys() - {EffectRow, RunSummaryRow}
_ROW_BY_ROW_TYPES = (BranchRow, DropSnapshotsRow)


@dataclass(frozen=True, slots=True)
class WriteBatch:
    """Rows converted to parameters, with their positions, and the rejected ones."""

    rows: list[tuple[int, _PreparedRow]]
    rejections: Rejections


def prepare_batch(rows: Sequence[Row]) -> WriteBatch:
    """Convert rows to parameters before a lock is taken. Rows that cannot be stored are rejected."""
    ready: list[tuple[int, _PreparedRow]] = []
    rejections: Rejections = {}
    for place, row in enumerate(rows):
        try:
            ready.append((place, (type(row), row, _build_parameters(row))))
        except RowRejected as error:
            rejections[place] = f"{type(row).__name__}: {error}"
        except Exception as error:  # one invalid row must not block the others
            rejections[place] = f"{type(row).__name__}: cannot be stored ({type(error).__name__})"
    return WriteBatch(ready, rejections)


def apply_batch(connection: Connection, batch: WriteBatch, *, use_savepoints: bool = True) -> Rejections:
    """Write rows in order; return all rejections, including those by the database.

    Args:
        connection: a connection in a transaction.
        batch: the rows.
        use_savepoints: skip rows that the database rejects. If False, a rejected row raises an error: roll
            back, and try the batch again with savepoints.

    Raises:
        sqlalchemy.exc.SQLAlchemyError: the database cannot be used; do not commit.
        ValueError, OverflowError: only without ``use_savepoints``: the driver rejected a row; do not commit.
    """
    rejections = dict(batch.rejections)
    summary_updater: SummaryUpdater | None = None
    with _suppress_summary_errors():
        summary_updater = SummaryUpdater(
            connection, [(place, row) for place, (_, row, _values) in batch.rows]
        )
    for kind, group in groupby(_group_by_type(batch.rows), key=lambda one: one[1][0]):
        if use_savepoints:
            _write(connection, kind, list(group), rejections)
        else:
            _write_group(connection, kind, [ready for _, ready in group])
    with _suppress_summary_errors():
        if summary_updater is not None and (
            overviews := summary_updater.build_summaries(connection, rejections)
        ):
            execute_many(
                connection, _build_upsert(TABLE_MAPPINGS[RunSummaryRow], connection.dialect.name), overviews
            )
            summary_updater.count_runs(connection)
    return rejections


def _group_by_type(rows: list[tuple[int, _PreparedRow]]) -> list[tuple[int, _PreparedRow]]:
    """Sort rows by type if that does not change the outcome, so that many short runs need few statements.

    Each type has its own table, and the rows of a table keep their order. Batches are not sorted if they
    contain:

    - branches or snapshot deletions, which also change rows of other types;
    - a ClearRunRow after steps or snapshots of the same run.

    Otherwise all ClearRunRows come first.
    """
    kinds = dict.fromkeys(kind for _, (kind, _, _) in rows)
    if BranchRow in kinds or DropSnapshotsRow in kinds:
        return rows
    if ClearRunRow in kinds and _has_cleared_rows(rows):
        return rows
    ranks = {kind: rank for rank, kind in enumerate(kinds, 1)} | {ClearRunRow: 0}
    return sorted(rows, key=lambda one: ranks[one[1][0]])


def _has_cleared_rows(rows: list[tuple[int, _PreparedRow]]) -> bool:
    """Return whether a ClearRunRow follows steps or snapshots of the same run."""
    written: set[tuple[Any, Any]] = set()
    for _, (kind, _row, values) in rows:
        if kind is StepRow or kind is SnapshotRow:
            written.add((values["tenant"], values["run_id"]))
        elif kind is ClearRunRow and (values["tenant"], values["run_id"]) in written:
            return True
    return False


@contextmanager
def _suppress_summary_errors() -> Iterator[None]:
    """Log errors of run summaries, so that the rows are still written; re-raise database errors."""
    try:
        yield
    except (SQLAlchemyError, OSError):
        raise
    except Exception as error:
        _LOG.warning(
            "a run summary is out of date (%s): call Store.rebuild_run_summaries to rebuild it", error
        )


def _build_parameters(row: Row) -> dict[str, Any]:
    if type(row) in _WRITABLE_TYPES:
        return to_parameters(row)
    if isinstance(row, EffectRow):
        raise RowRejected("effects must be claimed, not written")
    if isinstance(row, ClearRunRow | DropSnapshotsRow):
        tenant = validate_id(row.tenant, "tenant", max_length=MAX_TENANT, allow_empty=True)
        return {"tenant": tenant, "run_id": validate_id(row.run_id, "run_id")}
    raise RowRejected("not a row of the store")


def _write(
    connection: Connection, kind: type[Row], group: list[tuple[int, _PreparedRow]], rejections: Rejections
) -> None:
    """Write rows of one type together; if that fails, write them one by one to find the invalid ones."""
    if kind not in _ROW_BY_ROW_TYPES:
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
            rejections[place] = f"{kind.__name__}: the database rejected it ({_describe_cause(error)})"


def _write_group(connection: Connection, kind: type[Row], group: list[_PreparedRow]) -> None:
    """Write rows of one type without savepoints; a rejected row raises an error."""
    if kind in _ROW_BY_ROW_TYPES:
        for ready in group:
            _write_one(connection, ready)
    else:
        _write_all(connection, kind, [values for _, _, values in group])


def _write_all(connection: Connection, kind: type[Row], values: list[dict[str, Any]]) -> None:
    if kind is ClearRunRow:
        _clear_runs(connection, values)
        return
    if kind is RunRow:
        values = _merge_run_rows(values)
    execute_many(connection, _build_upsert(TABLE_MAPPINGS[kind], connection.dialect.name), values)


def _clear_runs(connection: Connection, values: list[dict[str, Any]]) -> None:
    """Delete the steps, branches and snapshots of runs."""
    dialect = connection.dialect.name
    by_tenant: dict[str, list[str]] = {}
    for value in values:
        by_tenant.setdefault(value["tenant"], []).append(value["run_id"])
    parameters = [
        {"tenant": tenant, "ids": to_id_parameter(ids, dialect)} for tenant, ids in by_tenant.items()
    ]
    for statement in _CLEAR_STATEMENTS[dialect]:
        execute_many(connection, statement, parameters)


def _merge_run_rows(values: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Merge rows of the same run, which is written repeatedly while it is in progress."""
    merged_rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in values:
        key = row["tenant"], row["id"]
        earlier_row = merged_rows.get(key)
        merged_rows[key] = (
            row
            if earlier_row is None
            else row | {name: earlier_row[name] for name in TABLE_MAPPINGS[RunRow].preserved_columns}
        )
    return list(merged_rows.values())


def _write_one(connection: Connection, prepared_row: _PreparedRow) -> None:
    kind, row, values = prepared_row
    if kind is ClearRunRow:
        _write_all(connection, kind, [values])
        return
    if isinstance(row, DropSnapshotsRow):
        condition = and_(_match_run(SNAPSHOTS, values, "run_id"), SNAPSHOTS.c.step.in_(row.steps))
        connection.execute(delete(SNAPSHOTS).where(condition))
        return
    statement = _build_upsert(TABLE_MAPPINGS[kind], connection.dialect.name)
    row_count = connection.execute(statement, values, execution_options=PRESERVE_ROWCOUNT).rowcount
    # If the reply to a commit is lost, the branch is written again. It must not take later steps.
    if isinstance(row, BranchRow) and row.takes and row_count == 1:
        _move_steps_to_branch(connection, values)


def _move_steps_to_branch(connection: Connection, values: dict[str, Any]) -> None:
    """Move steps of the current branch, and the branches that forked from them, to the new branch."""
    moved_steps = and_(
        _match_run(STEPS, values, "run_id"), STEPS.c.line == "", STEPS.c.index >= values["fork_step"]
    )
    connection.execute(update(STEPS).where(moved_steps).values(line=values["id"]))
    later_branches = and_(
        _match_run(BRANCHES, values, "run_id"),
        BRANCHES.c.parent.is_(None),
        BRANCHES.c.id != values["id"],
        BRANCHES.c.fork_step > values["fork_step"],
    )
    connection.execute(update(BRANCHES).where(later_branches).values(parent=values["id"]))


def _match_run(table: Table, values: dict[str, Any], column: str) -> Any:
    return and_(table.c.tenant == values["tenant"], table.c[column] == values["run_id"])


@cache
def _build_upsert(mapping: TableMapping, dialect: str) -> Executable:
    # Both insert constructs have the same methods, but no common base class that declares them.
    insert: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement: Any = insert(mapping.table)
    keys = [column.name for column in mapping.table.primary_key.columns]
    if not mapping.replaces_existing:
        unless: Executable = statement.on_conflict_do_nothing(index_elements=keys)
        return unless
    new_row = statement.excluded
    columns = {
        c.name: new_row[c.name]
        for c in mapping.table.columns
        if c.name not in {*keys, *mapping.preserved_columns}
    }
    condition = (
        new_row[mapping.version_column] >= mapping.table.c[mapping.version_column]
        if mapping.version_column
        else None
    )
    upsert: Executable = statement.on_conflict_do_update(index_elements=keys, set_=columns, where=condition)
    return upsert


def _describe_cause(error: Exception) -> str:
    orig = getattr(error, "orig", None)
    return getattr(orig, "sqlstate", None) or type(orig or error).__name__
