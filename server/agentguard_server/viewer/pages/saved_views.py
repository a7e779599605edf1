"""Endpoint of the forms that save and delete views of the list of runs."""

from __future__ import annotations

from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agentguard.errors import ConfigError
from agentguard.store.saved_views import list_saved_views, save_view
from agentguard_server.viewer.data.run_query import parse_run_query
from agentguard_server.viewer.form_parser import parse_form
from agentguard_server.viewer.renderer import render_json


def routes() -> list[BaseRoute]:
    """Return the routes."""
    return [
        Route("/views", _handle_change, methods=["POST"]),
        Route("/api/views", _render_json, methods=["GET"]),
    ]


async def _handle_change(request: Request) -> Response:
    fields = parse_form(await request.body())
    return await run_in_threadpool(_change_views, request, fields)


def _change_views(request: Request, fields: dict[str, str]) -> Response:
    store, settings = request.app.state.store, request.app.state.settings
    if not settings.allows_feedback:
        raise ConfigError("views cannot be saved here: give the viewer a store with --store")
    name = fields.get("name", "")
    if fields.get("action") == "delete":
        store.delete_saved_view(name, tenant=settings.tenant)
        return RedirectResponse(f"{settings.prefix}/", 303)
    query = parse_run_query(parse_qsl(fields.get("query", "").lstrip("?"))).to_query_string()
    view = save_view(store, name, query.lstrip("?"), tenant=settings.tenant)
    return RedirectResponse(f"{settings.prefix}/?{view.query}", 303)


def _render_json(request: Request) -> Response:
    state = request.app.state
    views = list_saved_views(state.store, tenant=state.settings.tenant)
    return render_json({"views": [{"name": view.name, "query": view.query} for view in views]})
