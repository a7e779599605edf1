"""Page of the search in the contents of all runs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.store.db.run_summary import RunSort
from agentguard.store.read.pagination import Page
from agentguard_server.viewer.data.run_query import parse_run_query
from agentguard_server.viewer.renderer import get_renderer
from agentguard_server.viewer.run.branches import CURRENT_BRANCH
from agentguard_server.viewer.run.links import PageLinks, build_run_url

_TIMEOUT_S: Final = 3.0
_RUNS_PER_PAGE: Final = 25


def routes() -> list[BaseRoute]:
    """Return the route."""
    return [Route("/search", _render_search)]


def _render_search(request: Request) -> Response:
    """Search the steps of the runs that the filters of the list select, newest runs first."""
    settings, store = request.app.state.settings, request.app.state.store
    query = replace(parse_run_query(request.query_params.multi_items()), sort=RunSort())
    text = query.filter.text or ""
    result = None
    if text:
        result = store.search_steps(
            text,
            replace(query.filter, text=None),
            Page(limit=_RUNS_PER_PAGE, after=query.after),
            timeout_s=_TIMEOUT_S,
            tenant=settings.tenant,
        )
    return get_renderer(request).render_page(
        "step_search.html",
        text=text,
        query=query,
        filters=[pair for pair in query.filters if pair[0] != "q"],
        result=result,
        link=lambda run_id, match: PageLinks(base=build_run_url(settings.prefix, run_id)).step(
            match.branch_id or CURRENT_BRANCH, match.step
        ),
    )
