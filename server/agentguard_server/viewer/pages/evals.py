"""Pages of saved evaluations: the list, and one evaluation with scores, plots and runs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from agentguard.evals.report import describe_setup, render_method, render_overall
from agentguard.evals.report.breakdown import BreakdownRow, summarize_runs
from agentguard.evals.result import Evaluation
from agentguard.evals.scoring import Case
from agentguard.html_report.page import format_percent, read_parts_style
from agentguard.store.read.failure_statistics import get_run_lengths
from agentguard_server.viewer.data.evaluation_files import EvaluationFile, EvaluationFiles, MethodSelection
from agentguard_server.viewer.formatting import format_day
from agentguard_server.viewer.pagination import build_query, paginate
from agentguard_server.viewer.renderer import get_renderer, render_json

_PAGE: Final = 100
RUN_FILTERS: Final[Mapping[str, str]] = {
    "all": "all runs",
    "right": "named right",
    "wrong": "named wrong",
    "undecided": "undecided",
    "error": "method failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRow:
    """Row of the list of evaluations: one method, with texts for display.

    Attributes:
        ref: reference of the method in a URL; see `MethodSelection`.
        id: id of the evaluation file.
        method, setting: the method and the setting of the evaluation.
        n: number of runs.
        step: step accuracy.
        interval: its Wilson interval; empty if the evaluation has no root causes.
        baseline: ``baseline`` for a baseline, else empty.
        auroc: AUROC of failed against passed runs.
    """

    ref: str
    id: str
    method: str
    setting: str
    n: int
    step: str
    interval: str
    baseline: str
    auroc: str


def routes() -> list[BaseRoute]:
    """Return the routes of the pages."""
    return [
        Route("/evals", _render_list, name="evals"),
        Route("/evals/parts.css", _serve_style, name="evals-style"),
        Route("/evals/{id}", _render_page, name="eval"),
        Route("/api/evals", _render_list_json),
        Route("/api/evals/{id}", _render_evaluation_json),
    ]


def get_evaluation_files(request: Request) -> EvaluationFiles:
    """Return the evaluation files of the application."""
    files: EvaluationFiles = request.app.state.evaluation_files
    return files


def find_stored_cases(request: Request, cases: list[Case]) -> frozenset[str]:
    """Return the ids of the cases whose run is in the store with the same id and the same number of steps."""
    state = request.app.state
    ids = [case.id for case in cases if case.id]
    lengths = get_run_lengths(state.store, ids, tenant=state.settings.tenant)
    return frozenset(case.id for case in cases if lengths.get(case.id) == case.length)


def _render_list(request: Request) -> Response:
    files = get_evaluation_files(request).list_files()
    return get_renderer(request).render_page(
        "evals.html",
        here="evals",
        query=build_query,
        day=format_day,
        groups=[(file, _build_rows(file)) for file in files],
        several=sum(len(_build_rows(file)) for file in files) > 1,
        places=[str(place) for place in request.app.state.settings.evals],
    )


def _build_rows(file: EvaluationFile) -> list[EvaluationRow]:
    """Return the evaluated methods of a file, then its baselines, best first."""
    if file.result_file is None:
        return []
    first_result = file.result_file.results[0]
    methods = {one.method for one in file.result_file.results}
    baselines = [one for label, one in first_result.baselines.items() if label not in methods]
    baselines.sort(key=lambda one: -(one.localization.step.mean if one.localization else 0.0))
    selections = [
        MethodSelection(result_file=file.result_file, result=one)
        for one in (*file.result_file.results, *baselines)
    ]
    return [_build_row(one, baseline=one.result.method not in methods) for one in selections]


def _build_row(selection: MethodSelection, *, baseline: bool) -> EvaluationRow:
    result = selection.result
    localization = result.localization
    low, high = localization.wilson95["step"] if localization else (None, None)
    return EvaluationRow(
        ref=selection.ref,
        id=selection.result_file.id,
        method=result.method,
        setting=result.setting.value.replace("_", " "),
        n=result.n,
        step=format_percent(localization.step.mean) if localization else "–",
        interval=f"{format_percent(low, 0)}–{format_percent(high, 0)}" if localization else "",
        baseline="baseline" if baseline else "",
        auroc=f"{result.outcome.auroc.mean:.3f}" if result.outcome else "–",
    )


def _render_page(request: Request) -> Response:
    result_file = get_evaluation_files(request).find_file(request.path_params["id"])
    if result_file is None:
        return _render_missing(request)
    parameters = request.query_params
    result = result_file.find_method(parameters.get("method", "")) or result_file.results[0]
    show = parameters.get("show", "all") if parameters.get("show") in RUN_FILTERS else "all"
    text = parameters.get("q", "").strip()
    rows = [
        row
        for row in summarize_runs(result)
        if _matches_filter(row, show) and text.lower() in row.case.run.lower()
    ]
    page = paginate(rows, parameters.get("page"), size=_PAGE)
    return get_renderer(request).render_page(
        "eval.html",
        here="evals",
        query=build_query,
        day=format_day,
        result_file=result_file,
        result=result,
        setup=describe_setup(result_file.results[0], result_file.plan),
        overall_report=Markup("".join(render_overall(result_file.results, result_file.plan))),  # noqa: S704  escaped by the report
        method_report=Markup("".join(render_method(result))),  # noqa: S704  escaped by the report
        methods=[evaluated.method for evaluated in result_file.results],
        run_filters=RUN_FILTERS,
        show=show,
        text=text,
        page=page,
        stored=find_stored_cases(request, [row.case for row in page.rows]),
    )


def _matches_filter(row: BreakdownRow, show: str) -> bool:
    if show == "right":
        return row.right is not None and row.right > 0.5
    if show == "wrong":
        return row.right is not None and row.right <= 0.5
    return show == "all" or row.verdict == show


def _render_missing(request: Request) -> Response:
    return get_renderer(request).render_page(
        "evals_missing.html", status=404, here="evals", message="There is no such evaluation."
    )


def _serve_style(_request: Request) -> Response:
    return PlainTextResponse(read_parts_style(), media_type="text/css")


def _render_list_json(request: Request) -> Response:
    return render_json(
        {
            "evaluations": [
                {
                    "file": one.name,
                    "problem": one.problem or None,
                    "id": one.result_file.id if one.result_file else None,
                    "made_at": one.result_file.made_at if one.result_file else None,
                    "methods": [asdict(row) for row in _build_rows(one)],
                }
                for one in get_evaluation_files(request).list_files()
            ]
        }
    )


def _render_evaluation_json(request: Request) -> Response:
    result_file = get_evaluation_files(request).find_file(request.path_params["id"])
    if result_file is None:
        return render_json({"error": "there is no such evaluation"}, status=404)
    return render_json(
        {
            "id": result_file.id,
            "made_at": result_file.made_at,
            "plan": asdict(result_file.plan),
            "methods": [_encode_evaluation(one) for one in result_file.results],
        }
    )


def _encode_evaluation(evaluation: Evaluation) -> dict[str, Any]:
    return {**evaluation.as_dict(), "runs": [_run_to_dict(row) for row in summarize_runs(evaluation)]}


def _run_to_dict(row: BreakdownRow) -> dict[str, Any]:
    fields = asdict(row)
    fields.pop("case")
    return {**asdict(row.case), **{f"said_{name}": value for name, value in fields.items()}}
