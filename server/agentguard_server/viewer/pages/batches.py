"""Pages of batch diagnoses: the list, and the report of one job."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.batch import render_batch_parts
from agentguard_server.viewer.data.batch_reports import BatchFolder, BatchFolders
from agentguard_server.viewer.pagination import json_response
from agentguard_server.viewer.renderer import get_renderer


def routes() -> list[BaseRoute]:
    """Return the routes of the pages."""
    return [
        Route("/batches", _render_list, name="batches"),
        Route("/batches/{id}", _render_page, name="batch"),
        Route("/api/batches", _render_list_json),
        Route("/api/batches/{id}", _render_batch_json),
    ]


def _get_batch_folders(request: Request) -> BatchFolders:
    state = request.app.state
    if not hasattr(state, "batches"):
        state.batches = BatchFolders(state.settings.batches)
    folders: BatchFolders = state.batches
    return folders


def _render_list(request: Request) -> Response:
    return get_renderer(request).render_page(
        "batches.html", here="batches", folders=_get_batch_folders(request).list_folders()
    )


def _render_page(request: Request) -> Response:
    found = _get_batch_folders(request).find_folder(request.path_params["id"])
    parts = render_batch_parts(found.report) if found is not None and found.report is not None else ()
    return get_renderer(request).render_page(
        "batch.html",
        status=200 if found is not None else 404,
        here="batches",
        found=found,
        report=Markup("".join(parts)),  # noqa: S704  escaped where it is made
    )


def _render_list_json(request: Request) -> Response:
    return json_response({"batches": [_encode(one) for one in _get_batch_folders(request).list_folders()]})


def _render_batch_json(request: Request) -> Response:
    found = _get_batch_folders(request).find_folder(request.path_params["id"])
    if found is None:
        return json_response({"error": "there is no such batch job"}, status=404)
    return json_response(_encode(found))


def _encode(one: BatchFolder) -> dict[str, Any]:
    return {
        "id": one.id,
        "url": one.url,
        "problem": one.problem or None,
        "report": None if one.report is None else one.report.to_dict(),
    }
