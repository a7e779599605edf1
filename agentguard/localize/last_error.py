"""``last_error``: the last step whose outcome was an error, else the last step that an agent made."""

from __future__ import annotations

from collections.abc import Sequence

from agentguard.detect.base import Finding
from agentguard.localize.base import Diagnosis
from agentguard.localize.ranking import diagnosis, halving, reject
from agentguard.localize.roles import agent_steps, failed_outcome
from agentguard.trajectory.model import Trajectory


class LastError:
    """What one looks at first by hand; outcomes are read from flags or, where there are none, from text."""

    name = "last_error"

    def __init__(self, **unknown: object) -> None:
        reject(self.name, unknown)

    def locate(self, trajectory: Trajectory, findings: Sequence[Finding]) -> Diagnosis:  # noqa: ARG002
        """Rank the steps with a failed outcome from the last to the first, then the last agents' steps.

        The probability of failure grows with the number of errors; it orders runs and is not calibrated.
        """
        acting = agent_steps(trajectory)
        bad = [i for i in acting if failed_outcome(trajectory, i)]
        rest = [i for i in reversed(acting) if i not in bad]
        return diagnosis(
            trajectory,
            halving([*reversed(bad), *rest]),
            method=self.name,
            reason="the last step whose outcome was an error" if bad else "the last step of an agent",
            probability=(len(bad) + 1) / (len(bad) + 2),
        )
