"""Failure statistics over time, by code and by agent, computed in the database."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Literal

from sqlalchemy import BigInteger, ColumnElement, Connection, and_, cast, func, or_, select

from agentguard.store.db.row_mapping import validate_query_tenant
from agentguard.store.db.run_summary import VerdictFilter
from agentguard.store.db.tables import OVERVIEWS, RECOVERIES, RUN_COUNTS, RUNS
from agentguard.store.store import Store
from agentguard.store.write.run_counts import DAY_S, MAX_TIME_S, NO_DAY, CountKind

Bucket = Literal["day", "week"]

_BUCKET_DAYS: Final[Mapping[str, tuple[int, int]]] = {"day": (1, 0), "week": (7, 3)}
"""Days in a bucket, and days from the beginning of its first bucket to 1970-01-01, a Thursday; in UTC."""
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
        since: count only runs that began on or after the day of this time, in epoch seconds and UTC.
        max_series: maximum number of codes and of agents.
        max_buckets: count only the latest N buckets.
        tenant: tenant that owns the runs.

    Raises:
        StoreUnavailable: the database cannot be read now.
    """
    days, shift = _BUCKET_DAYS[bucket]
    width = days * DAY_S
    counts = RUN_COUNTS.c
    conditions = [counts.tenant == validate_query_tenant(tenant), counts.day != NO_DAY]
    is_diagnosed = and_(counts.kind == CountKind.VERDICT.value, counts.name != "")
    with store.begin_read() as connection:
        last_day = connection.execute(select(func.max(counts.day)).where(*conditions, is_diagnosed)).scalar()
        if last_day is None:
            empty = FailureSeries(name="", total=0, counts={})
            return FailureFrequencies(width_s=width, runs=empty, failed=empty)
        number = ((counts.day + shift) // days).label("bucket")
        earliest = ((last_day + shift) // days - max_buckets + 1) * days - shift
        first_day = earliest if since is None else max(earliest, math.floor(since / DAY_S))
        is_failure = counts.kind.in_((CountKind.FAILED_CODE.value, CountKind.FAILED_AGENT.value))
        keys = (counts.kind, number, counts.name)
        query = (
            select(*keys, func.sum(counts.runs).label("runs"))
            .where(*conditions, counts.day >= first_day, or_(is_diagnosed, is_failure))
            .group_by(*keys)
        )
        series: dict[str, dict[str, dict[int, int]]] = {kind: {} for kind in CountKind}
        for row in connection.execute(query):
            start = (row.bucket * days - shift) * DAY_S
            series[row.kind].setdefault(row.name, {})[start] = int(row.runs)
    verdicts = series[CountKind.VERDICT]
    runs = _build_series("", sum(map(Counter, verdicts.values()), Counter[int]()))
    failed_runs = _build_series("", verdicts.get(VerdictFilter.FAILED, {}))
    codes, agents = (
        sorted(
            (_build_series(name, counts) for name, counts in series[kind].items()),
            key=lambda one: (-one.total, one.name),
        )
        for kind in (CountKind.FAILED_CODE, CountKind.FAILED_AGENT)
    )
    first_start, end = min(runs.counts, default=0), max(runs.counts, default=-width)
    return FailureFrequencies(
        width_s=width,
        starts=tuple(range(first_start, end + 1, width)),
        runs=runs,
        failed=failed_runs,
        codes=tuple(codes[:max_series]),
        agents=tuple(agents[:max_series]),
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
            _SUMMARY.verdict == VerdictFilter.FAILED.value,
            _SUMMARY.began_at.between(since, MAX_TIME_S),
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
        _SUMMARY.verdict == VerdictFilter.FAILED.value,
    )
    counts = RUN_COUNTS.c
    counted = select(counts.name, func.sum(counts.runs)).where(
        counts.tenant == tenant, counts.kind == CountKind.FAILED_CODE.value
    )
    with store.begin_read() as connection:
        totals = {code: int(total) for code, total in connection.execute(counted.group_by(counts.name))}
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

    The newest runs come from an index. For codes that are rare among them, all failed runs are ranked.
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
    """Return those of the runs ``ids`` whose diagnosis in the store is a failure, by id."""
    failed_runs: dict[str, FailedRun] = {}
    with store.begin_read() as connection:
        for part in _split_ids(ids):
            query = select(*_FAILED_RUN_COLUMNS).where(
                _SUMMARY.tenant == validate_query_tenant(tenant),
                _SUMMARY.known.is_(True),
                _SUMMARY.verdict == VerdictFilter.FAILED.value,
                _SUMMARY.run_id.in_(part),
            )
            failed_runs |= {
                row["run_id"]: _to_failed_run(row) for row in connection.execute(query).mappings()
            }
    return failed_runs


def list_runs_by_schema(store: Store, *, tenant: str = "") -> dict[str, tuple[str, ...]]:
    """Return the ids of the runs whose recovery used a schema, by id of the schema."""
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
    """Return the numbers of steps of those of the runs ``ids`` that are in the store, by id."""
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


def _build_series(name: str, counts: Mapping[int, int]) -> FailureSeries:
    return FailureSeries(name=name, total=sum(counts.values()), counts=dict(counts))
