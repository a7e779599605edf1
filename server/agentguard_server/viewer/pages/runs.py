"""List of runs, its JSON API, and the stream of changes."""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from io import StringIO
from typing import Any, Final

from starlette.datastructures import State
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Route

from agentguard.errors import AgentGuardError, StoreError
from agentguard.store.db.run_summary import RunFacets, RunSummaryFilter, RunSummaryRow, split_labels
from agentguard.store.read.pagination import Page, ResultPage
from agentguard.store.saved_views import list_saved_views
from agentguard.store.store import Store
from agentguard.verdict import NOT_DIAGNOSED
from agentguard_server.viewer.data.run_query import (
    PAGE_SIZES,
    RECOVERY_FILTERS,
    RunQuery,
    parse_run_query,
    row_to_dict,
    without_filters,
)
from agentguard_server.viewer.formatting import format_time
from agentguard_server.viewer.renderer import get_renderer
from agentguard_server.viewer.settings import ViewerSettings

_MAX_COUNT: Final = 10_000
_FACETS_TTL_S: Final = 15.0

COLUMNS: Final = (
    ("verdict", "Verdict"),
    ("task", "Task"),
    ("step", "Root cause"),
    ("recovered", "Recovered"),
    ("model", "Model"),
    ("steps", "Steps"),
    ("tokens", "Tokens"),
    ("cost", "Cost"),
    ("duration", "Duration"),
    ("time", "Start"),
)
"""Columns of the list: sort key and heading, from left to right."""
NUMERIC_COLUMNS: Final = frozenset({"steps", "tokens", "cost", "duration"})

_OPTIONAL_COLUMNS: Final = {
    "recovered": "recovered",
    "model": "models",
    "tokens": "tokens",
    "cost": "cost_usd",
    "duration": "duration_s",
    "time": "started_at",
}
"""Columns that the list hides if no run of the page has a value: sort key and field of the row."""

_CSV_CHUNK_CHARS: Final = 65_536
_CSV_FIELDS: Final = (
    *("run_id", "task", "format", "started_at", "steps", "tokens", "cost_usd", "duration_s", "models"),
    *("tags", "verdict", "probability", "method", "step", "agent", "code", "recovered", "judged", "failed"),
)

FIELDS: Final = {
    "q": "text",
    "min_cost": "cost from $",
    "max_cost": "cost to $",
    "min_tokens": "tokens from",
    "max_tokens": "tokens to",
}
"""Labels of filters, if they differ from the names of the query parameters."""


def routes() -> list[BaseRoute]:
    """Return the routes of the pages."""
    return [
        Route("/", _render_page, name="runs"),
        Route("/api/runs", _render_json),
        Route("/api/runs.csv", _download_csv),
        Route("/events", _stream_events),
    ]


def _render_page(request: Request) -> Response:
    store: Store = request.app.state.store
    settings = request.app.state.settings
    rendered_at = time.time()
    query, result_page = _select_page(store, _parse_query(request), settings.tenant)
    total = _count_runs(store, query, result_page, settings.tenant)
    is_store_empty = not total and not (
        query.filters and store.count_run_summaries(RunSummaryFilter(), max_count=1, tenant=settings.tenant)
    )
    return get_renderer(request).render_page(
        "runs.html",
        here="runs",
        query=query,
        rows=result_page.rows,
        next=result_page.next,
        total=total,
        max_count=_MAX_COUNT,
        facets=_get_facets(request, store, settings.tenant),
        is_store_empty=is_store_empty,
        cleared=without_filters(query).to_query_string(),
        columns=COLUMNS,
        hidden=_find_empty_columns(result_page.rows, query),
        numbers=NUMERIC_COLUMNS,
        fields=FIELDS,
        recovered=tuple(RECOVERY_FILTERS),
        sizes=PAGE_SIZES,
        labels=split_labels,
        rendered_at=rendered_at,
        at=format_time,
        loading=request.app.state.loading,
        diagnosing=request.app.state.diagnosis_queue.progress,
        may_change=settings.allows_feedback,
        views=list_saved_views(store, tenant=settings.tenant),
        address=str(store.address),
    )


def _render_json(request: Request) -> Response:
    store: Store = request.app.state.store
    tenant = request.app.state.settings.tenant
    query, result_page = _select_page(store, _parse_query(request), tenant)
    return JSONResponse(
        {
            "runs": [_format_row(row) for row in result_page.rows],
            "next": None if result_page.next is None else query.to_query_string(after=result_page.next),
            "count": _count_runs(store, query, result_page, tenant),
            "counted_to": _MAX_COUNT,
            "ignored": query.problems,
        }
    )


