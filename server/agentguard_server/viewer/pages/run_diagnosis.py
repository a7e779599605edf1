"""Endpoint that diagnoses a stored run with the default guard and writes the diagnosis to the store."""

from __future__ import annotations

import threading
from urllib.parse import quote

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.localize.serialization import build_diagnosis_rows

_DURABILITY_TIMEOUT_S = 5.0
_guard_lock = threading.Lock()


def routes() -> list[BaseRoute]:
    """Return the route."""
    return [Route("/runs/{id:path}/diagnose", _diagnose_run, methods=["POST"])]


def _diagnose_run(request: Request) -> Response:
    settings, store = request.app.state.settings, request.app.state.store
    if not settings.allows_feedback:
        raise ConfigError("a diagnosis cannot be stored here: give the viewer a store with --store")
    run_id = request.path_params["id"]
    run = store.get_trajectory(run_id, tenant=settings.tenant)
    if run is None:
        raise HTTPException(404, "no such run")
    with _get_guard(request).override(store=store) as guard:
        diagnosis = guard.diagnose(run)
    rows = build_diagnosis_rows(diagnosis, tenant=settings.tenant)
    store.write(*rows).wait(_DURABILITY_TIMEOUT_S)
    return RedirectResponse(f"{settings.prefix}/runs/{quote(run_id, safe='')}", 303)


def _get_guard(request: Request) -> Guard:
    """Return the guard of the application; the first request builds it, since its model takes a second."""
    with _guard_lock:
        if not hasattr(request.app.state, "guard"):
            request.app.state.guard = Guard()
        guard: Guard = request.app.state.guard
        return guard
