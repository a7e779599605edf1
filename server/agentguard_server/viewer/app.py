"""ASGI application of the viewer, with its static files and error pages."""

from __future__ import annotations

import gzip
import hashlib
import logging
import pkgutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from pathlib import Path
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

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
from agentguard.store.store import Store
from agentguard_server.viewer import pages
from agentguard_server.viewer.data.diagnosis_queue import DiagnosisQueue
from agentguard_server.viewer.data.evaluation_files import EvaluationFiles
from agentguard_server.viewer.data.file_loader import LoadProgress
from agentguard_server.viewer.data.report_folders import BatchFolders, CampaignFolders
from agentguard_server.viewer.data.search_index_updates import SearchIndexUpdates
from agentguard_server.viewer.live_updates import EventHub
from agentguard_server.viewer.renderer import ASSETS_FOLDER, Renderer, get_renderer
from agentguard_server.viewer.run_page_cache import RunPageCache
from agentguard_server.viewer.security_middleware import SecurityMiddleware
from agentguard_server.viewer.settings import ViewerSettings


class Viewer(Starlette):
    """Application with the security middleware outermost, so that error pages have its headers too."""

    def __init__(self, settings: ViewerSettings, routes: Sequence[BaseRoute]) -> None:
        super().__init__(
            routes=routes,
            middleware=[Middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)],
            exception_handlers={
                404: render_not_found,
                405: render_not_found,
                AgentGuardError: render_error,
                Exception: render_internal_error,
            },
        )
        self._secured_app = SecurityMiddleware(super().__call__, settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request."""
        await self._secured_app(scope, receive, send)


def build_app(
    store: Store, settings: ViewerSettings | None = None, *, loading: LoadProgress | None = None
) -> Starlette:
    """Build the application from the ``routes()`` of every module in ``viewer.pages``.

    Another application can mount it under ``settings.prefix``; all links then begin with the prefix.
    Duties of the server:

    - ``app.state.search_index.start()`` at its start keeps the search index up to date.
    - ``app.state.hub.close()`` at its shutdown ends the event streams of open pages.
    - ``app.state.search_index.stop()`` and ``app.state.diagnosis_queue.stop()`` end the background threads
      before the store is closed.

    Args:
        store: store of the runs; the caller closes it.
        settings: settings of the viewer.
        loading: progress of the loading of files into the store.
    """
    viewer_settings = settings or ViewerSettings()
    static = Route("/static/{name}", serve_asset, name="static")
    app = Viewer(viewer_settings, [static, *_collect_routes()])
    app.state.store, app.state.settings = store, viewer_settings
    app.state.loading = loading or LoadProgress()
    app.state.facets = None
    app.state.page_cache = RunPageCache(store, viewer_settings.tenant)
    app.state.evaluation_files = EvaluationFiles(viewer_settings.evals)
    app.state.campaign_folders = CampaignFolders(viewer_settings.campaigns)
    app.state.batch_folders = BatchFolders(viewer_settings.batches)
    app.state.diagnosis_queue = DiagnosisQueue(store, tenant=viewer_settings.tenant)
    app.state.search_index = SearchIndexUpdates(
        store, tenant=viewer_settings.tenant, is_busy=lambda: app.state.loading.running
    )
    app.state.hub = EventHub(
        store, tenant=viewer_settings.tenant, read_load_progress=app.state.loading.to_event_data
    )
    app.state.render = Renderer(prefix=viewer_settings.prefix)
    template_globals = app.state.render.environment.globals
    template_globals["asset"] = lambda name: viewer_settings.prefix + build_asset_url(name)
    template_globals["has_batches"] = bool(viewer_settings.batches)
    template_globals["collector"] = (
        "" if viewer_settings.collector is None else viewer_settings.collector.host
    )
    return app


def _collect_routes() -> list[BaseRoute]:
    """Return the routes of all modules in ``viewer.pages``, in the order of their names."""
    routes: list[BaseRoute] = []
    for info in sorted(pkgutil.iter_modules(pages.__path__), key=lambda one: one.name):
        routes += import_module(f"{pages.__name__}.{info.name}").routes()
    return routes


_MEDIA_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
_CACHE_FOREVER: Final = "public, max-age=31536000, immutable"


@dataclass(frozen=True, slots=True)
class Asset:
    """Static file: plain and gzipped body, and the beginning of its SHA-256."""

    media_type: str
    body: bytes
    gzip_body: bytes
    hash: str


@lru_cache(maxsize=1)
def load_assets() -> Mapping[str, Asset]:
    """Return all static files by name. No other file is served, so a request cannot reach another path."""
    return {
        path.name: _read_asset(path)
        for path in sorted(ASSETS_FOLDER.iterdir())
        if path.suffix in _MEDIA_TYPES
    }


def build_asset_url(name: str) -> str:
    """Return the URL path of a static file below the prefix; it changes with the content."""
    return f"/static/{name}?v={load_assets()[name].hash}"


def serve_asset(request: Request) -> Response:
    """Serve a static file: immutable if the URL has the current hash, otherwise with revalidation."""
    asset = load_assets().get(request.path_params["name"])
    if asset is None:
        return Response("Not found.\n", 404, media_type="text/plain")
    headers = {
        "etag": f'"{asset.hash}"',
        "cache-control": _CACHE_FOREVER if request.query_params.get("v") == asset.hash else "no-cache",
        "vary": "accept-encoding",
    }
    if asset.hash in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    is_compressed = "gzip" in request.headers.get("accept-encoding", "")
    if is_compressed:
        headers["content-encoding"] = "gzip"
    return Response(
        asset.gzip_body if is_compressed else asset.body, headers=headers, media_type=asset.media_type
    )


def _read_asset(path: Path) -> Asset:
    body = path.read_bytes()
    return Asset(
        _MEDIA_TYPES[path.suffix],
        body,
        gzip.compress(body, 9, mtime=0),
        hashlib.sha256(body).hexdigest()[:16],
    )


_LOG = logging.getLogger(__name__)

_ADVICE = {
    StoreUnavailable: "Nothing is lost: reload this page when the database is back.",
    StoreTimeout: "Nothing is lost: reload this page when the database is back.",
    StoreVersion: "Stop the viewer, do what the message says, and start it again.",
    Overloaded: "Close other pages of the viewer, and reload this one.",
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
    title = "This page cannot be shown now" if is_temporary else "This page cannot be shown"
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
        "The log of the viewer has the details: please report them.",
    )


def _render_error_page(request: Request, status: int, title: str, text: str, advice: str) -> Response:
    path = request.scope["path"].removeprefix(request.scope.get("root_path", ""))
    if path.startswith("/api/"):
        return JSONResponse({"error": title, "detail": text, "remedy": advice}, status_code=status)
    return get_renderer(request).render_page(
        "error.html", status=status, title=title, text=text, advice=advice
    )
