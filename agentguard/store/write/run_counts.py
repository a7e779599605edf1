"""Numbers of runs by verdict, code, agent, model, tag and day.

The transaction that changes run summaries adds the differences to the table of counts. So the failures page
and the values of the filters read a few thousand counts and no summaries.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, Final, NamedTuple

from sqlalchemy import (
    ColumnElement,
    Connection,
    Executable,
    RowMapping,
    bindparam,
    delete,
    literal_column,
    select,
    text,
)
from sqlalchemy.dialects import postgresql, sqlite

from agentguard.store.db.compiled_statements import execute_many
from agentguard.store.db.run_summary import VerdictFilter, split_labels
from agentguard.store.db.tables import OVERVIEWS, RUN_COUNTS

DAY_S: Final = 86_400
NO_DAY: Final = -1
"""Day of counts that have none, and of runs with an implausible time."""
MAX_TIME_S: Final = 32_503_680_000  # the year 3000; later times come from a wrong clock
_ROWS_PER_FETCH: Final = 1_000
_KEY_COLUMNS: Final = ("tenant", "kind", "day", "name")
_SUMMARY = OVERVIEWS.c
_COUNTED_COLUMNS: Final = (
    _SUMMARY.tenant,
    _SUMMARY.began_at,
    _SUMMARY.verdict,
    _SUMMARY.code,
    _SUMMARY.agent,
    _SUMMARY.models,
    _SUMMARY.tags,
    _SUMMARY.known,
)


class CountKind(StrEnum):
    """Value by which runs are counted; the failed runs and the verdicts also by day."""

    VERDICT = "verdict"
    CODE = "code"
    AGENT = "agent"
    MODEL = "model"
    TAG = "tag"
    FAILED_CODE = "failed_code"
    FAILED_AGENT = "failed_agent"


class CountKey(NamedTuple):
    """Key of a count. ``day`` is the number of days from 1970-01-01 in UTC to the beginning of the runs."""

    tenant: str
    kind: str
    day: int
    name: str


class CountedValues(NamedTuple):
    """Values of a summary that determine the counts of its run."""

    tenant: str
    day: int
    verdict: str
    code: str
    agent: str
    models: str
    tags: str
    is_known: bool

    @classmethod
    def from_summary(cls, summary: Mapping[str, Any] | RowMapping) -> CountedValues:
        """Return the values of a summary, or of a row with at least its counted columns."""
        began_at = summary["began_at"]
        day = math.floor(began_at / DAY_S) if 0 <= began_at <= MAX_TIME_S else NO_DAY
        return cls(
            summary["tenant"],
            day,
            summary["verdict"],
            summary["code"],
            summary["agent"],
            summary["models"],
            summary["tags"],
            bool(summary["known"]),
        )

    def iter_keys(self) -> Iterator[CountKey]:
        """Yield the keys of the counts that contain the run."""
        if not self.is_known:
            return
        yield CountKey(self.tenant, CountKind.VERDICT, self.day, self.verdict)
        yield CountKey(self.tenant, CountKind.CODE, NO_DAY, self.code)
        yield CountKey(self.tenant, CountKind.AGENT, NO_DAY, self.agent)
        for kind, labels in ((CountKind.MODEL, self.models), (CountKind.TAG, self.tags)):
            for label in split_labels(labels):
                yield CountKey(self.tenant, kind, NO_DAY, label)
        if self.verdict == VerdictFilter.FAILED:
            yield CountKey(self.tenant, CountKind.FAILED_CODE, self.day, self.code)
            yield CountKey(self.tenant, CountKind.FAILED_AGENT, self.day, self.agent)


def apply_changes(
    connection: Connection, changes: Iterable[tuple[CountedValues | None, CountedValues | None]]
) -> None:
    """Update the counts: each change is a pair of old and new values; None if there is no such run.

    Call this at the end of the transaction. Counts are locked last, in the order of their keys, so that two
    transactions of PostgreSQL cannot wait for each other.
    """
    differences: Counter[CountKey] = Counter()
    for (before, after), runs in Counter(changes).items():  # most runs of a batch have the same values
        if before == after:
            continue
        if before is not None:
            for key in before.iter_keys():
                differences[key] -= runs
        if after is not None:
            for key in after.iter_keys():
                differences[key] += runs
    _add(connection, differences)


def delete_summaries(connection: Connection, condition: ColumnElement[bool]) -> list[CountedValues]:
    """Delete run summaries; return their values, which the caller passes to `apply_changes`."""
    deletion = delete(OVERVIEWS).where(condition).returning(*_COUNTED_COLUMNS)
    return [CountedValues.from_summary(row) for row in connection.execute(deletion).mappings()]


def recount_runs(connection: Connection) -> None:
    """Count all runs again. Other writers wait until the transaction ends."""
    if connection.dialect.name == "postgresql":
        connection.execute(text(f"LOCK TABLE {OVERVIEWS.name} IN SHARE MODE"))
    connection.execute(delete(RUN_COUNTS))
    counts: Counter[CountKey] = Counter()
    query = select(*_COUNTED_COLUMNS).where(_SUMMARY.known)
    for row in connection.execute(query.execution_options(yield_per=_ROWS_PER_FETCH)).mappings():
        counts.update(CountedValues.from_summary(row).iter_keys())
    _add(connection, counts)


def _add(connection: Connection, differences: Mapping[CountKey, int]) -> None:
    rows: list[dict[str, Any]] = [
        {**dict(zip(_KEY_COLUMNS, key, strict=True)), "runs": differences[key]}
        for key in sorted(differences)
        if differences[key]
    ]
    if not rows:
        return
    execute_many(connection, _build_addition(connection.dialect.name), rows)
    if decreased := [row for row in rows if row["runs"] < 0]:
        execute_many(connection, _DELETE_EMPTY, decreased)


@cache
def _build_addition(dialect: str) -> Executable:
    insert: Any = postgresql.insert if dialect == "postgresql" else sqlite.insert
    statement: Any = insert(RUN_COUNTS)
    addition: Executable = statement.on_conflict_do_update(
        index_elements=_KEY_COLUMNS,
        set_={"runs": RUN_COUNTS.c.runs + statement.excluded.runs},
    )
    return addition


_DELETE_EMPTY = delete(RUN_COUNTS).where(
    *(RUN_COUNTS.c[name] == bindparam(name) for name in _KEY_COLUMNS),
    RUN_COUNTS.c.runs == literal_column("0"),
)
