"""Failure statistics over time, by code and by agent, computed in the database."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Literal

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    RowMapping,
    cast,
    func,
    literal,
    select,
    union_all,
)

from agentguard.store.db.row_mapping import validate_query_tenant
from agentguard.store.db.run_summary import VerdictFilter
from agentguard.store.db.tables import OVERVIEWS, RECOVERIES, RUNS
from agentguard.store.store import Store

Bucket = Literal["day", "week"]

DAY_S: Final = 86_400
_BUCKET_WIDTHS_S: Final[Mapping[str, int]] = {"day": DAY_S, "week": 7 * DAY_S}
_FIRST_MONDAY_S: Final = 4 * DAY_S  # 1970-01-05, a Monday; days and weeks are in UTC
_MAX_TIME_S: Final = 32_503_680_000  # the year 3000; later times come from a wrong clock
_IDS_PER_QUERY: Final = 500
_MAX_NEWEST_FAILURES: Final = 500
_SUMMARY = OVERVIEWS.c


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureSeries:
    """Numbers of runs by time bucket, without empty buckets.

    Attributes:
        name: code or agent; empty if the diagnosis names none.
        total: sum over all buckets.
        counts: number of runs by start of the bucket in epoch seconds.
    """

    name: str
    total: int
    counts: Mapping[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureFrequencies:
    """Failed runs over time.

    Attributes:
        width_s: width of a bucket in seconds.
        starts: starts of all buckets from the first to the last with a run, in epoch seconds; empty without
            runs.
        runs, failed: all diagnosed runs, and those diagnosed as failed.
        codes, agents: failed runs by code and by agent, most frequent first, up to the limit.
    """

    width_s: int
    starts: tuple[int, ...] = ()
    runs: FailureSeries
    failed: FailureSeries
    codes: tuple[FailureSeries, ...] = ()
    agents: tuple[FailureSeries, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedRun:
    """Short description of a failed run."""

    run_id: str
    task: str
    step: int | None
    agent: str
    began_at: float
    code: str = ""
    recovered: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class FailureCodeGroup:
    """Number of failed runs of one code, and the latest of them."""

    code: str
    total: int
    latest: tuple[FailedRun, ...] = field(default=())


def count_failures_over_time(
    store: Store,
    *,
    bucket: Bucket = "week",
    since: float | None = None,
    max_series: int = 12,
    max_buckets: int = 120,
    tenant: str = "",
) -> FailureFrequencies:
    """Count runs by time, and the failed ones by code and by agent.

    Args:
        store: the store.
        bucket: width of a bucket.
        since: count only runs that began at or after this time, in epoch seconds.
        max_series: maximum number of codes and of agents.
        max_buckets: count only the latest N buckets.
        tenant: tenant that owns the runs.

    Raises:
        StoreUnavailable: the database cannot be read now.
    """
    width = _BUCKET_WIDTHS_S[bucket]
    offset = _FIRST_MONDAY_S if bucket == "week" else 0
    conditions = [
        _SUMMARY.tenant == validate_query_tenant(tenant),
        _SUMMARY.known.is_(True),
        _SUMMARY.verdict != "",
        _SUMMARY.began_at.between(0, _MAX_TIME_S),
    ]
    with store.begin_read() as connection:
        latest_time = connection.execute(select(func.max(_SUMMARY.began_at)).where(*conditions)).scalar()
        if latest_time is None:
            empty = FailureSeries(name="", total=0, counts={})
            return FailureFrequencies(width_s=width, runs=empty, failed=empty)
        earliest = _compute_bucket_start(latest_time, width, offset) - (max_buckets - 1) * width
        conditions.append(_SUMMARY.began_at >= max(earliest, since if since is not None else earliest))
        counted = _count_runs(connection, build_bucket_expression(connection, width, offset), conditions)
    codes, agents = (
        _build_failure_series([row for row in counted if row["column"] == name], width, offset)
        for name in ("code", "agent")
    )
    verdicts = [row for row in counted if row["column"] == "verdict"]
    failed_verdicts = [row for row in verdicts if row["name"] == VerdictFilter.FAILURE]
    runs, failed_runs = (
        FailureSeries(name="", total=counts.total(), counts=dict(counts))
        for counts in (_sum_by_bucket(rows, width, offset) for rows in (verdicts, failed_verdicts))
    )
    first_start, end = min(runs.counts, default=0), max(runs.counts, default=-width)
    return FailureFrequencies(
        width_s=width,
        starts=tuple(range(first_start, end + 1, width)),
        runs=runs,
        failed=failed_runs,
        codes=codes[:max_series],
        agents=agents[:max_series],
    )


def count_failures_by_agent_and_code(
    store: Store, agents: Sequence[str], codes: Sequence[str], *, since: float = 0, tenant: str = ""
) -> Mapping[tuple[str, str], int]:
    """Return the number of failed runs by agent of the root cause and code, without zeros.

    Args:
        store: the store.
        agents, codes: names to count.
        since: count only runs that began at or after this time, in epoch seconds.
        tenant: tenant that owns the runs.

    Raises:
        StoreUnavailable: the database cannot be read now.
    """
    query = (
        select(_SUMMARY.agent, _SUMMARY.code, func.count().label("runs"))
        .where(
            _SUMMARY.tenant == validate_query_tenant(tenant),
            _SUMMARY.known.is_(True),
            _SUMMARY.verdict == VerdictFilter.FAILURE.value,
            _SUMMARY.began_at.between(since, _MAX_TIME_S),
            _SUMMARY.agent.in_(agents),
            _SUMMARY.code.in_(codes),
        )
        .group_by(_SUMMARY.agent, _SUMMARY.code)
    )
    with store.begin_read() as connection:
        return {(row.agent, row.code): int(row.runs) for row in connection.execute(query)}


def group_failures_by_code(
    store: Store, *, examples_per_code: int = 5, tenant: str = ""
) -> tuple[FailureCodeGroup, ...]:
    """Return failed runs by code, most frequent first, each with its latest runs."""
    conditions = (
        _SUMMARY.tenant == validate_query_tenant(tenant),
        _SUMMARY.known.is_(True),
        _SUMMARY.verdict == VerdictFilter.FAILURE.value,
    )
    number = func.count().label("total")
    with store.begin_read() as connection:
        counted = connection.execute(select(_SUMMARY.code, number).where(*conditions).group_by(_SUMMARY.code))
        totals = {row.code: int(row.total) for row in counted}
        latest_ids = _list_latest_failures(connection, conditions, totals, max(0, examples_per_code))
    failed_runs = find_failed_runs(store, chain.from_iterable(latest_ids.values()), tenant=tenant)
    ordered = sorted(totals.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple(
        FailureCodeGroup(
            code=code,
            total=total,
            latest=tuple(failed_runs[id] for id in latest_ids.get(code, ()) if id in failed_runs),
        )
        for code, total in ordered
    )


def _list_latest_failures(
    connection: Connection,
    conditions: Sequence[ColumnElement[bool]],
    totals: Mapping[str, int],
    examples_per_code: int,
) -> dict[str, list[str]]:
    """Return the ids of the latest failed runs by code, latest first.

    The newest runs come from an index. Only of codes that are rare among them, all failed runs are ranked.
    """
    order = (_SUMMARY.began_at.desc(), _SUMMARY.run_id)
    newest = select(_SUMMARY.run_id, _SUMMARY.code).where(*conditions).order_by(*order)
    latest: dict[str, list[str]] = {}
    for row in connection.execute(newest.limit(_MAX_NEWEST_FAILURES)):
        if len(ids := latest.setdefault(row.code, [])) < examples_per_code:
            ids.append(row.run_id)
    rare = [
        code for code, total in totals.items() if len(latest.get(code, ())) < min(total, examples_per_code)
    ]
    if rare:
        rank = func.row_number().over(partition_by=_SUMMARY.code, order_by=order).label("rank")
        ranked = (
            select(_SUMMARY.run_id, _SUMMARY.code, rank)
            .where(*conditions, _SUMMARY.code.in_(rare))
            .subquery()
        )
        query = select(ranked).where(ranked.c.rank <= examples_per_code).order_by(ranked.c.rank)
        latest |= {code: [] for code in rare}
        for row in connection.execute(query):
            latest[row.code].append(row.run_id)
    return latest


def find_failed_runs(store: Store, ids: Iterable[str], *, tenant: str = "") -> dict[str, FailedRun]:
    """Return those of the runs ``ids`` that are in the store and diagnosed as failed, by id."""
    failed_runs: dict[str, FailedRun] = {}
    with store.begin_read() as connection:
        for part in _split_ids(ids):
            query = select(*_FAILED_RUN_COLUMNS).where(
                _SUMMARY.tenant == validate_query_tenant(tenant),
                _SUMMARY.known.is_(True),
                _SUMMARY.verdict == VerdictFilter.FAILURE.value,
                _SUMMARY.run_id.in_(part),
            )
            failed_runs |= {
                row["run_id"]: _to_failed_run(row) for row in connection.execute(query).mappings()
            }
    return failed_runs


def list_runs_by_schema(store: Store, *, tenant: str = "") -> dict[str, tuple[str, ...]]:
    """Return the runs whose recovery used a schema, by schema."""
    table = RECOVERIES.c
    query = select(table.schema_id, table.run_id).where(
        table.tenant == validate_query_tenant(tenant), table.schema_id != ""
    )
    runs_by_schema: dict[str, list[str]] = {}
    with store.begin_read() as connection:
        for schema, run in connection.execute(query.distinct().order_by(table.schema_id, table.run_id)):
            runs_by_schema.setdefault(schema, []).append(run)
    return {schema: tuple(runs) for schema, runs in runs_by_schema.items()}


def get_run_lengths(store: Store, ids: Iterable[str], *, tenant: str = "") -> dict[str, int]:
    """Return the numbers of steps of those of the runs ``ids`` that are in the store."""
    lengths: dict[str, int] = {}
    with store.begin_read() as connection:
        for part in _split_ids(ids):
            query = select(RUNS.c.id, RUNS.c.length).where(
                RUNS.c.tenant == validate_query_tenant(tenant), RUNS.c.id.in_(part)
            )
            lengths |= {id: int(length) for id, length in connection.execute(query)}
    return lengths


_FAILED_RUN_COLUMNS = (
    _SUMMARY.run_id,
    _SUMMARY.task,
    _SUMMARY.step,
    _SUMMARY.agent,
    _SUMMARY.began_at,
    _SUMMARY.code,
    _SUMMARY.recovered,
)


def _to_failed_run(row: Mapping[Any, Any]) -> FailedRun:
    return FailedRun(**{column.name: row[column.name] for column in _FAILED_RUN_COLUMNS})


def _split_ids(ids: Iterable[str]) -> Iterable[list[str]]:
    unique_ids = list(dict.fromkeys(ids))
    return (unique_ids[start : start + _IDS_PER_QUERY] for start in range(0, len(unique_ids), _IDS_PER_QUERY))


def build_bucket_expression(connection: Connection, width: int, offset: int) -> ColumnElement[int]:
    """Return the SQL expression of a run's bucket; SQLite may lack floor(), but its CAST truncates."""
    share = (_SUMMARY.began_at - offset) / width
    return cast(func.floor(share) if connection.dialect.name == "postgresql" else share, BigInteger)


