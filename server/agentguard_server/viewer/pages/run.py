"""The page of a run, its fragments, its raw JSON, and its exports."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import unquote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from agentguard.store.tally import standing
from agentguard_server.settings import ViewerSettings
from agentguard_server.viewer.downloads import download, raw_json, whole_text
from agentguard_server.viewer.render import renderer
from agentguard_server.viewer.run.lines import LIVE, Line
from agentguard_server.viewer.run.links import CHUNK, PageLinks, base_of
from agentguard_server.viewer.run.names import choices
from agentguard_server.viewer.run.scores import THRESHOLD
from agentguard_server.viewer.run.search import search
from agentguard_server.viewer.run.strip import Axis
from agentguard_server.viewer.run.view import View
from agentguard_server.viewer.shelf import Shelf
from agentguard_server.viewer.text import plain

_VIEWS = ("conversation", "branches", "effects", "findings", "about", "search")
_ROWS = 100
_BEFORE = 2.0
"""Seconds before a page is rendered from which on it is told of changes, lest one fall between."""
_MOST_STEPS = 500


def routes() -> list[BaseRoute]:
    """One route: ids may hold slashes, so that the path is taken apart before it is decoded."""
    return [Route("/runs/{rest:path}", run, methods=["GET"], name="run")]


def run(request: Request) -> Response:
    """Whatever is asked of one run."""
    run_id, action = _asked(request)
    shelf = _shelf(request)
    view = shelf.view(run_id)
    if view is None:
        raise HTTPException(404, f"There is no run {plain(run_id, 80)}.")
    if not action:
        return _page(request, view)
    if action == "steps":
        return _steps(request, view)
    if action == "text":
        return whole_text(view, request.query_params)
    if action == "raw.json":
        return raw_json(view, request.query_params)
    return download(view, action.removeprefix("export."), renderer(request))


def _asked(request: Request) -> tuple[str, str]:
    """The run's id and what is asked of it; an id with slashes that were not encoded is taken whole."""
    raw = cast(bytes, request.scope.get("raw_path") or request.url.path.encode()).decode("ascii", "replace")
    rest = raw.partition("?")[0].partition("/runs/")[2]
    first, _, action = rest.partition("/")
    if action in _ACTIONS:
        return unquote(first), action
    whole = unquote(rest)
    before, _, last = whole.rpartition("/")
    return (before, last) if before and last in _ACTIONS else (whole, "")


_ACTIONS = frozenset({"", "steps", "text", "raw.json", "export.html", "export.atif", "export.json"})


def _shelf(request: Request) -> Shelf:
    state = request.app.state
    if not hasattr(state, "shelf"):
        state.shelf = Shelf(state.store, state.settings.tenant)
    return cast(Shelf, state.shelf)


@dataclass(frozen=True, slots=True)
class _Place:
    """What part of a run is asked for."""

    line: Line
    begin: int
    end: int

    @classmethod
    def of(cls, request: Request, view: View) -> _Place:
        """Read the query; what makes no sense is the beginning of the live line."""
        line = view.line(request.query_params.get("line", LIVE)) or view.lines.live
        at = _whole(request, "step", 0)
        begin = max(0, min(at, len(line.steps) - 1)) // CHUNK * CHUNK
        return cls(line, begin, min(begin + CHUNK, len(line.steps)))


def _page(request: Request, view: View) -> HTMLResponse:
    settings: ViewerSettings = request.app.state.settings
    place = _Place.of(request, view)
    query = request.query_params.get("q", "").strip()[:200]
    show = "search" if query else request.query_params.get("show", "conversation")
    show = show if show in _VIEWS else "conversation"
    asked = request.query_params.get("axis")
    axis = cast("Axis | None", asked if asked in ("time", "steps") else None)
    page = max(1, _whole(request, "page", 1))
    base = base_of(settings.prefix, view.bundle.run.id)
    held = standing(view.bundle.judgements)
    inside = show == "conversation"
    links = PageLinks(
        base=base, line=place.line.id, begin=place.begin if inside else 0, end=place.end if inside else 0
    )
    return renderer(request).page(
        "run.html",
        view=view,
        run=view.bundle.run,
        line=place.line,
        begin=place.begin,
        end=place.end,
        chunk=CHUNK,
        base=base,
        links=links,
        show=show,
        tabs=_tabs(view),
        here_url=_urls(base, place.line, axis),
        s=view.strip(place.line, axis),
        root=view.root(place.line),
        found=sorted(view.reading.findings)[:5_000],
        turns=view.turns(place.line, place.begin, place.end) if show == "conversation" else (),
        forks=view.forks(place.line),
        scores=view.scores[(page - 1) * _ROWS : page * _ROWS],
        page=page,
        pages=-(-len(view.scores) // _ROWS),
        threshold=THRESHOLD,
        query=query,
        hits=search(view.lines, query),
        may_judge=settings.may_judge,
        judged=[one for one in held if one.subject != "finding"],
        said={one.subject_id: one.right for one in held if one.subject == "finding"},
        since=time.time() - _BEFORE,
        choices=choices() if show == "conversation" else (),
    )


def _steps(request: Request, view: View) -> HTMLResponse:
    """Some steps of a line as a fragment of the page."""
    settings: ViewerSettings = request.app.state.settings
    line = view.line(request.query_params.get("line", LIVE)) or view.lines.live
    begin = max(0, _whole(request, "from", 0))
    end = min(_whole(request, "to", begin + CHUNK), begin + _MOST_STEPS, len(line.steps))
    base = base_of(settings.prefix, view.bundle.run.id)
    return renderer(request).page(
        "run_steps.html",
        turns=view.turns(line, begin, end),
        forks=view.forks(line),
        line=line,
        base=base,
        links=PageLinks(base=base, line=line.id, begin=begin, end=end),
        here_url=_urls(base, line, None),
    )


def _tabs(view: View) -> list[tuple[str, str, int | None]]:
    acted = max(len(view.partings), len(view.bundle.recoveries))
    return [
        ("conversation", "Conversation", None),
        ("branches", "Branches", acted),
        ("effects", "Effects", len(view.ledger)),
        ("findings", "Findings", len(view.bundle.findings)),
        ("about", "About", None),
    ]


def _urls(base: str, line: Line, axis: Axis | None) -> Callable[..., str]:
    """Makes addresses of this page with some of its state changed."""
    kept: dict[str, Any] = {"line": line.id or None, "axis": axis}

    def url(**changed: object) -> str:
        state = {key: value for key, value in (kept | changed).items() if value is not None}
        if state.get("show") == "conversation":
            del state["show"]
        return f"{base}?{urlencode(state, errors='replace')}" if state else base

    return url


def _whole(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else default
