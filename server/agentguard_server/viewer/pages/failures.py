"""What goes wrong, over all runs: clusters of failures, and how often which occurs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.store.aggregate import Bucket, Frequencies, frequencies
from agentguard_server.viewer.failures import HEIGHT, WIDTH, Clusters, clusters, short, times
from agentguard_server.viewer.render import renderer
from agentguard_server.viewer.sheets_page import data_response, query


def routes() -> list[BaseRoute]:
    """The page."""
    return [Route("/failures", _page, name="failures"), Route("/api/failures", _api)]


def _asked(request: Request) -> tuple[Bucket, Frequencies, Clusters]:
    by: Bucket = "day" if request.query_params.get("by") == "day" else "week"
    state = request.app.state
    counted = frequencies(state.store, bucket=by, tenant=state.settings.tenant)
    return by, counted, clusters(state.store, tenant=state.settings.tenant)


def _page(request: Request) -> Response:
    by, counted, grouped = _asked(request)
    return renderer(request).page(
        "failures.html",
        here="failures",
        query=query,
        by=by,
        counted=counted,
        times=times(counted),
        grouped=grouped,
        size=(WIDTH, HEIGHT),
        short=short,
    )


def _api(request: Request) -> Response:
    by, counted, grouped = _asked(request)
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
            for one in grouped.rest
        ],
    }
    return data_response(found)
