"""ASGI application of the viewer."""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from importlib import import_module

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from agentguard.errors import AgentGuardError
from agentguard.store.store import Store
from agentguard_server.security_middleware import SecurityMiddleware
from agentguard_server.viewer import assets, error_pages, pages
from agentguard_server.viewer.data.diagnosis_queue import DiagnosisQueue
from agentguard_server.viewer.data.file_loader import LoadProgress
from agentguard_server.viewer.data.search_index_updates import SearchIndexUpdates
from agentguard_server.viewer.live_updates import EventHub
from agentguard_server.viewer.renderer import Renderer
from agentguard_server.viewer.settings import ViewerSettings


class Viewer(Starlette):
    """Application with the security middleware outermost, so that error pages have its headers too."""

    def __init__(self, settings: ViewerSettings, routes: Sequence[BaseRoute]) -> None:
        super().__init__(
            routes=routes,
            middleware=[Middleware(GZipMiddleware, minimum_size=1024, compresslevel=5)],
            exception_handlers={
                404: error_pages.render_not_found,
                405: error_pages.render_not_found,
                AgentGuardError: error_pages.render_error,
                Exception: error_pages.render_internal_error,
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

    It can be mounted in another application under ``settings.prefix``, with which its links then begin. The
    server must call ``app.state.hub.close()`` when it stops; otherwise it waits for open event streams.
    ``app.state.search_index.start()`` keeps the search index up to date. Before the store is closed,
    ``app.state.search_index.stop()`` and ``app.state.diagnosis_queue.stop()`` end work in the background.

    Args:
        store: store of the runs; the caller closes it.
        settings: settings of the viewer.
        loading: progress of the files that are being loaded into the store.
    """
    viewer_settings = settings or ViewerSettings()
    static = Route("/static/{name}", assets.serve_asset, name="static")
    app = Viewer(viewer_settings, [static, *_collect_routes()])
    app.state.store, app.state.settings = store, viewer_settings
    app.state.loading = loading or LoadProgress()
    app.state.diagnosis_queue = DiagnosisQueue(store, tenant=viewer_settings.tenant)
    app.state.search_index = SearchIndexUpdates(
        store, tenant=viewer_settings.tenant, is_busy=lambda: app.state.loading.running
    )
    app.state.hub = EventHub(
        store, tenant=viewer_settings.tenant, read_load_progress=app.state.loading.to_event_data
    )
    app.state.render = Renderer(prefix=viewer_settings.prefix)
    names = app.state.render.environment.globals
    names["asset"] = lambda name: viewer_settings.prefix + assets.build_asset_url(name)
    names["has_batches"] = bool(viewer_settings.batches)
    names["collector"] = "" if viewer_settings.collector is None else viewer_settings.collector.host
    return app


def _collect_routes() -> list[BaseRoute]:
    """Return the routes of all pages in the order of the module names."""
    routes: list[BaseRoute] = []
    for info in sorted(pkgutil.iter_modules(pages.__path__), key=lambda one: one.name):
        routes += import_module(f"{pages.__name__}.{info.name}").routes()
    return routes
