"""Pilot: estimate from runs with and without the guard whether its interventions help."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.evals.pilot.estimate import (
        InterventionEstimate as InterventionEstimate,
        OutcomeRun as OutcomeRun,
        PilotPair as PilotPair,
        PilotReport as PilotReport,
        PilotVerdict as PilotVerdict,
        estimate_interventions as estimate_interventions,
        pair_runs as pair_runs,
    )
    from agentguard.evals.pilot.policy_proposal import (
        format_estimate as format_estimate,
        format_policy as format_policy,
        propose_policy as propose_policy,
    )
    from agentguard.evals.pilot.scripted import run_scripted_pilot as run_scripted_pilot

_EXPORTS = {
    "InterventionEstimate": "agentguard.evals.pilot.estimate",
    "OutcomeRun": "agentguard.evals.pilot.estimate",
    "PilotPair": "agentguard.evals.pilot.estimate",
    "PilotReport": "agentguard.evals.pilot.estimate",
    "PilotVerdict": "agentguard.evals.pilot.estimate",
    "estimate_interventions": "agentguard.evals.pilot.estimate",
    "format_estimate": "agentguard.evals.pilot.policy_proposal",
    "format_policy": "agentguard.evals.pilot.policy_proposal",
    "pair_runs": "agentguard.evals.pilot.estimate",
    "propose_policy": "agentguard.evals.pilot.policy_proposal",
    "run_scripted_pilot": "agentguard.evals.pilot.scripted",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
