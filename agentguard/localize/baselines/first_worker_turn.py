"""Baseline ``two_line``: the first worker's turn, or a task handoff that the environment answers at once.

The rule has two lines and does not learn, but few methods are better on logs of several agents: a run rarely
recovers from an early error.
"""

from __future__ import annotations

from collections.abc import Sequence

from agentguard.detect.base import Finding
from agentguard.localize.agent_roles import find_task_handoff, find_worker_steps, has_environment_response
from agentguard.localize.base import BaseLocalizer, Diagnosis
from agentguard.localize.diagnosis_builder import build_diagnosis, halve_weights
from agentguard.options import reject_unknown_options
from agentguard.trajectory.model import Trajectory


class FirstWorkerTurnLocalizer(BaseLocalizer):
    """Localizer that applies the rule; it assumes that the run failed."""

    name = "two_line"

    def __init__(self, **unknown: object) -> None:
        reject_unknown_options("localizer", self.name, unknown)

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:  # noqa: ARG002
        """Rank the task handoff (if the environment answered it) and the workers' turns, earliest first."""
        handoff, workers = find_task_handoff(trajectory), find_worker_steps(trajectory)
        if handoff is None or not has_environment_response(trajectory, handoff):
            steps, reason = workers, "the first worker's turn"
        else:
            steps, reason = (handoff, *workers), "the task handoff, which was executed at once"
        return build_diagnosis(
            trajectory, halve_weights(dict.fromkeys(steps)), method=self.name, reason=reason
        )
