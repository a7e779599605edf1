"""Pages of chaos campaigns: the list, and the report of one campaign."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.chaos import ExperimentOutcome, render_campaign_parts
from agentguard.chaos.causality import CycleStatus, render_stitching_parts
from agentguard_server.viewer.data.campaign_folders import CampaignFolder, CampaignFolders, StitchingFolder
from agentguard_server.viewer.pagination import format_day, json_response
from agentguard_server.viewer.renderer import get_renderer


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
    return json_response(
        {"campaigns": [_encode(one) for one in _get_campaign_folders(request).list_folders()]}
    )


def _render_campaign_json(request: Request) -> Response:
    found = _get_campaign_folders(request).find_folder(request.path_params["id"])
    if found is None:
        return json_response({"error": "there is no such campaign"}, status=404)
    return json_response(_encode(found))


def _encode(one: CampaignFolder) -> dict[str, Any]:
    return {
        "id": one.id,
        "name": one.name,
        "changed_at": one.changed_at,
        "problem": one.problem or None,
        "report": None if one.report is None else one.report.to_dict(),
    }
