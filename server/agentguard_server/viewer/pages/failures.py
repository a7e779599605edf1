"""Page of all failures: clusters, and frequencies over time."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.store.read.statistics import Bucket, FailureFrequencies, count_failures_over_time
from agentguard_server.viewer.data.failure_clusters import (
    PLOT_HEIGHT,
    PLOT_WIDTH,
    FailureClusters,
    build_trends,
    cluster_failures,
    shorten,
)
from agentguard_server.viewer.pagination import build_query, json_response
from agentguard_server.viewer.renderer import get_renderer


def routes() -> list[BaseRoute]:
    """Return the routes of the page."""
    return [Route("/failures", _render_page, name="failures"), Route("/api/failures", _render_json)]


def _parse_request(request: Request) -> tuple[Bucket, FailureFrequencies, FailureClusters]:
    by: Bucket = "day" if request.query_params.get("by") == "day" else "week"
    state = request.app.state
    counted = count_failures_over_time(state.store, bucket=by, tenant=state.settings.tenant)
    return by, counted, cluster_failures(state.store, tenant=state.settings.tenant)


def _render_page(request: Request) -> Response:
    by, counted, grouped = _parse_request(request)
    return get_renderer(request).render_page(
        "failures.html",
        here="failures",
        query=build_query,
        by=by,
        counted=counted,
        times=build_trends(counted),
        grouped=grouped,
        size=(PLOT_WIDTH, PLOT_HEIGHT),
        short=shorten,
    )


def _render_json(request: Request) -> Response:
    by, counted, grouped = _parse_request(request)
    found: dict[str, Any] = {
        "by": by,
        "runs": counted.runs.total,
        "failed": counted.failed.total,
        "starts": counted.starts,
        "codes": [asdict(one) for one in counted.codes],
        "agents": [asdict(one) for one in counted.agents],
        "clusters": [
            {
                "schema": one.schema.id,
                "title": one.title,
                "codes": one.schema.codes,
                "support": one.schema.support,
                "runs": [run.run_id for run in one.runs],
            }
            for one in grouped.clusters
        ],
        "without_schema": [
            {"code": one.code.code, "runs": one.total, "latest": [run.run_id for run in one.latest]}
            for one in grouped.unclustered
        ],
    }
    return json_response(found)
