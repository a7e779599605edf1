"""Pages of chaos campaigns: the list, and the report of one campaign."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.chaos import (
    CampaignReport,
    ExperimentOutcome,
    build_campaign_report,
    find_campaign_folders,
    read_campaign_result,
    render_campaign_parts,
)
from agentguard.chaos.campaign_runner import JOURNAL
from agentguard.chaos.causality import (
    CycleStatus,
    StitchingReport,
    find_stitching_folders,
    read_stitching_report,
    render_stitching_parts,
)
from agentguard.chaos.causality.stitching_report import REPORT_FILE
from agentguard.errors import AgentGuardError
from agentguard_server.viewer.data.file_cache import FileCache
from agentguard_server.viewer.formatting import format_day
from agentguard_server.viewer.renderer import get_renderer, render_json

_MAX_BYTES: Final = 256 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CampaignFolder:
    """Output folder of a campaign.

    Attributes:
        id: identifier in a URL: digits of the SHA-256 sum of the path.
        name: name of the folder.
        changed_at: time of the last run, epoch seconds.
        report: report of the runs that are done; None if the journal cannot be read.
        problem: reason why the journal cannot be read.
    """

    id: str
    name: str
    changed_at: float = 0.0
    report: CampaignReport | None = None
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchingFolder:
    """Output folder of a search of causal cycles; its attributes are those of `CampaignFolder`."""

    id: str
    name: str
    changed_at: float = 0.0
    report: StitchingReport | None = None
    problem: str = ""


class CampaignFolders:
    """Campaigns and searches of causal cycles in folders; safe to use from several threads.

    Args:
        paths: folders of campaigns, and folders that contain them; searched again on each call.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self._paths = tuple(paths)
        self._cache = FileCache(_read_campaign)
        self._stitching_cache = FileCache(_read_stitching)

    def list_folders(self) -> tuple[CampaignFolder, ...]:
        """Return all campaigns, latest first."""
        folders = {folder.resolve() for folder in find_campaign_folders(self._paths)}
        return tuple(sorted(map(self._read, folders), key=lambda one: (-one.changed_at, one.name)))

    def list_searches(self) -> tuple[StitchingFolder, ...]:
        """Return all searches of causal cycles, latest first."""
        folders = {folder.resolve() for folder in find_stitching_folders(self._paths)}
        return tuple(sorted(map(self._read_search, folders), key=lambda one: (-one.changed_at, one.name)))

    def find_folder(self, id: str) -> CampaignFolder | None:
        """Return the campaign of an id, or None."""
        return next((one for one in self.list_folders() if one.id == id), None)

    def find_search(self, id: str) -> StitchingFolder | None:
        """Return the search of an id, or None."""
        return next((one for one in self.list_searches() if one.id == id), None)

    def _read(self, folder: Path) -> CampaignFolder:
        try:
            return self._cache.read(folder / JOURNAL)
        except OSError as error:
            return CampaignFolder(id=_build_id(folder), name=folder.name, problem=str(error.strerror))

    def _read_search(self, folder: Path) -> StitchingFolder:
        try:
            return self._stitching_cache.read(folder / REPORT_FILE)
        except OSError as error:
            return StitchingFolder(id=_build_id(folder), name=folder.name, problem=str(error.strerror))


def _read_stitching(path: Path) -> StitchingFolder:
    folder, report, problem = path.parent, None, ""
    try:
        report = read_stitching_report(folder)
    except AgentGuardError as error:
        problem = str(error)
    return StitchingFolder(
        id=_build_id(folder),
        name=folder.name,
        changed_at=path.stat().st_mtime,
        report=report,
        problem=problem,
    )


def _read_campaign(journal: Path) -> CampaignFolder:
    folder, stat = journal.parent, journal.stat()
    report, problem = None, ""
    try:
        if stat.st_size > _MAX_BYTES:
            problem = f"the journal is larger than {_MAX_BYTES} bytes"
        else:
            report = build_campaign_report(read_campaign_result(folder))
    except AgentGuardError as error:
        problem = str(error)
    return CampaignFolder(
        id=_build_id(folder), name=folder.name, changed_at=stat.st_mtime, report=report, problem=problem
    )


def _build_id(folder: Path) -> str:
    return hashlib.sha256(str(folder).encode(errors="surrogateescape")).hexdigest()[:16]


def routes() -> list[BaseRoute]:
    """Return the routes of the pages."""
    return [
        Route("/campaigns", _render_list, name="campaigns"),
        Route("/campaigns/cycles/{id}", _render_search, name="cycles"),
        Route("/campaigns/{id}", _render_page, name="campaign"),
        Route("/api/campaigns", _render_list_json),
        Route("/api/campaigns/{id}", _render_campaign_json),
    ]


def _get_campaign_folders(request: Request) -> CampaignFolders:
    state = request.app.state
    if not hasattr(state, "campaigns"):
        state.campaigns = CampaignFolders(state.settings.campaigns)
    folders: CampaignFolders = state.campaigns
    return folders


def _render_list(request: Request) -> Response:
    return get_renderer(request).render_page(
        "campaigns.html",
        here="campaigns",
        day=format_day,
        folders=_get_campaign_folders(request).list_folders(),
        outcomes=tuple(ExperimentOutcome),
        searches=_get_campaign_folders(request).list_searches(),
        statuses=tuple(CycleStatus),
        places=[str(place) for place in request.app.state.settings.campaigns],
    )


def _render_page(request: Request) -> Response:
    found = _get_campaign_folders(request).find_folder(request.path_params["id"])
    parts = [] if found is None or found.report is None else render_campaign_parts(found.report)
    return _render_report(request, found, parts, "Chaos campaign")


def _render_search(request: Request) -> Response:
    found = _get_campaign_folders(request).find_search(request.path_params["id"])
    parts = [] if found is None or found.report is None else render_stitching_parts(found.report)
    return _render_report(request, found, parts, "Causal cycles of")


def _render_report(
    request: Request, found: CampaignFolder | StitchingFolder | None, parts: list[str], title: str
) -> Response:
    return get_renderer(request).render_page(
        "campaign.html",
        status=200 if found is not None else 404,
        here="campaigns",
        day=format_day,
        found=found,
        title=title,
        is_campaign=isinstance(found, CampaignFolder),
        report=Markup("".join(parts)),  # noqa: S704  escaped where it is made
    )


def _render_list_json(request: Request) -> Response:
    return render_json({"campaigns": [_encode(one) for one in _get_campaign_folders(request).list_folders()]})


def _render_campaign_json(request: Request) -> Response:
    found = _get_campaign_folders(request).find_folder(request.path_params["id"])
    if found is None:
        return render_json({"error": "there is no such campaign"}, status=404)
    return render_json(_encode(found))


def _encode(one: CampaignFolder) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "changed_at": one.changed_at,
        "problem": one.problem or None,
        "report": None if one.report is None else one.report.to_dict(),
    }
