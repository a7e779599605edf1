"""Chaos campaigns: faults at the calls of an agent, and their consequences for its runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.chaos.campaign import Campaign as Campaign
    from agentguard.chaos.campaign_report import (
        CampaignReport as CampaignReport,
        build_campaign_report as build_campaign_report,
        render_campaign_parts as render_campaign_parts,
        render_campaign_report as render_campaign_report,
    )
    from agentguard.chaos.campaign_reproducer import (
        CampaignReproducer as CampaignReproducer,
        select_runs as select_runs,
        shrink_runs as shrink_runs,
    )
    from agentguard.chaos.campaign_runner import (
        CAMPAIGNS_FOLDER as CAMPAIGNS_FOLDER,
        CampaignResult as CampaignResult,
        CampaignRunner as CampaignRunner,
        find_campaign_folders as find_campaign_folders,
        is_campaign_folder as is_campaign_folder,
        read_campaign_result as read_campaign_result,
    )
    from agentguard.chaos.experiment import (
        ExperimentOutcome as ExperimentOutcome,
        ExperimentResult as ExperimentResult,
        ExperimentRunner as ExperimentRunner,
    )
    from agentguard.chaos.injection import InjectionBinding as InjectionBinding

_EXPORTS = {
    "CAMPAIGNS_FOLDER": "agentguard.chaos.campaign_runner",
    "Campaign": "agentguard.chaos.campaign",
    "CampaignReport": "agentguard.chaos.campaign_report",
    "CampaignReproducer": "agentguard.chaos.campaign_reproducer",
    "CampaignResult": "agentguard.chaos.campaign_runner",
    "CampaignRunner": "agentguard.chaos.campaign_runner",
    "ExperimentOutcome": "agentguard.chaos.experiment",
    "ExperimentResult": "agentguard.chaos.experiment",
    "ExperimentRunner": "agentguard.chaos.experiment",
    "InjectionBinding": "agentguard.chaos.injection",
    "build_campaign_report": "agentguard.chaos.campaign_report",
    "find_campaign_folders": "agentguard.chaos.campaign_runner",
    "is_campaign_folder": "agentguard.chaos.campaign_runner",
    "read_campaign_result": "agentguard.chaos.campaign_runner",
    "render_campaign_parts": "agentguard.chaos.campaign_report",
    "render_campaign_report": "agentguard.chaos.campaign_report",
    "select_runs": "agentguard.chaos.campaign_reproducer",
    "shrink_runs": "agentguard.chaos.campaign_reproducer",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
