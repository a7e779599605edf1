"""Pages of chaos campaigns and of searches for causal cycles: the list, and the report of one."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route

from agentguard.chaos import CampaignReport, ExperimentOutcome, render_campaign_parts
from agentguard.chaos.causality import CycleStatus, render_stitching_parts
from agentguard_server.viewer.data.report_folders import CampaignFolders, ReportFolder
from agentguard_server.viewer.formatting import format_day
from agentguard_server.viewer.renderer import get_renderer, render_json


def routes() -> list[BaseRoute]:
    """Return the routes of the pages."""
    return [
        Route("/campaigns", _render_list, name="campaigns"),
        Route("/campaigns/cycles/{id}", _render_search, name="cycles"),
        Route("/campaigns/{id}", _render_campaign, name="campaign"),
        Route("/api/campaigns", _render_list_json),
        Route("/api/campaigns/{id}", _render_campaign_json),
    ]


def _get_campaign_folders(request: Request) -> CampaignFolders:
    folders: CampaignFolders = request.app.state.campaign_folders
    return folders


def _render_list(request: Request) -> Response:
    folders = _get_campaign_folders(request)
    return get_renderer(request).render_page(
        "campaigns.html",
        here="campaigns",
        day=format_day,
        campaigns=folders.list_campaigns(),
        outcomes=tuple(ExperimentOutcome),
        searches=folders.list_searches(),
        statuses=tuple(CycleStatus),
        places=[str(place) for place in request.app.state.settings.campaigns],
    )


def _render_campaign(request: Request) -> Response:
    campaign = _get_campaign_folders(request).find_campaign(request.path_params["id"])
    parts = [] if campaign is None or campaign.report is None else render_campaign_parts(campaign.report)
    return _render_report(request, campaign, parts, "Chaos campaign", is_campaign=True)


def _render_search(request: Request) -> Response:
    search = _get_campaign_folders(request).find_search(request.path_params["id"])
    parts = [] if search is None or search.report is None else render_stitching_parts(search.report)
    return _render_report(request, search, parts, "Causal cycles of", is_campaign=False)


def _render_report(
    request: Request, folder: ReportFolder[Any] | None, parts: list[str], title: str, *, is_campaign: bool
) -> Response:
    return get_renderer(request).render_page(
        "campaign.html",
        status=200 if folder is not None else 404,
        here="campaigns",
        day=format_day,
        folder=folder,
        title=title,
        is_campaign=is_campaign,
        report=Markup("".join(parts)),  # noqa: S704  escaped by the functions that render the parts
    )


def _render_list_json(request: Request) -> Response:
    campaigns = _get_campaign_folders(request).list_campaigns()
    return render_json({"campaigns": [_encode(one) for one in campaigns]})


def _render_campaign_json(request: Request) -> Response:
    campaign = _get_campaign_folders(request).find_campaign(request.path_params["id"])
    if campaign is None:
        return render_json({"error": "there is no such campaign"}, status=404)
    return render_json(_encode(campaign))


def _encode(campaign: ReportFolder[CampaignReport]) -> dict[str, Any]:
    return {
        "id": campaign.id,
        "name": campaign.name,
        "changed_at": campaign.changed_at,
        "problem": campaign.problem or None,
        "report": None if campaign.report is None else campaign.report.to_dict(),
    }
