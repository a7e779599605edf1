"""Maintenance of run summaries in the transaction that writes the rows of the runs.

The usage of steps is added incrementally, so that the cost does not grow with the length of a run. Only a
step that replaces another is compared with it. Findings, recoveries and judgements are recounted.
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
from agentguard.store.db.compiled_statements import execute_many, execute_query, match_any_id, to_id_parameter
from agentguard.store.db.payload import decode_payload
from agentguard.store.db.row_mapping import to_row
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
from agentguard.store.write.run_counts import CountedValues, apply_changes
from agentguard.store.write.summary_aggregation import (
    NO_USAGE,
    SummaryValues,
    UsageTotals,
    add_diagnosis,
    add_run,
    add_step,
    build_blank_summary,
    count_steps_through,
    extract_usage,
    reset_steps,
    summarize_judgements,
    summarize_recoveries,
)

RunKey = tuple[str, str]
"""Tenant and run id."""

# Built once, because building a statement takes longer than executing it. SQLite locks the whole file, so its
# dialect omits FOR UPDATE. PostgreSQL locks the rows in a fixed order, so that two writers cannot deadlock.
_SUMMARY_COLUMNS = tuple(OVERVIEWS.c.keys())
_SELECT_FOR_UPDATE = (
    select(OVERVIEWS)
    .where(OVERVIEWS.c.tenant == bindparam("tenant"))
    .with_for_update()
    .order_by(OVERVIEWS.c.run_id)
)
_LOCK_STATEMENTS = {
    name: _SELECT_FOR_UPDATE.where(match_any_id(OVERVIEWS.c.run_id, name))
    for name in ("sqlite", "postgresql")
}
_INSERT_MISSING = postgresql.insert(OVERVIEWS).on_conflict_do_nothing()

_StepKey = tuple[str, int]
"""Branch and index of a step."""

_RECOUNTED_TYPES = (r.FindingRow, r.RecoveryRow, r.JudgementRow)
_GET_RUN_KEY: Callable[[Any], RunKey] = attrgetter("tenant", "run_id")
_KEY_GETTERS: dict[type[r.Row], Callable[[Any], RunKey]] = {
    r.RunRow: attrgetter("tenant", "id"),
    **dict.fromkeys((r.StepRow, r.BranchRow, r.ClearRunRow, r.DiagnosisRow, *_RECOUNTED_TYPES), _GET_RUN_KEY),
}
"""Functions that return the run of a row, for the row types that change a summary."""


class SummaryUpdater:
    """Update of the summaries that a batch of rows changes; create it before the rows are written.

    Args:
        connection: connection in the transaction that will write the rows.
        batch: the rows with their positions, in order.
    """

    def __init__(self, connection: Connection, batch: Iterable[tuple[int, r.Row]]) -> None:
        self._batch = [
            (place, row, key)
            for place, row in batch
            if (key_of := _KEY_GETTERS.get(type(row))) is not None and (key := key_of(row))[1]
        ]
        self._summaries = _load_summaries(connection, self._batch) if self._batch else {}
        self._counted = {key: CountedValues.from_summary(one) for key, one in self._summaries.items()}
        self._replaced_usage: dict[RunKey, dict[_StepKey, UsageTotals]] = {}
        self._existing_branches: set[tuple[str, str, str]] = set()
        if self._batch:
            self._load_replaced(connection)

    def _load_replaced(self, connection: Connection) -> None:
        """Load the branches that already exist, and the usage of the steps that the batch replaces."""
        forks = [(*key, row.id) for _, row, key in self._batch if isinstance(row, r.BranchRow) and row.takes]
        if forks:
            branch = (BRANCHES.c.tenant, BRANCHES.c.run_id, BRANCHES.c.id)
            rows_of_forks = connection.execute(select(*branch).where(tuple_(*branch).in_(forks)))
            self._existing_branches = {(row.tenant, row.run_id, row.id) for row in rows_of_forks}
        if replaced := self._find_replaced_steps():
            columns = (STEPS.c.tenant, STEPS.c.run_id, STEPS.c.line, STEPS.c.index)
            rows = connection.execute(
                select(*columns, STEPS.c.data).where(tuple_(*columns).in_(sorted(replaced)))
            )
            for tenant, run_id, line, index, data in rows:
                self._replaced_usage.setdefault((tenant, run_id), {})[line, index] = _decode_usage(data)

    def _find_replaced_steps(self) -> set[tuple[str, str, str, int]]:
        """Return the steps that may replace stored ones: all except those that extend the current branch."""
        lengths = {key: summary["steps"] for key, summary in self._summaries.items()}
        cleared: set[RunKey] = set()
        replaced_steps: set[tuple[str, str, str, int]] = set()
        for _, row, key in self._batch:
            if isinstance(row, r.StepRow):
                if key in cleared:
                    continue
                if row.line or row.index < lengths[key]:
                    replaced_steps.add((*key, row.line, row.index))
                else:
                    lengths[key] = row.index + 1
            elif isinstance(row, r.ClearRunRow):
                cleared.add(key)
            elif isinstance(row, r.BranchRow) and self._takes_steps(row):
                lengths[key] = min(lengths[key], row.fork_step)
        return replaced_steps

    def _takes_steps(self, row: r.BranchRow) -> bool:
        """Return whether a branch takes steps; an existing branch that is written again does not."""
        return row.takes and (row.tenant, row.run_id, row.id) not in self._existing_branches

    def build_summaries(self, connection: Connection, rejections: Mapping[int, str]) -> list[SummaryValues]:
        """Return the summaries after the batch was written, without the rejected rows."""
        counted: dict[type[r.Row], set[RunKey]] = {kind: set() for kind in _RECOUNTED_TYPES}
        forked: set[RunKey] = set()
        for place, row, key in self._batch:
            if place in rejections:
                continue
            self._apply_row(row, key)
            if isinstance(row, _RECOUNTED_TYPES):
                counted[type(row)].add(key)
            elif isinstance(row, r.BranchRow) and self._takes_steps(row):
                forked.add(key)
        stale_keys = {key for key, summary in self._summaries.items() if summary["stale"]}
        recount_rows(connection, self._summaries, {kind: keys - stale_keys for kind, keys in counted.items()})
        recount_steps(connection, self._summaries, forked - stale_keys)
        if stale_keys:
            self._summaries |= rebuild_summaries(connection, stale_keys)
        now = time.time()
        for summary in self._summaries.values():
            summary["updated_at"] = now
        return list(self._summaries.values())

    def count_runs(self, connection: Connection) -> None:
        """Update the counts of runs after the summaries of `build_summaries` were written."""
        apply_changes(
            connection,
            (
                (before, CountedValues.from_summary(self._summaries[key]))
                for key, before in self._counted.items()
            ),
        )

    def _apply_row(self, row: r.Row, key: RunKey) -> None:
        summary = self._summaries[key]
        if isinstance(row, r.StepRow):
            replaced_usage, step = self._replaced_usage.setdefault(key, {}), (row.line, row.index)
            replaced_usage[step] = add_step(summary, row, replaced_usage.get(step, NO_USAGE))
        elif isinstance(row, r.RunRow):
            add_run(summary, row)
        elif isinstance(row, r.DiagnosisRow):
            add_diagnosis(summary, row)
        elif isinstance(row, r.ClearRunRow):
            reset_steps(summary)
            self._replaced_usage.pop(key, None)
        elif isinstance(row, r.BranchRow) and self._takes_steps(row):
            replaced_usage = self._replaced_usage.get(key, {})
            for step in [place for place in replaced_usage if not place[0] and place[1] >= row.fork_step]:
                del replaced_usage[step]  # the step is on the branch now, so a new step replaces nothing


def _decode_usage(packed: bytes) -> UsageTotals:
    """Return the usage of a stored step; empty if its data is damaged."""
    try:
        return extract_usage(decode_payload(packed)[0])
    except StoreError:
        return UsageTotals()


def rebuild_summaries(connection: Connection, keys: Iterable[RunKey]) -> dict[RunKey, SummaryValues]:
    """Rebuild the summaries from all rows of these runs; runs that do not exist are left out."""
    summaries: dict[RunKey, SummaryValues] = {}
    for tenant, run_id in sorted(keys):
        query = select(RUNS).where(RUNS.c.tenant == tenant, RUNS.c.id == run_id)
        run_row = connection.execute(query).mappings().first()
        if run_row is None:
            continue
        run = to_row(r.RunRow, run_row)
        summary = summaries[tenant, run_id] = build_blank_summary(tenant, run_id, run.created_at)
        add_run(summary, run)
        for row in connection.execute(
            _select_for_runs(STEPS, tenant, [run_id]).order_by(STEPS.c.index)
        ).mappings():
            add_step(summary, to_row(r.StepRow, row))
        for row in connection.execute(_select_for_runs(DIAGNOSES, tenant, [run_id])).mappings():
            add_diagnosis(summary, to_row(r.DiagnosisRow, row))
    recount_rows(connection, summaries, {kind: set(summaries) for kind in _RECOUNTED_TYPES})
    return summaries


def recount_rows(
    connection: Connection,
    summaries: dict[RunKey, SummaryValues],
    keys_by_type: Mapping[type[r.Row], Iterable[RunKey]],
) -> None:
    """Recount findings, recoveries and judgements of the runs given for each type."""
    for tenant, ids in _group_by_tenant(keys_by_type[r.FindingRow]).items():
        column = FINDINGS.c.run_id
        query = select(column, func.count()).where(FINDINGS.c.tenant == tenant, column.in_(ids))
        for run_id, number in connection.execute(query.group_by(column)):
            summaries[tenant, run_id]["findings"] = number
    for tenant, ids in _group_by_tenant(keys_by_type[r.RecoveryRow]).items():
        outcomes: dict[str, list[str]] = {}
        for row in connection.execute(_select_in_order(RECOVERIES, tenant, ids)).mappings():
            outcomes.setdefault(row["run_id"], []).append(row["outcome"])
        for run_id, run_outcomes in outcomes.items():
            summary = summaries[tenant, run_id]
            summary["recoveries"], summary["recovered"] = summarize_recoveries(run_outcomes)
    for tenant, ids in _group_by_tenant(keys_by_type[r.JudgementRow]).items():
        judgements: dict[str, list[r.JudgementRow]] = {}
        for row in connection.execute(_select_in_order(JUDGEMENTS, tenant, ids)).mappings():
            judgements.setdefault(row["run_id"], []).append(to_row(r.JudgementRow, row))
        for run_id, run_judgements in judgements.items():
            summaries[tenant, run_id]["judged"] = summarize_judgements(run_judgements)


def recount_steps(
    connection: Connection, summaries: dict[RunKey, SummaryValues], keys: Iterable[RunKey]
) -> None:
    """Recount the steps of the current branches, as only the table shows which steps a branch took."""
    for tenant, ids in _group_by_tenant(keys).items():
        column = STEPS.c.run_id
        query = select(column, func.max(STEPS.c.index)).where(
            STEPS.c.tenant == tenant, STEPS.c.line == "", column.in_(ids)
        )
        last_steps = {row.run_id: row[1] for row in connection.execute(query.group_by(column))}
        for run_id in ids:
            summaries[tenant, run_id]["steps"] = count_steps_through(last_steps.get(run_id, -1))


def _load_summaries(
    connection: Connection, batch: Iterable[tuple[int, r.Row, RunKey]]
) -> dict[RunKey, SummaryValues]:
    """Load and lock the summaries of these runs until the transaction ends; new runs get blank ones."""
    first_times: dict[RunKey, float] = {}
    for _, row, key in batch:
        first_times.setdefault(key, row.created_at)
    existing = _lock_summaries(connection, first_times)
    new_summaries = {
        key: build_blank_summary(*key, created_at)
        for key, created_at in first_times.items()
        if key not in existing
    }
    if new_summaries and connection.dialect.name == "postgresql":
        # Another process may write rows of the same new run: the insert makes both lock the same row.
        execute_many(connection, _INSERT_MISSING, [new_summaries[key] for key in sorted(new_summaries)])
        new_summaries |= _lock_summaries(connection, new_summaries)
    return new_summaries | existing


def _lock_summaries(connection: Connection, keys: Iterable[RunKey]) -> dict[RunKey, SummaryValues]:
    summaries: dict[RunKey, SummaryValues] = {}
    dialect = connection.dialect.name
    for tenant, ids in sorted(_group_by_tenant(keys).items()):
        for row in execute_query(
            connection, _LOCK_STATEMENTS[dialect], {"tenant": tenant, "ids": to_id_parameter(ids, dialect)}
        ):
            summary = dict(zip(_SUMMARY_COLUMNS, row, strict=True))
            summaries[tenant, summary["run_id"]] = summary
    return summaries


def _group_by_tenant(keys: Iterable[RunKey]) -> dict[str, list[str]]:
    ids_by_tenant: dict[str, list[str]] = {}
    for tenant, run_id in keys:
        ids_by_tenant.setdefault(tenant, []).append(run_id)
    return ids_by_tenant


def _select_for_runs(table: Table, tenant: str, ids: Sequence[str]) -> Any:
    return select(table).where(table.c.tenant == tenant, table.c.run_id.in_(ids))


def _select_in_order(table: Table, tenant: str, ids: Sequence[str]) -> Any:
    return _select_for_runs(table, tenant, ids).order_by(table.c.created_at, table.c.id)
