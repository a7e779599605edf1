"""Endpoint that sends a run to the OTLP collector of the settings; requests cannot choose another one."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.errors import ResilienceError
from agentguard.otlp.assessed_spans import load_stored_spans
from agentguard.otlp.exporter import ExportResult, send
from agentguard_server.viewer.escaping import to_single_line
from agentguard_server.viewer.renderer import get_renderer


def routes() -> list[BaseRoute]:
    """Return the route."""
    return [Route("/runs/{id:path}/send", _send_run, methods=["POST"])]


def _send_run(request: Request) -> Response:
    settings, store = request.app.state.settings, request.app.state.store
    if settings.collector is None:
        raise HTTPException(404, "the viewer has no collector; see --otlp-endpoint")
    run_id = request.path_params["id"]
    spans = load_stored_spans(store, run_id, tenant=settings.tenant)
    if spans is None:
        raise HTTPException(404, f"There is no run {to_single_line(run_id, 80)}.")
    try:
        result, error_text = send(settings.collector, spans), ""
    except ResilienceError as error:
        result, error_text = ExportResult(), str(error)
    return get_renderer(request).render_page(
        "otlp_sent.html", status=502 if error_text else 200, run_id=run_id, result=result, error=error_text
    )
