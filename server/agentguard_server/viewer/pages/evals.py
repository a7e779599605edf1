"""Kept evaluations: the list, and the page of one with its scores, plots and every run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route

from agentguard.evals.report import lead, overall, single
from agentguard.evals.report.breakdown import RunRow, by_run
from agentguard.evals.report.page import cent, parts_style
from agentguard.evals.result import Evaluation
from agentguard.evals.scores import Case
from agentguard.store.aggregate import run_lengths
from agentguard_server.viewer.render import renderer
from agentguard_server.viewer.sheets import Chosen, Found, Sheets
from agentguard_server.viewer.sheets_page import data_response, day, paged, query

_PAGE: Final = 100
SHOWN: Final[Mapping[str, str]] = {
    "all": "all runs",
    "right": "named right",
    "wrong": "named wrong",
    "abstained": "abstained",
    "error": "method failed",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One method in the list of evaluations."""

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
    """The pages."""
    return [
        Route("/evals", _list, name="evals"),
        Route("/evals/parts.css", _style, name="evals-style"),
        Route("/evals/{id}", _page, name="eval"),
        Route("/api/evals", _api_list),
        Route("/api/evals/{id}", _api_one),
    ]


def sheets(request: Request) -> Sheets:
    """The application's evaluations."""
    state = request.app.state
    if not hasattr(state, "sheets"):
        state.sheets = Sheets(state.settings.evals)
    found: Sheets = state.sheets
    return found


def stored_lengths(request: Request, cases: list[Case]) -> frozenset[str]:
    """Ids of the cases whose run is in the store: called the same, and with as many steps."""
    state = request.app.state
    ids = [case.id for case in cases if case.id]
    lengths = run_lengths(state.store, ids, tenant=state.settings.tenant)
    return frozenset(case.id for case in cases if lengths.get(case.id) == case.length)


def _list(request: Request) -> Response:
    found = sheets(request).all()
    return renderer(request).page(
        "evals.html",
        here="evals",
        query=query,
        day=day,
        groups=[(one, _lines(one)) for one in found],
        several=sum(len(_lines(one)) for one in found) > 1,
        places=[str(place) for place in request.app.state.settings.evals],
    )


def _lines(found: Found) -> list[Line]:
    """The measured methods of a file, then its baselines, the best first."""
    if found.sheet is None:
        return []
    first = found.sheet.results[0]
    named = {one.method for one in found.sheet.results}
    beside = [one for label, one in first.baselines.items() if label not in named]
    beside.sort(key=lambda one: -(one.localization.step.mean if one.localization else 0.0))
    chosen = [Chosen(sheet=found.sheet, result=one) for one in (*found.sheet.results, *beside)]
    return [_line(one, baseline=one.result.method not in named) for one in chosen]


def _line(chosen: Chosen, *, baseline: bool) -> Line:
    held = chosen.result
    where = held.localization
    low, high = where.wilson95["step"] if where else (None, None)
    return Line(
        ref=chosen.ref,
        id=chosen.sheet.id,
        method=held.method,
        setting=held.setting.value.replace("_", " "),
        n=held.n,
        step=cent(where.step.mean) if where else "–",
        interval=f"{cent(low, 0)}–{cent(high, 0)}" if where else "",
        baseline="baseline" if baseline else "",
        auroc=f"{held.outcome.auroc.mean:.3f}" if held.outcome else "–",
    )


def _page(request: Request) -> Response:
    sheet = sheets(request).get(request.path_params["id"])
    if sheet is None:
        return _missing(request)
    given = request.query_params
    result = sheet.method(given.get("method", "")) or sheet.results[0]
    show = given.get("show", "all") if given.get("show") in SHOWN else "all"
    words = given.get("q", "").strip()
    rows = [row for row in by_run(result) if _shown(row, show) and words.lower() in row.case.run.lower()]
    page = paged(rows, given.get("page"), size=_PAGE)
    return renderer(request).page(
        "eval.html",
        here="evals",
        query=query,
        day=day,
        sheet=sheet,
        result=result,
        lead=lead(sheet.results[0], sheet.plan),
        overall=Markup("".join(overall(sheet.results, sheet.plan))),  # noqa: S704  escaped where it is made
        single=Markup("".join(single(result))),  # noqa: S704  escaped where it is made
        methods=[one.method for one in sheet.results],
        shown=SHOWN,
        show=show,
        words=words,
        page=page,
        stored=stored_lengths(request, [row.case for row in page.rows]),
        chosen=Chosen(sheet=sheet, result=result),
    )


def _shown(row: RunRow, show: str) -> bool:
    if show == "right":
        return row.right is not None and row.right > 0.5
    if show == "wrong":
        return row.right is not None and row.right <= 0.5
    return show == "all" or row.verdict == show


def _missing(request: Request) -> Response:
    return renderer(request).page(
        "evals_missing.html", status=404, here="evals", said="There is no such evaluation."
    )


def _style(_request: Request) -> Response:
    return PlainTextResponse(parts_style(), media_type="text/css")


def _api_list(request: Request) -> Response:
    return data_response(
        {
            "evaluations": [
                {
                    "file": one.name,
                    "problem": one.problem or None,
                    "id": one.sheet.id if one.sheet else None,
                    "made_at": one.sheet.made_at if one.sheet else None,
                    "methods": [asdict(line) for line in _lines(one)],
                }
                for one in sheets(request).all()
            ]
        }
    )


def _api_one(request: Request) -> Response:
    sheet = sheets(request).get(request.path_params["id"])
    if sheet is None:
        return data_response({"error": "there is no such evaluation"}, status=404)
    return data_response(
        {
            "id": sheet.id,
            "made_at": sheet.made_at,
            "plan": asdict(sheet.plan),
            "methods": [_described(one) for one in sheet.results],
        }
    )


def _described(held: Evaluation) -> dict[str, Any]:
    return {**held.as_dict(), "runs": [_run(row) for row in by_run(held)]}


def _run(row: RunRow) -> dict[str, Any]:
    plain = asdict(row)
    plain.pop("case")
    return {**asdict(row.case), **{f"said_{name}": value for name, value in plain.items()}}
