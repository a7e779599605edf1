"""Baseline ``last_error``: the last step whose outcome was an error, else the last step of an agent."""

from __future__ import annotations

from collections.abc import Sequence

from agentguard.detect.base import Finding
from agentguard.localize.agent_roles import find_agent_steps, has_failed_outcome
from agentguard.localize.base import BaseLocalizer, Diagnosis
from agentguard.localize.diagnosis_builder import build_diagnosis, halve_weights
from agentguard.options import reject_unknown_options
from agentguard.trajectory.model import Trajectory


class LastErrorLocalizer(BaseLocalizer):
    """Localizer that ranks failed outcomes, which flags or texts show, from the last to the first."""

    name = "last_error"

    def __init__(self, **unknown: object) -> None:
        reject_unknown_options("localizer", self.name, unknown)

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:  # noqa: ARG002
        """Rank the steps with a failed outcome from the last to the first, then the agents' other steps.

        The probability of failure grows with the number of errors; it orders runs and is not calibrated.
        """
        agent_steps = find_agent_steps(trajectory)
        failed_steps = [i for i in agent_steps if has_failed_outcome(trajectory, i)]
        other_steps = [i for i in reversed(agent_steps) if i not in failed_steps]
        return build_diagnosis(
            trajectory,
            halve_weights([*reversed(failed_steps), *other_steps]),
            method=self.name,
            reason="the last step whose outcome was an error"
            if failed_steps
            else "the last step of an agent",
            probability=(len(failed_steps) + 1) / (len(failed_steps) + 2),
        )
