"""Page that compares two runs, and the choice of the second run among those of the same task."""

from __future__ import annotations

from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.store.db.run_summary import RunSort, RunSummaryFilter, RunSummaryRow
from agentguard.store.read.pagination import Page
from agentguard.store.store import Store
from agentguard.trajectory.model import Trajectory
from agentguard_server.viewer.escaping import to_single_line
from agentguard_server.viewer.renderer import get_renderer
from agentguard_server.viewer.run.branch_diff import StepPair, align_steps
from agentguard_server.viewer.run.links import PageLinks, build_run_url

_MAX_CANDIDATES = 50
_TASK_CHARS = 200


def routes() -> list[BaseRoute]:
    """Return the route."""
    return [Route("/diff", _render_diff)]


def _render_diff(request: Request) -> Response:
    settings, store = request.app.state.settings, request.app.state.store
    first = _get_run(store, request.query_params.get("a", ""), settings.tenant)
    other_id = request.query_params.get("b", "").strip()
    second = _get_run(store, other_id, settings.tenant) if other_id else None
    runs = [run for run in (first, second) if run is not None]
    return get_renderer(request).render_page(
        "run_diff.html",
        first=first,
        second=second,
        diff=None if second is None else diff_runs(first, second),
        links=[PageLinks(base=build_run_url(settings.prefix, run.id)) for run in runs],
        summaries=[store.get_run_summary(run.id, tenant=settings.tenant) for run in runs],
        candidates=[] if second is not None else _list_runs_of_task(store, first, settings.tenant),
    )


def _get_run(store: Store, run_id: str, tenant: str) -> Trajectory:
    run = store.get_trajectory(run_id, tenant=tenant) if run_id else None
    if run is None:
        raise HTTPException(404, f"There is no run {to_single_line(run_id, 80)!r}.")
    return run


def _list_runs_of_task(store: Store, run: Trajectory, tenant: str) -> list[RunSummaryRow]:
    """Return the newest other runs whose task begins like that of the run."""
    begin = run.task[:_TASK_CHARS]
    if not begin.strip():
        return []
    found = store.list_run_summaries(
        RunSummaryFilter(text=begin),
        RunSort(by="time", descending=True),
        Page(limit=_MAX_CANDIDATES + 1),
        tenant=tenant,
    )
    return [row for row in found.rows if row.run_id != run.id][:_MAX_CANDIDATES]


_MAX_STEPS = 1_000
_MAX_PAIRS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDiff:
    """Comparison of two runs.

    Attributes:
        pairs: corresponding steps, at most 200 pairs.
        more: number of pairs left out.
        divergence: position of the first pair whose steps differ; None if all are the same.
    """

    pairs: tuple[StepPair, ...]
    more: int
    divergence: int | None


def diff_runs(first: Trajectory, second: Trajectory) -> RunDiff:
    """Compare the current branches of two runs; of longer runs, their first 1,000 steps."""
    pairs = align_steps(first.steps[:_MAX_STEPS], second.steps[:_MAX_STEPS], 0)
    divergence = next((place for place, pair in enumerate(pairs) if pair.relation != "same"), None)
    return RunDiff(
        pairs=tuple(pairs[:_MAX_PAIRS]), more=max(0, len(pairs) - _MAX_PAIRS), divergence=divergence
    )
