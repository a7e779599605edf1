"""Causal stitching: chains of single-fault experiments that close to a cycle."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.chaos.causality.cycle_confirmation import (
        ConfirmedCycle as ConfirmedCycle,
        CycleStatus as CycleStatus,
    )
    from agentguard.chaos.causality.cycles import CausalCycle as CausalCycle
    from agentguard.chaos.causality.edges import CausalEdge as CausalEdge
    from agentguard.chaos.causality.fault_probe import (
        FaultInjection as FaultInjection,
        FaultKind as FaultKind,
        FaultProbe as FaultProbe,
        SiteFault as SiteFault,
    )
    from agentguard.chaos.causality.reproducer_bundle import (
        run_reproducer as run_reproducer,
        write_reproducer_bundle as write_reproducer_bundle,
    )
    from agentguard.chaos.causality.stitching_campaign import (
        StitchingCampaign as StitchingCampaign,
        StitchingResult as StitchingResult,
        search_cycles as search_cycles,
    )
    from agentguard.chaos.causality.stitching_report import (
        StitchingReport as StitchingReport,
        build_stitching_report as build_stitching_report,
        encode_stitching_report as encode_stitching_report,
        find_stitching_folders as find_stitching_folders,
        read_stitching_report as read_stitching_report,
        render_stitching_parts as render_stitching_parts,
        render_stitching_report as render_stitching_report,
    )
    from agentguard.chaos.causality.workload_run import (
        WorkloadRun as WorkloadRun,
        run_workload as run_workload,
    )

_EXPORTS = {
    "CausalCycle": "agentguard.chaos.causality.cycles",
    "CausalEdge": "agentguard.chaos.causality.edges",
    "ConfirmedCycle": "agentguard.chaos.causality.cycle_confirmation",
    "CycleStatus": "agentguard.chaos.causality.cycle_confirmation",
    "FaultKind": "agentguard.chaos.causality.fault_probe",
    "FaultProbe": "agentguard.chaos.causality.fault_probe",
    "FaultInjection": "agentguard.chaos.causality.fault_probe",
    "SiteFault": "agentguard.chaos.causality.fault_probe",
    "StitchingCampaign": "agentguard.chaos.causality.stitching_campaign",
    "StitchingResult": "agentguard.chaos.causality.stitching_campaign",
    "WorkloadRun": "agentguard.chaos.causality.workload_run",
    "StitchingReport": "agentguard.chaos.causality.stitching_report",
    "find_stitching_folders": "agentguard.chaos.causality.stitching_report",
    "build_stitching_report": "agentguard.chaos.causality.stitching_report",
    "encode_stitching_report": "agentguard.chaos.causality.stitching_report",
    "read_stitching_report": "agentguard.chaos.causality.stitching_report",
    "render_stitching_parts": "agentguard.chaos.causality.stitching_report",
    "render_stitching_report": "agentguard.chaos.causality.stitching_report",
    "run_reproducer": "agentguard.chaos.causality.reproducer_bundle",
    "run_workload": "agentguard.chaos.causality.workload_run",
    "search_cycles": "agentguard.chaos.causality.stitching_campaign",
    "write_reproducer_bundle": "agentguard.chaos.causality.reproducer_bundle",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
