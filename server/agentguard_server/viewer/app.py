"""The viewer as an ASGI application: pages that find themselves, templates, assets, one store."""

from __future__ import annotations

import pkgutil
from importlib import import_module

from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount
from starlette.staticfiles import StaticFiles

from agentguard.store.store import Store
from agentguard_server.settings import ViewerSettings
from agentguard_server.viewer import pages
from agentguard_server.viewer.render import ASSETS, Renderer


def build(store: Store, settings: ViewerSettings | None = None) -> Starlette:
    """Make the application; every module of ``viewer.pages`` adds its own ``routes()``.

    Args:
        store: whose runs are shown; it stays the caller's to close.
        settings: how it is served.
    """
    given = settings or ViewerSettings()
    app = Starlette(routes=[Mount("/static", StaticFiles(directory=ASSETS), name="static"), *_routes()])
    app.state.store, app.state.settings = store, given
    app.state.render = Renderer(prefix=given.prefix)
    return app


def _routes() -> list[BaseRoute]:
    """The routes of all pages, in the order of their modules' names."""
    found: list[BaseRoute] = []
    for info in sorted(pkgutil.iter_modules(pages.__path__), key=lambda one: one.name):
        found += import_module(f"{pages.__name__}.{info.name}").routes()
    return found