def _download_csv(request: Request) -> Response:
    """Stream all runs that match as CSV, in the order of the list."""
    query = _parse_query(request)
    summaries = request.app.state.store.iter_run_summaries(
        query.filter, query.sort, tenant=request.app.state.settings.tenant
    )
    rows = format_csv(summaries)
    headers = {"content-disposition": 'attachment; filename="runs.csv"'}
    return StreamingResponse(rows, media_type="text/csv; charset=utf-8", headers=headers)


def format_csv(summaries: Iterable[RunSummaryRow]) -> Iterator[str]:
    """Yield the parts of a CSV text: a header, then one line per run."""
    buffer = StringIO()
    writer = csv.writer(buffer)
    writer.writerow(_CSV_FIELDS)
    for row in summaries:
        started_at = format_time(row.started_at, "%Y-%m-%dT%H:%M:%SZ")
        values = _format_row(row) | {"started_at": started_at}
        writer.writerow([_format_csv_value(values[name]) for name in _CSV_FIELDS])
        if buffer.tell() >= _CSV_CHUNK_CHARS:
            yield buffer.getvalue()
            buffer.seek(0)
            buffer.truncate()
    yield buffer.getvalue()


def _format_csv_value(value: object) -> object:
    """Return a value for a spreadsheet; a quote before ``=``, ``+``, ``-`` and ``@`` prevents a formula."""
    if isinstance(value, tuple):
        value = "; ".join(value)
    return f"'{value}" if isinstance(value, str) and value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


async def _stream_events(request: Request) -> Response:
    last_event_id = request.headers.get("last-event-id") or request.query_params.get("since")
    stream = await request.app.state.hub.listen(_parse_since(last_event_id))
    headers = {"cache-control": "no-store", "x-accel-buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def _parse_query(request: Request) -> RunQuery:
    settings: ViewerSettings = request.app.state.settings
    return parse_run_query(request.query_params.multi_items(), default_sort=settings.default_sort)


def _select_page(store: Store, query: RunQuery, tenant: str) -> tuple[RunQuery, ResultPage[RunSummaryRow]]:
    """Return the requested page; the first one if the cursor is invalid for the sort order."""
    page = Page(limit=query.limit, after=query.after)
    try:
        return query, store.list_run_summaries(query.filter, query.sort, page, tenant=tenant)
    except StoreError:
        if query.after is None:
            raise
        problems = (
            *query.problems,
            "the cursor after= is not valid for this sort order: this is the first page",
        )
        first_page_query = replace(query, after=None, problems=problems)
        return first_page_query, store.list_run_summaries(
            query.filter, query.sort, Page(limit=query.limit), tenant=tenant
        )


def _find_empty_columns(rows: Sequence[RunSummaryRow], query: RunQuery) -> list[str]:
    """Return the optional columns without a value on the page, except the selected sort column."""
    return [
        name
        for name, field in _OPTIONAL_COLUMNS.items()
        if name != query.value("sort") and all(getattr(row, field) in (None, "") for row in rows)
    ]


def _count_runs(store: Store, query: RunQuery, result_page: ResultPage[RunSummaryRow], tenant: str) -> int:
    """Return the number of matching runs; no query is needed if they fit on one page."""
    if query.after is None and result_page.next is None:
        return len(result_page.rows)
    return store.count_run_summaries(query.filter, max_count=_MAX_COUNT + 1, tenant=tenant)


def _get_facets(request: Request, store: Store, tenant: str) -> RunFacets:
    """Return cached filter values; a background thread refreshes them, so only the first request waits."""
    state = request.app.state
    cached_facets: tuple[float, RunFacets] | None = state.facets
    ttl_s = 1.0 if state.loading.running else _FACETS_TTL_S
    if cached_facets is None:
        cached_facets = state.facets = (time.monotonic(), store.get_facets(tenant=tenant))
    elif time.monotonic() - cached_facets[0] > ttl_s:
        state.facets = (time.monotonic(), cached_facets[1])  # concurrent requests must not refresh too
        threading.Thread(target=_refresh_facets, args=(state, store, tenant), daemon=True).start()
    return cached_facets[1]


def _refresh_facets(state: State, store: Store, tenant: str) -> None:
    with suppress(AgentGuardError):
        state.facets = (time.monotonic(), store.get_facets(tenant=tenant))


def _format_row(row: RunSummaryRow) -> dict[str, Any]:
    return row_to_dict(row) | row.labels | {"verdict": row.verdict or NOT_DIAGNOSED}


def _parse_since(text: str | None) -> float | None:
    """Parse a timestamp of the last day; return None for other values, so that no changes are replayed."""
    try:
        since = float(text or "")
    except ValueError:
        return None
    now = time.time()
    return since if now - 86_400 < since <= now + 60 else None
