"""Two evaluations run by run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.errors import EvaluationError
from agentguard.evals.report.page import cent
from agentguard.evals.versus import Side, Versus, What, versus
from agentguard_server.viewer.pages.evals import sheets, stored_lengths
from agentguard_server.viewer.render import renderer
from agentguard_server.viewer.sheets import Chosen
from agentguard_server.viewer.sheets_page import data_response, day, paged, query

_PAGE: Final = 100
SIDES: Final[Mapping[Side, str]] = {
    Side.BOTH: "both right",
    Side.ONLY_A: "only A right",
    Side.ONLY_B: "only B right",
    Side.NEITHER: "both wrong",
}


def routes() -> list[BaseRoute]:
    """The page."""
    return [Route("/evals/compare", _page, name="compare"), Route("/api/evals/compare", _api)]


def _asked(request: Request) -> tuple[Chosen, Chosen, Versus] | str:
    """What is to be compared, or why it cannot be."""
    given, held = request.query_params, sheets(request)
    a, b = held.choose(given.get("a", "")), held.choose(given.get("b", ""))
    if a is None or b is None:
        return "Choose two evaluations to compare."
    what = What(given["what"]) if given.get("what") in set(What) else _what(a, b)
    try:
        return a, b, versus(a.result, b.result, what=what)
    except EvaluationError as error:
        return f"These cannot be compared: {error}."


def _what(a: Chosen, b: Chosen) -> What:
    """What is compared where nobody says: root-cause steps if both have them."""
    both = a.result.localization is not None and b.result.localization is not None
    return What.STEP if both else What.OUTCOME


def _page(request: Request) -> Response:
    found = _asked(request)
    if isinstance(found, str):
        return renderer(request).page("evals_missing.html", status=404, here="evals", said=found)
    a, b, held = found
    given = request.query_params
    show = Side(given["show"]) if given.get("show") in set(Side) else None
    rows = [pair for pair in held.pairs if show in (None, pair.side)]
    page = paged(rows, given.get("page"), size=_PAGE)
    return renderer(request).page(
        "compare.html",
        here="evals",
        query=query,
        day=day,
        a=a,
        b=b,
        held=held,
        whats=list(What),
        sides=SIDES,
        show=show,
        page=page,
        stored=stored_lengths(request, [pair.case for pair in page.rows]),
        cent=cent,
        difference=_said(held),
    )


def _said(held: Versus) -> dict[str, str]:
    """The difference in words: points, interval, p."""
    d = held.difference
    sign = "+" if d.mean > 0 else ""
    return {
        "points": f"{sign}{100 * d.mean:.1f}",
        "interval": f"{100 * d.low:.1f} to {100 * d.high:.1f}",
        "p": "< 0.001" if d.p < 0.001 else f"{d.p:.3f}",
    }


def _api(request: Request) -> Response:
    found = _asked(request)
    if isinstance(found, str):
        return data_response({"error": found}, status=404)
    a, b, held = found
    pairs: list[dict[str, Any]] = [
        {
            "run": pair.case.run,
            "id": pair.case.id,
            "side": pair.side.value,
            "share_a": pair.share_a,
            "share_b": pair.share_b,
        }
        for pair in held.pairs
    ]
    return data_response(
        {
            "a": a.ref,
            "b": b.ref,
            "what": held.what.value,
            "difference": asdict(held.difference),
            "counts": {side.value: number for side, number in held.counts.items()},
            "left_out": held.left_out,
            "same_data": held.same_data,
            "runs": pairs,
        }
    )
