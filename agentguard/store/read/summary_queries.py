"""Queries over run summaries: pages, counts, facets, changes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, Final

from sqlalchemy import (
    Column,
    ColumnElement,
    Connection,
    Double,
    Engine,
    Select,
    Text,
    and_,
    exists,
    false,
    func,
    insert,
    literal,
    not_,
    or_,
    select,
    text,
    true,
    tuple_,
    update,
)

from agentguard.errors import StoreError
from agentguard.store.db.compiled_statements import match_any_id, to_id_parameter
from agentguard.store.db.engine import IMMEDIATE_TRANSACTION
from agentguard.store.db.row_mapping import sanitize_text, to_row, validate_query_tenant
from agentguard.store.db.run_summary import (
    SORT_COLUMNS,
    RunFacets,
    RunSort,
    RunSummaryFilter,
    RunSummaryRow,
    SummaryChange,
    VerdictFilter,
    normalize_label,
)
from agentguard.store.db.tables import OVERVIEWS, RUN_COUNTS, RUNS
from agentguard.store.read.pagination import Page, ResultPage, decode_cursor, encode_cursor
from agentguard.store.write.run_counts import CountedValues, CountKind, apply_changes, recount_runs
from agentguard.store.write.summary_aggregation import build_blank_summary
from agentguard.store.write.summary_updater import rebuild_summaries

_MAX_FACET_VALUES: Final = 50
_REFRESH_CHUNK: Final = 100
_SUMMARY = OVERVIEWS.c


def fetch_page(
    connection: Connection,
    filter: RunSummaryFilter,
    sort: RunSort,
    page: Page,
    tenant: str,
    *,
    ids: list[str] | None = None,
) -> ResultPage[RunSummaryRow]:
    """Return a page of run summaries; ``ids`` restricts it to these runs.

    Raises:
        StoreError: the cursor is not of this sort order.
    """
    _plan_for_values(connection, filter)
    column, dialect = _SUMMARY[SORT_COLUMNS[sort.by]], connection.dialect.name
    keys = _apply_filter(select(_SUMMARY.run_id), filter, tenant, dialect)
    parameters: dict[str, Any] = {}
    if ids is not None:
        keys = keys.where(match_any_id(_SUMMARY.run_id, dialect))
        parameters["ids"] = to_id_parameter(ids, dialect)
    if page.after is not None:
        keys = keys.where(_build_after_condition(column, sort, *_decode_cursor(page.after, sort, column)))
    order: list[Any] = [column.is_(None)] if column.nullable else []
    order += [column.desc(), _SUMMARY.run_id.desc()] if sort.descending else [column, _SUMMARY.run_id]
    # An order without an index sorts all runs of the tenant. Keys take half the time of complete rows.
    page_keys = keys.order_by(*order).limit(page.limit + 1).subquery()
    is_on_page = and_(_SUMMARY.tenant == tenant, _SUMMARY.run_id == page_keys.c.run_id)
    query = select(OVERVIEWS).join(page_keys, is_on_page).order_by(*order)
    rows = connection.execute(query, parameters).mappings().all()
    summaries = tuple(to_row(RunSummaryRow, row) for row in rows[: page.limit])
    if len(rows) <= page.limit:
        return ResultPage(rows=summaries)
    last_row = rows[page.limit - 1]
    return ResultPage(
        rows=summaries,
        next=encode_cursor(sort.by, sort.descending, last_row[column.name], last_row["run_id"]),
    )


def count_runs(connection: Connection, filter: RunSummaryFilter, tenant: str, max_count: int) -> int:
    """Return the number of matching runs, at most ``max_count``."""
    _plan_for_values(connection, filter)
    query = _apply_filter(select(literal(1)), filter, tenant, connection.dialect.name).limit(max_count)
    return int(connection.execute(select(func.count()).select_from(query.subquery())).scalar_one())


def _plan_for_values(connection: Connection, filter: RunSummaryFilter) -> None:
    """Make PostgreSQL plan each search in texts for its own pattern.

    After ten equal statements, PostgreSQL uses one plan for all patterns. That plan expects many matches and
    reads the runs in the order of an index, which takes twice the time.
    """
    if filter.text and connection.dialect.name == "postgresql":
        connection.execute(text("SET LOCAL plan_cache_mode = force_custom_plan"))


def compute_facets(connection: Connection, tenant: str) -> RunFacets:
    """Return the filter values of all runs."""
    counts, number = RUN_COUNTS.c, func.sum(RUN_COUNTS.c.runs)

    def list_most_frequent(kind: CountKind) -> dict[str, int]:
        query = select(counts.name, number).where(
            counts.tenant == validate_query_tenant(tenant), counts.kind == kind.value
        )
        if kind in (CountKind.CODE, CountKind.AGENT):
            query = query.where(counts.name != "")
        query = query.group_by(counts.name).order_by(number.desc(), counts.name).limit(_MAX_FACET_VALUES)
        return {name: int(runs) for name, runs in connection.execute(query)}

    return RunFacets(
        verdicts=list_most_frequent(CountKind.VERDICT),
        codes=list_most_frequent(CountKind.CODE),
        agents=list_most_frequent(CountKind.AGENT),
        models=list_most_frequent(CountKind.MODEL),
        tags=list_most_frequent(CountKind.TAG),
    )


def list_changes(connection: Connection, since: float, tenant: str, limit: int) -> tuple[SummaryChange, ...]:
    """Return the runs whose summary changed after ``since`` (epoch seconds), latest first."""
    query = select(_SUMMARY.run_id, _SUMMARY.updated_at, _SUMMARY.created_at).where(
        _SUMMARY.tenant == validate_query_tenant(tenant), _SUMMARY.updated_at > since, _SUMMARY.known
    )
    rows = connection.execute(query.order_by(_SUMMARY.updated_at.desc()).limit(limit))
    return tuple(SummaryChange(*row) for row in rows)


def refresh_summaries(engine: Engine, *, rebuild_all: bool = False) -> int:
    """Rebuild the summaries that a migration left incomplete, or all of them; return their number.

    All runs are first counted again. Each transaction is small, so that writers never wait long.

    Raises:
        sqlalchemy.exc.SQLAlchemyError, OSError: the database cannot be used now.
    """
    refreshed_count = 0
    with engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection, connection.begin():
        if rebuild_all:
            connection.execute(update(OVERVIEWS).values(stale=True))
            _insert_missing_summaries(connection)
        recount_runs(connection)
    while True:
        with engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection, connection.begin():
            query = select(OVERVIEWS).where(_SUMMARY.stale).limit(_REFRESH_CHUNK).with_for_update()
            stale = {(row["tenant"], row["run_id"]): row for row in connection.execute(query).mappings()}
            if not stale:
                return refreshed_count
            summaries = rebuild_summaries(connection, stale)
            changes = []
            for (tenant, run_id), row in stale.items():
                values = summaries.get((tenant, run_id), {"known": False, "stale": False})
                key = and_(_SUMMARY.tenant == tenant, _SUMMARY.run_id == run_id)
                connection.execute(update(OVERVIEWS).where(key).values(**values))
                after = CountedValues.from_summary({**row, **values})
                changes.append((CountedValues.from_summary(row), after))
            apply_changes(connection, changes)
            refreshed_count += len(stale)


def _insert_missing_summaries(connection: Connection) -> None:
    """Insert a stale summary for each run without one, to be rebuilt."""
    has_summary = exists().where(_SUMMARY.tenant == RUNS.c.tenant, _SUMMARY.run_id == RUNS.c.id)
    missing_runs = select(RUNS.c.tenant, RUNS.c.id, RUNS.c.created_at).where(not_(has_summary))
    for tenant, run_id, created_at in connection.execute(missing_runs).all():
        connection.execute(
            insert(OVERVIEWS).values({**build_blank_summary(tenant, run_id, created_at), "stale": True})
        )


def escape_like_pattern(text: str) -> str:
    """Return a text escaped for LIKE with backslashes, so that every character matches itself."""
    return text.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")


def _apply_filter(query: Select[Any], filter: RunSummaryFilter, tenant: str, dialect: str) -> Select[Any]:
    query = query.where(_SUMMARY.tenant == validate_query_tenant(tenant), _SUMMARY.known)
    for condition in (
        *_build_equality_conditions(filter),
        *_build_range_conditions(filter),
        *_build_text_conditions(filter, dialect),
    ):
        query = query.where(condition)
    return query


def _build_equality_conditions(filter: RunSummaryFilter) -> Iterable[ColumnElement[bool]]:
    if filter.verdicts:
        verdicts = sorted(
            "" if verdict == VerdictFilter.NOT_DIAGNOSED else str(verdict) for verdict in filter.verdicts
        )
        yield _SUMMARY.verdict.in_(verdicts)
    if filter.recovered:
        yield _SUMMARY.recovered.in_(sorted(map(sanitize_text, filter.recovered)))
    if filter.agent is not None:
        yield _SUMMARY.agent == sanitize_text(filter.agent)
    if filter.step is not None:
        yield _SUMMARY.step == filter.step if abs(filter.step) < 2**62 else false()
    if filter.failed is not None:
        yield _SUMMARY.failed.is_(filter.failed)
    if filter.judged is not None:
        yield _SUMMARY.judged != "" if filter.judged else _SUMMARY.judged == ""


def _build_range_conditions(filter: RunSummaryFilter) -> Iterable[ColumnElement[bool]]:
    for column, low, high in (
        (_SUMMARY.cost_usd, filter.min_cost, filter.max_cost),
        (_SUMMARY.tokens, _clamp_integer(filter.min_tokens), _clamp_integer(filter.max_tokens)),
    ):
        if low is not None:
            yield column >= low
        if high is not None:
            yield column <= high
    if filter.since is not None:
        yield _SUMMARY.began_at >= filter.since
    if filter.until is not None:
        yield _SUMMARY.began_at < filter.until


def _build_text_conditions(filter: RunSummaryFilter, dialect: str) -> Iterable[ColumnElement[bool]]:
    if filter.code:
        yield _SUMMARY.code.like(escape_like_pattern(sanitize_text(filter.code)) + "%", escape="\\")
    for column, name in (
        (_SUMMARY.models, filter.model),
        (_SUMMARY.tags, filter.tag),
        (_SUMMARY.agents, filter.step_agent),
        (_SUMMARY.tools, filter.tool),
    ):
        if name is not None:
            yield column.like(
                f"%\n{escape_like_pattern(sanitize_text(normalize_label(name)))}\n%", escape="\\"
            )
    if filter.text:
        # LIKE of SQLite ignores the case of ASCII letters. ILIKE of PostgreSQL takes longer than `lower`.
        pattern = f"%{escape_like_pattern(sanitize_text(filter.text))}%"
        columns: tuple[ColumnElement[str], ...] = (_SUMMARY.task, _SUMMARY.run_id)
        if dialect == "postgresql":
            lowered = func.lower(pattern)
            yield or_(*(func.lower(one).like(lowered, escape="\\") for one in columns))
        else:
            yield or_(*(one.like(pattern, escape="\\") for one in columns))


def _clamp_integer(value: int | None) -> int | None:
    return None if value is None else max(-(2**62), min(2**62, value))


def _build_after_condition(
    column: Column[Any], sort: RunSort, value: Any, run_id: str
) -> ColumnElement[bool]:
    """Return the condition for rows after the cursor; rows without a value come last."""
    further: Callable[[Any, Any], Any] = (lambda a, b: a < b) if sort.descending else (lambda a, b: a > b)
    if value is None:
        return and_(column.is_(None), further(_SUMMARY.run_id, run_id))
    later = further(
        tuple_(column, _SUMMARY.run_id), tuple_(literal(value, column.type), literal(run_id, Text))
    )
    return or_(later, column.is_(None)) if column.nullable else and_(later, true())


def _decode_cursor(text: str, sort: RunSort, column: Column[Any]) -> tuple[Any, str]:
    """Return the value and the run id of a cursor. Raises StoreError if it is invalid for this order."""
    position = decode_cursor(text)
    if not isinstance(position, list) or position[:2] != [sort.by, sort.descending] or len(position) != 4:
        raise _build_cursor_error()
    value, run_id = position[2:]
    if not isinstance(run_id, str):
        raise _build_cursor_error()
    if value is None and column.nullable:
        return None, sanitize_text(run_id)
    if isinstance(column.type, Text):
        if not isinstance(value, str):
            raise _build_cursor_error()
        return sanitize_text(value), sanitize_text(run_id)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise _build_cursor_error()
    if not isinstance(column.type, Double) and not (isinstance(value, int) and abs(value) < 2**62):
        raise _build_cursor_error()
    return value, sanitize_text(run_id)


def _build_cursor_error() -> StoreError:
    return StoreError("the cursor of the page is not of this sort order")
