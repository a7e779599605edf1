"""Error pages with the cause and a remedy."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from agentguard.errors import (
    AgentGuardError,
    ConfigError,
    InputError,
    Overloaded,
    StoreError,
    StoreTimeout,
    StoreUnavailable,
    StoreVersion,
)
from agentguard_server.viewer.renderer import get_renderer

_LOG = logging.getLogger(__name__)

_ADVICE = {
    StoreUnavailable: "Nothing is lost: reload this page when the database is back.",
    StoreTimeout: "Nothing is lost: reload this page when the database is back.",
    StoreVersion: "Stop the viewer, do what the message says, and start it again.",
    Overloaded: "Close some of the viewer's other pages and reload this one.",
}


def render_not_found(request: Request, error: Exception) -> Response:
    """Render the page for an unknown address or a wrong method."""
    status = error.status_code if isinstance(error, HTTPException) else 404
    if status == 405:
        return _render_error_page(
            request, 405, "This method is not allowed here", "", "Use GET: follow a link."
        )
    return _render_error_page(
        request, 404, "There is no such page", "", "The run may have been deleted since."
    )


def render_error(request: Request, error: Exception) -> Response:
    """Render the message of an error of agentguard."""
    assert isinstance(error, AgentGuardError)
    is_temporary = isinstance(error, StoreUnavailable | StoreTimeout | StoreVersion | Overloaded)
    is_client_error = isinstance(error, StoreError | InputError | ConfigError) and not is_temporary
    advice = next((text for kind, text in _ADVICE.items() if isinstance(error, kind)), "")
    title = "This cannot be shown now" if is_temporary else "This cannot be shown"
    response = _render_error_page(
        request, 503 if is_temporary else 400 if is_client_error else 500, title, str(error), advice
    )
    if is_temporary:
        response.headers["retry-after"] = "5"
    return response


def render_internal_error(request: Request, error: Exception) -> Response:
    """Render the page for an internal error. The message goes only to the log, as it may contain secrets."""
    _LOG.error("%s failed: %s", request.url.path, type(error).__name__)
    return _render_error_page(
        request,
        500,
        "The viewer failed",
        f"{type(error).__name__}.",
        "Its log has the details: please report them.",
    )


def _render_error_page(request: Request, status: int, title: str, text: str, advice: str) -> Response:
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    if path.startswith("/api/"):
        return JSONResponse({"error": title, "detail": text, "remedy": advice}, status_code=status)
    return get_renderer(request).render_page(
        "trouble.html", status=status, title=title, text=text, out=advice
    )