def _compute_bucket_start(time: float, width: int, offset: int) -> int:
    return int((time - offset) // width) * width + offset


def _count_runs(
    connection: Connection, bucket: ColumnElement[int], conditions: Sequence[ColumnElement[bool]]
) -> Sequence[RowMapping]:
    """Count runs by bucket and verdict, and the failed ones by bucket and code, and by bucket and agent.

    The database reads the summaries once, and returns no combinations of codes and agents, which are many.
    """
    keys = (bucket.label("bucket"), _SUMMARY.verdict, _SUMMARY.code, _SUMMARY.agent)
    counted = select(*keys, func.count().label("runs")).where(*conditions).group_by(*keys).cte("counted")
    queries = []
    for name in ("verdict", "code", "agent"):
        columns = (counted.c.bucket, counted.c[name])
        query = select(
            literal(name).label("column"),
            counted.c.bucket,
            counted.c[name].label("name"),
            func.sum(counted.c.runs).label("runs"),
        ).group_by(*columns)
        queries.append(
            query if name == "verdict" else query.where(counted.c.verdict == VerdictFilter.FAILURE.value)
        )
    return connection.execute(union_all(*queries)).mappings().all()


def _sum_by_bucket(rows: Iterable[RowMapping], width: int, offset: int) -> Counter[int]:
    """Return the number of runs by start of the bucket."""
    counts: Counter[int] = Counter()
    for row in rows:
        counts[int(row["bucket"]) * width + offset] += int(row["runs"])
    return counts


def _build_failure_series(rows: Sequence[RowMapping], width: int, offset: int) -> tuple[FailureSeries, ...]:
    """Return a series of failed runs for each name, most frequent first."""
    rows_by_name: dict[str, list[RowMapping]] = {}
    for row in rows:
        rows_by_name.setdefault(row["name"], []).append(row)
    counts_by_name = {name: _sum_by_bucket(group, width, offset) for name, group in rows_by_name.items()}
    series = (
        FailureSeries(name=name, total=counts.total(), counts=dict(counts))
        for name, counts in counts_by_name.items()
    )
    return tuple(sorted(series, key=lambda one: (-one.total, one.name)))
