"""Pages of batch jobs: the list, and the report of one job."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.batch import BatchReport, render_batch_parts
from agentguard_server.viewer.data.report_folders import BatchFolders, ReportFolder
from agentguard_server.viewer.renderer import get_renderer, render_json


def routes() -> list[BaseRoute]:
    """Return the routes of the pages."""
    return [
        Route("/batches", _render_list, name="batches"),
        Route("/batches/{id}", _render_page, name="batch"),
        Route("/api/batches", _render_list_json),
        Route("/api/batches/{id}", _render_batch_json),
    ]


def _get_batch_folders(request: Request) -> BatchFolders:
    folders: BatchFolders = request.app.state.batch_folders
    return folders


def _render_list(request: Request) -> Response:
    return get_renderer(request).render_page(
        "batches.html", here="batches", folders=_get_batch_folders(request).list_folders()
    )


def _render_page(request: Request) -> Response:
    folder = _get_batch_folders(request).find_folder(request.path_params["id"])
    parts = render_batch_parts(folder.report) if folder is not None and folder.report is not None else ()
    return get_renderer(request).render_page(
        "batch.html",
        status=200 if folder is not None else 404,
        here="batches",
        folder=folder,
        report=Markup("".join(parts)),  # noqa: S704  escaped by render_batch_parts
    )


def _render_list_json(request: Request) -> Response:
    return render_json({"batches": [_encode(one) for one in _get_batch_folders(request).list_folders()]})


def _render_batch_json(request: Request) -> Response:
    folder = _get_batch_folders(request).find_folder(request.path_params["id"])
    if folder is None:
        return render_json({"error": "there is no such batch job"}, status=404)
    return render_json(_encode(folder))


def _encode(folder: ReportFolder[BatchReport]) -> dict[str, Any]:
    return {
        "id": folder.id,
        "url": folder.name,
        "problem": folder.problem or None,
        "report": None if folder.report is None else folder.report.to_dict(),
    }
