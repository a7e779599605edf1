"""Endpoint that sends a run to the OTLP collector from the settings; requests cannot choose another one."""

from __future__ import annotations

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.errors import ResilienceError
from agentguard.otlp.assessed_spans import load_stored_spans
from agentguard.otlp.exporter import ExportResult, send
from agentguard_server.viewer.renderer import get_renderer


def routes() -> list[BaseRoute]:
    """Return the route."""
    return [Route("/runs/{id:path}/send", _send_run, methods=["POST"])]


def _send_run(request: Request) -> Response:
    settings, store = request.app.state.settings, request.app.state.store
    if settings.collector is None:
        raise HTTPException(404, "no collector was named")
    run_id = request.path_params["id"]
    spans = load_stored_spans(store, run_id, tenant=settings.tenant)
    if spans is None:
        raise HTTPException(404, "no such run")
    try:
        result, error_text = send(settings.collector, spans), ""
    except ResilienceError as error:
        result, error_text = ExportResult(), str(error)
    return get_renderer(request).render_page(
        "sent.html", status=502 if error_text else 200, run_id=run_id, sent=result, wrong=error_text
    )
