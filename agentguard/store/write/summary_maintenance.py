"""Keeps the overviews of runs up to date, in the transaction in which the runs' own rows are written.

What steps use is added as they come, so that a long run costs no more than a short one: only a step that
takes another's place is compared with it. Rows that are few a run (recoveries, judgements) are counted anew.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from sqlalchemy import Connection, Table, bindparam, func, select, tuple_
from sqlalchemy.dialects import postgresql

from agentguard.errors import StoreError
from agentguard.store.db import rows as r
from agentguard.store.db.payload import unpack
from agentguard.store.db.row_mapping import to_row
from agentguard.store.db.statements import any_id, ask, execute_all, ids_given
from agentguard.store.db.tables import (
    BRANCHES,
    DIAGNOSES,
    FINDINGS,
    JUDGEMENTS,
    OVERVIEWS,
    RECOVERIES,
    RUNS,
    STEPS,
)
from agentguard.store.write.summary_updates import (
    NOTHING,
    Held,
    UsageTotals,
    add_diagnosis,
    add_run,
    add_step,
    blank,
    forget_steps,
    judged,
    recovered,
    spent_by,
    steps_to,
)

Key = tuple[str, str]
"""Tenant and run."""

# Built once: to build a statement costs more than to carry it out. SQLite passes over FOR UPDATE, as it locks
# the whole file; in PostgreSQL rows are locked in one order, so that two writers never wait for each other.
_COLUMNS = tuple(OVERVIEWS.c.keys())
_OF_TENANT = (
    select(OVERVIEWS)
    .where(OVERVIEWS.c.tenant == bindparam("tenant"))
    .with_for_update()
    .order_by(OVERVIEWS.c.run_id)
)
_LOCK = {name: _OF_TENANT.where(any_id(OVERVIEWS.c.run_id, name)) for name in ("sqlite", "postgresql")}
_ADD_NEW = postgresql.insert(OVERVIEWS).on_conflict_do_nothing()

_Line = tuple[str, int]
"""A step of a run: its line and index."""

_COUNTED = (r.FindingRow, r.RecoveryRow, r.JudgementRow)
_OF_RUN: Callable[[Any], Key] = attrgetter("tenant", "run_id")
_KEYS: dict[type[r.Row], Callable[[Any], Key]] = {
    r.RunRow: attrgetter("tenant", "id"),
    **dict.fromkeys((r.StepRow, r.BranchRow, r.ClearRow, r.DiagnosisRow, *_COUNTED), _OF_RUN),
}
"""How to tell the run of a row that changes an overview."""


class SummaryUpdater:
    """The overviews that a batch of rows changes; made before the rows are written.

    Args:
        connection: in the transaction in which they will be.
        batch: the rows with their positions, in order.
    """

    def __init__(self, connection: Connection, batch: Iterable[tuple[int, r.Row]]) -> None:
        self._batch = [
            (place, row, key)
            for place, row in batch
            if (key_of := _KEYS.get(type(row))) is not None and (key := key_of(row))[1]
        ]
        self._held = _load(connection, self._batch) if self._batch else {}
        self._old: dict[Key, dict[_Line, UsageTotals]] = {}
        self._forked: set[tuple[str, str, str]] = set()
        if self._batch:
            self._look(connection)

    def _look(self, connection: Connection) -> None:
        """Find what the batch replaces: branches that are there, and what steps used that others replace."""
        forks = [(*key, row.id) for _, row, key in self._batch if isinstance(row, r.BranchRow) and row.takes]
        if forks:
            branch = (BRANCHES.c.tenant, BRANCHES.c.run_id, BRANCHES.c.id)
            there = connection.execute(select(*branch).where(tuple_(*branch).in_(forks)))
            self._forked = {(row.tenant, row.run_id, row.id) for row in there}
        if replaced := self._replaced():
            columns = (STEPS.c.tenant, STEPS.c.run_id, STEPS.c.line, STEPS.c.index)
            found = connection.execute(
                select(*columns, STEPS.c.data).where(tuple_(*columns).in_(sorted(replaced)))
            )
            for tenant, run_id, line, index, data in found:
                self._old.setdefault((tenant, run_id), {})[line, index] = _spent(data)

    def _replaced(self) -> set[tuple[str, str, str, int]]:
        """Steps that may take the place of others: all but those that follow the last one."""
        length = {key: held["steps"] for key, held in self._held.items()}
        cleared: set[Key] = set()
        found: set[tuple[str, str, str, int]] = set()
        for _, row, key in self._batch:
            if isinstance(row, r.StepRow):
                if key in cleared:
                    continue
                if row.line or row.index < length[key]:
                    found.add((*key, row.line, row.index))
                else:
                    length[key] = row.index + 1
            elif isinstance(row, r.ClearRow):
                cleared.add(key)
            elif isinstance(row, r.BranchRow) and self._takes(row):
                length[key] = min(length[key], row.fork_step)
        return found

    def _takes(self, row: r.BranchRow) -> bool:
        """Whether the branch takes steps now: written again after a lost answer it does not."""
        return row.takes and (row.tenant, row.run_id, row.id) not in self._forked

    def rows(self, connection: Connection, refused: Mapping[int, str]) -> list[Held]:
        """The overviews as they are with the batch, after it was written; ``refused`` rows were not."""
        counted: dict[type[r.Row], set[Key]] = {kind: set() for kind in _COUNTED}
        forked: set[Key] = set()
        for place, row, key in self._batch:
            if place in refused:
                continue
            self._add(row, key)
            if isinstance(row, _COUNTED):
                counted[type(row)].add(key)
            elif isinstance(row, r.BranchRow) and self._takes(row):
                forked.add(key)
        stale = {key for key, held in self._held.items() if held["stale"]}
        count(connection, self._held, {kind: keys - stale for kind, keys in counted.items()})
        count_steps(connection, self._held, forked - stale)
        if stale:
            self._held |= rebuilt(connection, stale)
        now = time.time()
        for held in self._held.values():
            held["updated_at"] = now
        return list(self._held.values())

    def _add(self, row: r.Row, key: Key) -> None:
        held = self._held[key]
        if isinstance(row, r.StepRow):
            old, step = self._old.setdefault(key, {}), (row.line, row.index)
            old[step] = add_step(held, row, old.get(step, NOTHING))
        elif isinstance(row, r.RunRow):
            add_run(held, row)
        elif isinstance(row, r.DiagnosisRow):
            add_diagnosis(held, row)
        elif isinstance(row, r.ClearRow):
            forget_steps(held)
            self._old.pop(key, None)
        elif isinstance(row, r.BranchRow) and self._takes(row):
            old = self._old.get(key, {})
            for step in [one for one in old if not one[0] and one[1] >= row.fork_step]:
                del old[step]  # now the branch's: what comes in its place replaces nothing


def _spent(packed: bytes) -> UsageTotals:
    """What a stored step used; nothing where it is damaged."""
    try:
        return spent_by(unpack(packed)[0])
    except StoreError:
        return UsageTotals()


def rebuilt(connection: Connection, keys: Iterable[Key]) -> dict[Key, Held]:
    """Overviews made anew from all rows of these runs; runs that are not there are left out."""
    made: dict[Key, Held] = {}
    for tenant, run_id in sorted(keys):
        query = select(RUNS).where(RUNS.c.tenant == tenant, RUNS.c.id == run_id)
        found = connection.execute(query).mappings().first()
        if found is None:
            continue
        run = to_row(r.RunRow, found)
        held = made[tenant, run_id] = blank(tenant, run_id, run.created_at)
        add_run(held, run)
        for one in connection.execute(_of(STEPS, tenant, [run_id]).order_by(STEPS.c.index)).mappings():
            add_step(held, to_row(r.StepRow, one))
        for one in connection.execute(_of(DIAGNOSES, tenant, [run_id])).mappings():
            add_diagnosis(held, to_row(r.DiagnosisRow, one))
    count(connection, made, {kind: set(made) for kind in _COUNTED})
    return made


def count(
    connection: Connection, held: dict[Key, Held], counted: Mapping[type[r.Row], Iterable[Key]]
) -> None:
    """Count findings, recoveries and judgements anew, of the runs given for each."""
    for tenant, ids in _by_tenant(counted[r.FindingRow]).items():
        column = FINDINGS.c.run_id
        query = select(column, func.count()).where(FINDINGS.c.tenant == tenant, column.in_(ids))
        for run_id, number in connection.execute(query.group_by(column)):
            held[tenant, run_id]["findings"] = number
    for tenant, ids in _by_tenant(counted[r.RecoveryRow]).items():
        outcomes: dict[str, list[str]] = {}
        for one in connection.execute(_ordered(RECOVERIES, tenant, ids)).mappings():
            outcomes.setdefault(one["run_id"], []).append(one["outcome"])
        for run_id, found in outcomes.items():
            made = held[tenant, run_id]
            made["recoveries"], made["recovered"] = recovered(found)
    for tenant, ids in _by_tenant(counted[r.JudgementRow]).items():
        given: dict[str, list[r.JudgementRow]] = {}
        for one in connection.execute(_ordered(JUDGEMENTS, tenant, ids)).mappings():
            given.setdefault(one["run_id"], []).append(to_row(r.JudgementRow, one))
        for run_id, said in given.items():
            held[tenant, run_id]["judged"] = judged(said)


def count_steps(connection: Connection, held: dict[Key, Held], keys: Iterable[Key]) -> None:
    """Count the live steps of runs anew: which of them a branch took, only the table knows for sure."""
    for tenant, ids in _by_tenant(keys).items():
        column = STEPS.c.run_id
        query = select(column, func.max(STEPS.c.index)).where(
            STEPS.c.tenant == tenant, STEPS.c.line == "", column.in_(ids)
        )
        last = {found.run_id: found[1] for found in connection.execute(query.group_by(column))}
        for run_id in ids:
            held[tenant, run_id]["steps"] = steps_to(last.get(run_id, -1))


def _load(connection: Connection, batch: Iterable[tuple[int, r.Row, Key]]) -> dict[Key, Held]:
    """The overviews of the runs of these rows, locked until the transaction ends; new ones are blank."""
    first: dict[Key, float] = {}
    for _, row, key in batch:
        first.setdefault(key, row.created_at)
    held = _locked(connection, first)
    new = {key: blank(*key, at) for key, at in first.items() if key not in held}
    if new and connection.dialect.name == "postgresql":
        # Another process may write rows of the same new run: both go on from one row, one after the other.
        execute_all(connection, _ADD_NEW, [new[key] for key in sorted(new)])
        new |= _locked(connection, new)
    return new | held


def _locked(connection: Connection, keys: Iterable[Key]) -> dict[Key, Held]:
    found: dict[Key, Held] = {}
    dialect = connection.dialect.name
    for tenant, ids in sorted(_by_tenant(keys).items()):
        for one in ask(connection, _LOCK[dialect], {"tenant": tenant, "ids": ids_given(ids, dialect)}):
            held = dict(zip(_COLUMNS, one, strict=True))
            found[tenant, held["run_id"]] = held
    return found


def _by_tenant(keys: Iterable[Key]) -> dict[str, list[str]]:
    by: dict[str, list[str]] = {}
    for tenant, run_id in keys:
        by.setdefault(tenant, []).append(run_id)
    return by


def _of(table: Table, tenant: str, ids: Sequence[str]) -> Any:
    return select(table).where(table.c.tenant == tenant, table.c.run_id.in_(ids))


def _ordered(table: Table, tenant: str, ids: Sequence[str]) -> Any:
    return _of(table, tenant, ids).order_by(table.c.created_at, table.c.id)
