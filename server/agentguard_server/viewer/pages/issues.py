"""Pages of issues: the list, one issue with its runs, and the form that changes it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agentguard.errors import ConfigError
from agentguard.store.db.rows import IssueState
from agentguard.store.issues import (
    ISSUE_STATES,
    Issue,
    get_issue,
    list_issue_runs,
    list_issues,
    update_issue,
)
from agentguard_server.viewer.data.failure_clusters import shorten
from agentguard_server.viewer.form_parser import parse_form
from agentguard_server.viewer.formatting import CodeTitle, find_code_title, format_day
from agentguard_server.viewer.pagination import build_query, paginate
from agentguard_server.viewer.renderer import get_renderer, render_json

_PAGE_SIZE: Final = 50
_MAX_RUNS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class IssueView:
    """Issue for display.

    Attributes:
        issue: the issue.
        title: its title; by default the title of its code, its agent and its module.
        code: its code with title and definition.
        change: number of runs in the last seven days minus that in the seven days before.
    """

    issue: Issue
    title: str
    code: CodeTitle
    change: int


def routes() -> list[BaseRoute]:
    """Return the routes of the pages."""
    return [
        Route("/issues", _render_list, name="issues"),
        Route("/issues/{id}", _render_page, methods=["GET"], name="issue"),
        Route("/issues/{id}", _handle_change, methods=["POST"]),
        Route("/api/issues", _render_list_json),
        Route("/api/issues/{id}", _render_issue_json),
    ]


def _parse_state(request: Request) -> IssueState | None:
    """Return the issue state of the query; None for all issues."""
    return next((state for state in ISSUE_STATES if state == request.query_params.get("state")), None)


def _render_list(request: Request) -> Response:
    state, settings = _parse_state(request), request.app.state.settings
    issues = list_issues(request.app.state.store, state=state, tenant=settings.tenant)
    page = paginate(issues, request.query_params.get("page"), size=_PAGE_SIZE)
    return get_renderer(request).render_page(
        "issues.html",
        here="issues",
        page=page,
        views=[_build_view(issue) for issue in page.rows],
        state=state,
        states=ISSUE_STATES,
        parameters={"state": state or ""},
        query=build_query,
        day=format_day,
    )


def _render_page(request: Request) -> Response:
    settings, store = request.app.state.settings, request.app.state.store
    issue = _require_issue(request)
    return get_renderer(request).render_page(
        "issue.html",
        here="issues",
        view=_build_view(issue),
        runs=list_issue_runs(store, issue, limit=_MAX_RUNS, tenant=settings.tenant),
        states=ISSUE_STATES,
        may_change=settings.allows_feedback,
        query=build_query,
        day=format_day,
        shorten=shorten,
    )


async def _handle_change(request: Request) -> Response:
    fields = parse_form(await request.body())
    return await run_in_threadpool(_change_issue, request, fields)


def _change_issue(request: Request, fields: dict[str, str]) -> Response:
    settings = request.app.state.settings
    if not settings.allows_feedback:
        raise ConfigError("issues cannot be changed here: give the viewer a store with --store")
    issue = _require_issue(request)
    changed = update_issue(
        request.app.state.store,
        issue.id,
        title=fields.get("title"),
        owner=fields.get("owner"),
        state=fields.get("state"),
        tenant=settings.tenant,
    )
    if "application/json" in request.headers.get("accept", ""):
        return render_json(_encode(changed))
    return RedirectResponse(f"{settings.prefix}/issues/{issue.id}", 303)


def _render_list_json(request: Request) -> Response:
    issues = list_issues(
        request.app.state.store, state=_parse_state(request), tenant=request.app.state.settings.tenant
    )
    return render_json({"issues": [_encode(issue) for issue in issues]})


def _render_issue_json(request: Request) -> Response:
    issue, state = _require_issue(request), request.app.state
    runs = list_issue_runs(state.store, issue, limit=_MAX_RUNS, tenant=state.settings.tenant)
    return render_json(_encode(issue) | {"latest": [run.run_id for run in runs]})


def _require_issue(request: Request) -> Issue:
    state = request.app.state
    issue = get_issue(state.store, request.path_params["id"], tenant=state.settings.tenant)
    if issue is None:
        raise HTTPException(404, "There is no such issue.")
    return issue


def _build_view(issue: Issue) -> IssueView:
    code = find_code_title(issue.code)
    parts = (code.title or "Failure without evidence", issue.agent, issue.module)
    return IssueView(
        issue=issue,
        title=issue.title or " · ".join(part for part in parts if part),
        code=code,
        change=sum(issue.trend[-7:]) - sum(issue.trend[-14:-7]),
    )


def _encode(issue: Issue) -> dict[str, Any]:
    return asdict(issue) | {"title": _build_view(issue).title}
