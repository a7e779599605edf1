"""Endpoint that diagnoses a stored run with the default guard and writes the diagnosis to the store."""

from __future__ import annotations

from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agentguard.errors import ConfigError
from agentguard_server.viewer.escaping import to_single_line


def routes() -> list[BaseRoute]:
    """Return the route."""
    return [Route("/runs/{id:path}/diagnose", _diagnose_run, methods=["POST"])]


def _diagnose_run(request: Request) -> Response:
    settings = request.app.state.settings
    if not settings.allows_feedback:
        raise ConfigError("a diagnosis cannot be stored here: give the viewer a store with --store")
    run_id = request.path_params["id"]
    if not request.app.state.diagnosis_queue.diagnose(run_id):
        raise HTTPException(404, f"There is no run {to_single_line(run_id, 80)}.")
    return RedirectResponse(f"{settings.prefix}/runs/{quote(run_id, safe='')}", 303)
