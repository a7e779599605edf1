"""``last_error``: the last step whose outcome was an error, else the last step that an agent made."""

from __future__ import annotations

import re
from collections.abc import Sequence

from agentguard.detect.base import Finding
from agentguard.localize.base import Diagnosis
from agentguard.localize.ranking import diagnosis, halving, reject
from agentguard.localize.roles import agent_steps, failed_outcome
from agentguard.trajectory.model import Trajectory

_BAD = re.compile(
    r"traceback \(most recent call last\)|\b\w*(?:error|exception)\b\s*[:(]|^\s*error\b"
    r"|exit ?(?:code|status):? *-?[1-9]|execution failed|command not found|permission denied",
    re.IGNORECASE | re.MULTILINE,
)
_READ = 4000  # characters of an outcome looked at from each end: errors stand first or last


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
        bad = [i for i in acting if failed_outcome(trajectory, i, looks_bad=looks_bad)]
        rest = [i for i in reversed(acting) if i not in bad]
        return diagnosis(
            trajectory,
            halving([*reversed(bad), *rest]),
            method=self.name,
            reason="the last step whose outcome was an error" if bad else "the last step of an agent",
            probability=(len(bad) + 1) / (len(bad) + 2),
        )


def looks_bad(text: str) -> bool:
    """Whether text that came back from the environment reads as an error."""
    return bool(_BAD.search(text[:_READ]) or (len(text) > _READ and _BAD.search(text[-_READ:])))
