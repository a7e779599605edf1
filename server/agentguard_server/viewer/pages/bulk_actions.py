"""Endpoint of the form under the list of runs: actions on the selected runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import BaseRoute, Route

from agentguard.errors import ConfigError
from agentguard.store.store import Store
from agentguard.verdict import Verdict
from agentguard_server.viewer.form_parser import parse_form_pairs
from agentguard_server.viewer.pages.feedback import store_judgement
from agentguard_server.viewer.pages.runs import format_csv
from agentguard_server.viewer.renderer import get_renderer

_MAX_RUNS: Final = 1_000
_ACTIONS: Final = ("diagnose", "right", "wrong", "failed", "passed", "csv", "delete")


def routes() -> list[BaseRoute]:
    """Return the route."""
    return [Route("/bulk", _handle_action, methods=["POST"])]


async def _handle_action(request: Request) -> Response:
    pairs = parse_form_pairs(await request.body(), max_fields=_MAX_RUNS + 8)
    return await run_in_threadpool(_apply_action, request, pairs)


def _apply_action(request: Request, pairs: Sequence[tuple[str, str]]) -> Response:
    state = request.app.state
    fields = dict(pairs)
    action = fields.get("action", "")
    if action not in _ACTIONS:
        raise ConfigError(f"action is {action[:40]!r}, expected one of {', '.join(_ACTIONS)}")
    ids = list(dict.fromkeys(value for name, value in pairs if name == "run"))
    if not ids:
        raise ConfigError("no run is selected: select runs in the list first")
    if action == "csv":
        return _respond_csv(state.store, ids, state.settings.tenant)
    if not state.settings.allows_feedback:
        raise ConfigError("changes cannot be stored here: give the viewer a store with --store")
    if action == "delete" and fields.get("confirmed") != "yes":
        return get_renderer(request).render_page("bulk_delete.html", here="runs", ids=ids)
    if action == "delete":
        for run_id in ids:
            state.store.delete_run(run_id, tenant=state.settings.tenant)
    elif action == "diagnose":
        state.diagnosis_queue.add(ids)
    else:
        _label_runs(request, ids, action)
    return RedirectResponse(f"{state.settings.prefix}/", 303)


def _respond_csv(store: Store, ids: Sequence[str], tenant: str) -> Response:
    summaries = (store.get_run_summary(run_id, tenant=tenant) for run_id in ids)
    text = "".join(format_csv(row for row in summaries if row is not None))
    headers = {"content-disposition": 'attachment; filename="runs.csv"'}
    return Response(text, media_type="text/csv; charset=utf-8", headers=headers)


def _label_runs(request: Request, ids: Sequence[str], action: str) -> None:
    """Label the latest diagnosis of each run.

    Raises ConfigError, before the first label, if a run has no diagnosis, or if an undecided one is called
    right or wrong.
    """
    state = request.app.state
    diagnoses = {run_id: state.store.list_diagnoses(run_id, tenant=state.settings.tenant) for run_id in ids}
    undiagnosed = [run_id for run_id, rows in diagnoses.items() if not rows]
    if undiagnosed:
        raise ConfigError(
            f"no run was labelled, because {len(undiagnosed)} of {len(ids)} have no diagnosis, first "
            f"{undiagnosed[0][:60]!r}: diagnose them first"
        )
    undecided = [run_id for run_id, rows in diagnoses.items() if rows[-1].verdict == Verdict.UNDECIDED]
    if undecided and action in ("right", "wrong"):
        raise ConfigError(
            f"no run was labelled, because {len(undecided)} of {len(ids)} are undecided, first "
            f"{undecided[0][:60]!r}: choose It failed or It passed"
        )
    answer = {"right": {"right": "yes"}, "wrong": {"right": "no"}}.get(action, {"outcome": action})
    for run_id, rows in diagnoses.items():
        store_judgement(request, run_id, {"subject": "diagnosis", "subject_id": rows[-1].id, **answer})
