"""Baseline ``two_line``: the first worker's turn, or a task handoff that the environment answers at once.

It has two lines of code and learns nothing, but is hard to beat on logs of several agents: work that starts
wrong seldom recovers.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentguard.detect.base import Finding
from agentguard.localize.agent_roles import find_task_handoff, find_worker_steps, has_environment_response
from agentguard.localize.base import BaseLocalizer, Diagnosis
from agentguard.localize.diagnosis_builder import build_diagnosis, halve_weights, reject_unknown_options
from agentguard.trajectory.model import Trajectory


class FirstWorkerTurnLocalizer(BaseLocalizer):
    """Localizer that applies the rule; it assumes that the run failed."""

    name = "two_line"

    def __init__(self, **unknown: object) -> None:
        reject_unknown_options(self.name, unknown)

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:  # noqa: ARG002
        """Rank the task handoff (if the environment answered it) and the workers' turns, earliest first."""
        opening, workers = find_task_handoff(trajectory), find_worker_steps(trajectory)
        acted = opening is not None and has_environment_response(trajectory, opening)
        return build_diagnosis(
            trajectory,
            halve_weights(dict.fromkeys((opening, *workers)) if opening is not None and acted else workers),
            method=self.name,
            reason="the brief, which was acted on at once" if acted else "the first worker's turn",
        )
