"""Page of a run, its fragments, and its downloads."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast
from urllib.parse import unquote, urlencode

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import BaseRoute, Route

from agentguard.store.db.run_summary import VerdictFilter
from agentguard.store.issues import compute_issue_id
from agentguard.store.write.summary_aggregation import select_current_judgements
from agentguard.verdict import Verdict
from agentguard_server.viewer.downloads import respond_download, respond_full_text, respond_raw_json
from agentguard_server.viewer.escaping import to_single_line
from agentguard_server.viewer.formatting import list_code_choices
from agentguard_server.viewer.pages.feedback import get_reviewer
from agentguard_server.viewer.renderer import get_renderer
from agentguard_server.viewer.run.agent_graph import build_agent_graph
from agentguard_server.viewer.run.agent_lanes import build_lanes
from agentguard_server.viewer.run.branches import CURRENT_BRANCH, BranchView
from agentguard_server.viewer.run.finding_table import ACTION_THRESHOLD
from agentguard_server.viewer.run.links import STEPS_PER_PAGE, PageLinks, build_run_url
from agentguard_server.viewer.run.outline import build_outline
from agentguard_server.viewer.run.page_model import RunPageModel
from agentguard_server.viewer.run.search import search_run
from agentguard_server.viewer.run.timeline import Axis
from agentguard_server.viewer.run_page_cache import RunPageCache
from agentguard_server.viewer.settings import ViewerSettings

_VIEWS = ("conversation", "outline", "graph", "branches", "effects", "findings", "about", "search")
_FINDINGS_PER_PAGE = 100
_EVENT_OVERLAP_S = 2.0
"""Overlap of the page and its event stream, so that no change between the two is lost."""
_MAX_STEPS = 500
"""Number of steps in a fragment."""


def routes() -> list[BaseRoute]:
    """Return one route for all paths below a run, because an id may contain slashes."""
    return [Route("/runs/{rest:path}", handle_run, methods=["GET"], name="run")]


def handle_run(request: Request) -> Response:
    """Handle all requests for one run."""
    run_id, action = _parse_path(request)
    cache: RunPageCache = request.app.state.page_cache
    view = cache.get_view(run_id)
    if view is None:
        raise HTTPException(404, f"There is no run {to_single_line(run_id, 80)}.")
    if not action:
        return _render_page(request, view)
    if action == "steps":
        return _render_steps(request, view)
    if action == "text":
        return respond_full_text(view, request.query_params)
    if action == "raw.json":
        return respond_raw_json(view, request.query_params)
    return respond_download(view, action.removeprefix("export."), get_renderer(request))


def _parse_path(request: Request) -> tuple[str, str]:
    """Return the run id and the action of a path; unencoded slashes are part of the id."""
    raw = cast(bytes, request.scope.get("raw_path") or request.url.path.encode()).decode("ascii", "replace")
    sub_path = raw.partition("?")[0].partition("/runs/")[2]
    run_id, _, action = sub_path.partition("/")
    if action in _ACTIONS:
        return unquote(run_id), action
    full_path = unquote(sub_path)
    before, _, last_segment = full_path.rpartition("/")
    return (before, last_segment) if before and last_segment in _ACTIONS else (full_path, "")


_ACTIONS = frozenset({"", "steps", "text", "raw.json", "export.html", "export.atif", "export.json"})


@dataclass(frozen=True, slots=True)
class _StepWindow:
    """Requested range of steps of a branch."""

    branch: BranchView
    begin: int
    end: int

    @classmethod
    def from_request(cls, request: Request, view: RunPageModel) -> _StepWindow:
        """Parse the query; invalid values select the beginning of the current branch."""
        branch = _select_branch(request, view)
        step = _parse_integer(request, "step", 0)
        begin = max(0, min(step, len(branch.steps) - 1)) // STEPS_PER_PAGE * STEPS_PER_PAGE
        return cls(branch, begin, min(begin + STEPS_PER_PAGE, len(branch.steps)))


def _render_page(request: Request, view: RunPageModel) -> HTMLResponse:
    settings: ViewerSettings = request.app.state.settings
    window = _StepWindow.from_request(request, view)
    query = request.query_params.get("q", "").strip()[:200]
    show = "search" if query else request.query_params.get("show", "conversation")
    show = show if show in _VIEWS else "conversation"
    requested_axis = request.query_params.get("axis")
    axis = cast("Axis | None", requested_axis if requested_axis in ("time", "steps") else None)
    page = max(1, _parse_integer(request, "page", 1))
    base = build_run_url(settings.prefix, view.data.run.id)
    judgements = select_current_judgements(view.data.judgements)
    links = PageLinks(base=base, branch_id=window.branch.id)
    if show == "conversation":  # the other views do not contain the elements of steps
        links = replace(links, begin=window.begin, end=window.end)
    return get_renderer(request).render_page(
        "run.html",
        view=view,
        run=view.data.run,
        branch=window.branch,
        begin=window.begin,
        end=window.end,
        chunk=STEPS_PER_PAGE,
        base=base,
        links=links,
        show=show,
        tabs=_build_tabs(view),
        here_url=_build_url_factory(base, window.branch, axis),
        timeline=view.build_timeline(window.branch, axis),
        root=view.find_root_step(window.branch),
        finding_steps=sorted(view.turn_context.findings)[:5_000],
        turns=view.build_turns(window.branch, window.begin, window.end) if show == "conversation" else (),
        **_build_view_variables(request, view, window.branch, show),
        forks=view.group_forks(window.branch),
        scored_findings=view.scored_findings[(page - 1) * _FINDINGS_PER_PAGE : page * _FINDINGS_PER_PAGE],
        page=page,
        pages=-(-len(view.scored_findings) // _FINDINGS_PER_PAGE),
        threshold=ACTION_THRESHOLD,
        query=query,
        search=search_run(view.branches, query),
        may_label=settings.allows_feedback,
        issue_id=_find_issue_id(request, view.data.run.id),
        labelled_step=_select_labelled_step(request, view),
        reviewer=get_reviewer(request),
        in_review=request.query_params.get("review") == "yes",
        run_labels=[judgement for judgement in judgements if judgement.subject != "finding"],
        finding_labels={
            judgement.subject_id: judgement.right
            for judgement in judgements
            if judgement.subject == "finding"
        },
        since=time.time() - _EVENT_OVERLAP_S,
        code_choices=list_code_choices() if show == "conversation" else (),
    )


def _find_issue_id(request: Request, run_id: str) -> str:
    """Return the id of the issue of a failed run; empty for other runs."""
    state = request.app.state
    summary = state.store.get_run_summary(run_id, tenant=state.settings.tenant)
    if summary is None or summary.verdict != VerdictFilter.FAILED.value:
        return ""
    return compute_issue_id(summary.agent, summary.code, summary.module)


def _build_view_variables(
    request: Request, view: RunPageModel, branch: BranchView, show: str
) -> dict[str, Any]:
    """Return the template variables of the outline or of the graph."""
    root = view.find_root_step(branch)
    if show == "graph":
        axis: Axis | None = "steps" if request.query_params.get("axis") == "steps" else None
        return {
            "graph": build_agent_graph(branch.steps, root=root),
            "chart": build_lanes(branch, view.get_badges(branch), root=root, axis=axis),
        }
    if show != "outline":
        return {}
    step = min(_parse_integer(request, "step", root or 0), max(0, len(branch.steps) - 1))
    only_marked = request.query_params.get("only") == "marked"
    return {
        "outline": build_outline(
            branch, view.get_badges(branch), root=root, step=step, only_marked=only_marked
        ),
        "selected": step,
        "selected_turns": view.build_turns(branch, step, step + 1),
        "only_marked": only_marked,
    }


def _render_steps(request: Request, view: RunPageModel) -> HTMLResponse:
    """Render a range of steps as a fragment of the page."""
    settings: ViewerSettings = request.app.state.settings
    branch = _select_branch(request, view)
    begin = max(0, _parse_integer(request, "from", 0))
    end = min(_parse_integer(request, "to", begin + STEPS_PER_PAGE), begin + _MAX_STEPS, len(branch.steps))
    base = build_run_url(settings.prefix, view.data.run.id)
    return get_renderer(request).render_page(
        "run_steps.html",
        turns=view.build_turns(branch, begin, end),
        forks=view.group_forks(branch),
        branch=branch,
        base=base,
        links=PageLinks(base=base, branch_id=branch.id, begin=begin, end=end),
        here_url=_build_url_factory(base, branch, None),
        labelled_step=_select_labelled_step(request, view),
    )


def _select_labelled_step(request: Request, view: RunPageModel) -> int | None:
    """Return the step whose label confirms the diagnosis, or -1; None if steps cannot be labelled."""
    diagnosis = view.data.diagnosis
    if not request.app.state.settings.allows_feedback or view.data.stored_diagnosis is None or not diagnosis:
        return None
    has_failed = diagnosis.verdict is Verdict.FAILED
    return diagnosis.hypotheses[0].step if has_failed and diagnosis.hypotheses else -1


def _build_tabs(view: RunPageModel) -> list[tuple[str, str, int | None]]:
    recovery_count = max(len(view.branch_diffs), len(view.data.recoveries))
    return [
        ("conversation", "Conversation", None),
        ("outline", "Outline", None),
        ("graph", "Graph", None),
        ("branches", "Branches", recovery_count),
        ("effects", "Effects", len(view.ledger)),
        ("findings", "Findings", len(view.data.findings)),
        ("about", "About", None),
    ]


def _build_url_factory(base: str, branch: BranchView, axis: Axis | None) -> Callable[..., str]:
    """Return a function that builds URLs of this page with changed parameters."""
    base_parameters: dict[str, Any] = {"line": branch.id or None, "axis": axis}

    def url(**changed: object) -> str:
        state = {key: value for key, value in (base_parameters | changed).items() if value is not None}
        if state.get("show") == "conversation":
            del state["show"]
        return f"{base}?{urlencode(state, errors='replace')}" if state else base

    return url


def _select_branch(request: Request, view: RunPageModel) -> BranchView:
    """Return the branch of the parameter ``line``; the current branch if there is no such branch."""
    return view.get_branch(request.query_params.get("line", CURRENT_BRANCH)) or view.branches.current


def _parse_integer(request: Request, name: str, default: int) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isdecimal() and len(text) < 10 else default
