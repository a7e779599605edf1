"""Page that compares two evaluations run by run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.errors import EvaluationError
from agentguard.evals.comparison import CorrectSide, Criterion, EvaluationComparison, compare_evaluations
from agentguard.html_report.page import format_percent
from agentguard_server.viewer.data.evaluation_files import MethodSelection
from agentguard_server.viewer.formatting import format_day
from agentguard_server.viewer.pages.evals import find_stored_cases, get_evaluation_files
from agentguard_server.viewer.pagination import build_query, paginate
from agentguard_server.viewer.renderer import get_renderer, render_json

_PAGE: Final = 100
SIDE_LABELS: Final[Mapping[CorrectSide, str]] = {
    CorrectSide.BOTH: "both right",
    CorrectSide.ONLY_A: "only A right",
    CorrectSide.ONLY_B: "only B right",
    CorrectSide.NEITHER: "both wrong",
}


def routes() -> list[BaseRoute]:
    """Return the routes of the page."""
    return [Route("/evals/compare", _render_page, name="compare"), Route("/api/evals/compare", _render_json)]


def _compare_selection(
    request: Request,
) -> tuple[MethodSelection, MethodSelection, EvaluationComparison] | str:
    """Return the two methods and their comparison, or a message if they cannot be compared."""
    parameters, files = request.query_params, get_evaluation_files(request)
    a, b = files.select_method(parameters.get("a", "")), files.select_method(parameters.get("b", ""))
    if a is None or b is None:
        return "Choose two evaluations to compare."
    criterion = (
        Criterion(parameters["what"])
        if parameters.get("what") in set(Criterion)
        else _select_default_criterion(a, b)
    )
    try:
        return a, b, compare_evaluations(a.result, b.result, criterion=criterion)
    except EvaluationError as error:
        return f"These cannot be compared: {error}."


def _select_default_criterion(a: MethodSelection, b: MethodSelection) -> Criterion:
    """Return the root-cause step if both evaluations have one, else the outcome."""
    have_locations = a.result.localization is not None and b.result.localization is not None
    return Criterion.STEP if have_locations else Criterion.OUTCOME


def _render_page(request: Request) -> Response:
    selection = _compare_selection(request)
    if isinstance(selection, str):
        return get_renderer(request).render_page(
            "evals_missing.html", status=404, here="evals", message=selection
        )
    a, b, comparison = selection
    parameters = request.query_params
    show = CorrectSide(parameters["show"]) if parameters.get("show") in set(CorrectSide) else None
    rows = [pair for pair in comparison.pairs if show in (None, pair.side)]
    page = paginate(rows, parameters.get("page"), size=_PAGE)
    return get_renderer(request).render_page(
        "eval_comparison.html",
        here="evals",
        query=build_query,
        day=format_day,
        a=a,
        b=b,
        comparison=comparison,
        criteria=list(Criterion),
        sides=SIDE_LABELS,
        show=show,
        page=page,
        stored=find_stored_cases(request, [pair.case for pair in page.rows]),
        percent=format_percent,
        difference=_describe_difference(comparison),
    )


def _describe_difference(comparison: EvaluationComparison) -> dict[str, str]:
    """Return the difference of A and B as texts: percentage points, 95 % interval and p-value."""
    difference = comparison.difference
    sign = "+" if difference.mean > 0 else ""
    return {
        "points": f"{sign}{100 * difference.mean:.1f}",
        "interval": f"{100 * difference.low:.1f} to {100 * difference.high:.1f}",
        "p": "< 0.001" if difference.p < 0.001 else f"{difference.p:.3f}",
    }


def _render_json(request: Request) -> Response:
    selection = _compare_selection(request)
    if isinstance(selection, str):
        return render_json({"error": selection}, status=404)
    a, b, comparison = selection
    pairs: list[dict[str, Any]] = [
        {
            "run": pair.case.run,
            "id": pair.case.id,
            "side": pair.side.value,
            "share_a": pair.share_a,
            "share_b": pair.share_b,
        }
        for pair in comparison.pairs
    ]
    return render_json(
        {
            "a": a.ref,
            "b": b.ref,
            "what": comparison.criterion.value,
            "difference": asdict(comparison.difference),
            "counts": {side.value: number for side, number in comparison.counts.items()},
            "left_out": comparison.left_out,
            "same_data": comparison.same_data,
            "runs": pairs,
        }
    )
