"""Pages of batch diagnoses: the list, and the report of one job."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.batch import BatchReport, build_batch_report, compute_table_version, render_batch_parts
from agentguard.errors import AgentGuardError
from agentguard_server.viewer.renderer import get_renderer, render_json


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFolder:
    """Output folder of a batch diagnosis.

    Attributes:
        id: identifier in a URL: digits of the SHA-256 sum of the folder's address.
        url: path or URL of the folder.
        report: its report; None if the folder cannot be read.
        problem: reason why the folder cannot be read.
    """

    id: str
    url: str
    report: BatchReport | None = None
    problem: str = ""


class BatchFolders:
    """Output folders of batch diagnoses; safe to use from several threads.

    Args:
        urls: paths and URLs of the folders.
    """

    def __init__(self, urls: Sequence[str]) -> None:
        self._urls = {_build_id(url): url for url in urls}
        self._reports: dict[str, tuple[str, BatchReport]] = {}
        self._lock = threading.Lock()

    def list_folders(self) -> tuple[BatchFolder, ...]:
        """Return all folders with their reports, in the given order."""
        return tuple(self._read(id, url) for id, url in self._urls.items())

    def find_folder(self, id: str) -> BatchFolder | None:
        """Return the folder of an id, or None."""
        return self._read(id, self._urls[id]) if id in self._urls else None

    def _read(self, id: str, url: str) -> BatchFolder:
        """Return a folder; its report is built again if the table has changed."""
        try:
            with self._lock:
                version = compute_table_version(url)
                if self._reports.get(id, ("", None))[0] != version:
                    self._reports[id] = version, build_batch_report(url)
                return BatchFolder(id=id, url=url, report=self._reports[id][1])
        except (AgentGuardError, OSError, ValueError) as error:  # pyarrow's errors are ValueError or OSError
            return BatchFolder(id=id, url=url, problem=str(error))


def _build_id(url: str) -> str:
    return hashlib.sha256(url.encode(errors="surrogateescape")).hexdigest()[:16]


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
    return render_json({"batches": [_encode(one) for one in _get_batch_folders(request).list_folders()]})


def _render_batch_json(request: Request) -> Response:
    found = _get_batch_folders(request).find_folder(request.path_params["id"])
    if found is None:
        return render_json({"error": "there is no such batch job"}, status=404)
    return render_json(_encode(found))


def _encode(one: BatchFolder) -> dict[str, Any]:
    return {
        "id": one.id,
        "url": one.url,
        "problem": one.problem or None,
        "report": None if one.report is None else one.report.to_dict(),
    }
