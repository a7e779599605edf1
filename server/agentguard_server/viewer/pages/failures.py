"""Page of all failures: clusters, and frequencies over time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.store.read.failure_statistics import Bucket, FailureFrequencies, count_failures_over_time
from agentguard.store.store import Store
from agentguard_server.viewer.data.failure_clusters import (
    PLOT_HEIGHT,
    PLOT_WIDTH,
    FailureClusters,
    FailureTable,
    FailureTableRow,
    build_table,
    build_trends,
    cluster_failures,
    shorten,
)
from agentguard_server.viewer.pagination import build_query
from agentguard_server.viewer.renderer import get_renderer, render_json


def routes() -> list[BaseRoute]:
    """Return the routes of the page."""
    return [Route("/failures", _render_page, name="failures"), Route("/api/failures", _render_json)]


def _parse_request(request: Request) -> tuple[Bucket, FailureFrequencies, FailureClusters]:
    bucket: Bucket = "day" if request.query_params.get("by") == "day" else "week"
    state = request.app.state
    frequencies = count_failures_over_time(state.store, bucket=bucket, tenant=state.settings.tenant)
    return bucket, frequencies, cluster_failures(state.store, tenant=state.settings.tenant)


def _render_page(request: Request) -> Response:
    bucket, frequencies, clusters = _parse_request(request)
    state = request.app.state
    return get_renderer(request).render_page(
        "failures.html",
        here="failures",
        query=build_query,
        bucket=bucket,
        frequencies=frequencies,
        trends=build_trends(frequencies),
        table=build_table(state.store, frequencies, tenant=state.settings.tenant),
        clusters=clusters,
        evidence=_find_evidence(state.store, clusters, tenant=state.settings.tenant),
        plot_size=(PLOT_WIDTH, PLOT_HEIGHT),
        shorten=shorten,
    )


def _find_evidence(store: Store, clusters: FailureClusters, *, tenant: str) -> dict[str, tuple[str, str]]:
    """Return reason and first quote of the latest unclustered run of each code, by run id."""
    evidence = {}
    for group in clusters.unclustered:
        for run in group.latest[:1]:
            rows = store.list_diagnoses(run.run_id, tenant=tenant)
            data = rows[-1].data if rows else {}
            first: dict[str, Any] = next(iter(data.get("hypotheses", ())), {})
            quotes = [quote["quote"] for quote in first.get("evidence", ())]
            evidence[run.run_id] = (first.get("reason", ""), next(iter(quotes), ""))
    return evidence


def _render_json(request: Request) -> Response:
    bucket, frequencies, clusters = _parse_request(request)
    state = request.app.state
    table = build_table(state.store, frequencies, tenant=state.settings.tenant)
    data: dict[str, Any] = {
        "by": bucket,
        "runs": frequencies.runs.total,
        "failed": frequencies.failed.total,
        "starts": frequencies.starts,
        "codes": [asdict(item) for item in frequencies.codes],
        "agents": [asdict(item) for item in frequencies.agents],
        "agents_by_code": [
            {"agent": row.agent, "runs": row.total, "codes": _name_counts(table, row)} for row in table.rows
        ],
        "clusters": [
            {
                "schema": item.schema.id,
                "title": item.title,
                "codes": item.schema.codes,
                "support": item.schema.support,
                "runs": [run.run_id for run in item.runs],
            }
            for item in clusters.clusters
        ],
        "without_schema": [
            {"code": item.code.code, "runs": item.total, "latest": [run.run_id for run in item.latest]}
            for item in clusters.unclustered
        ],
    }
    return render_json(data)


def _name_counts(table: FailureTable, row: FailureTableRow) -> dict[str, int]:
    pairs = zip(table.codes, row.counts, strict=True)
    return {code.code: count for code, count in pairs if count}
