"""``all_at_once``: one question over the whole run (Zhang et al., Who&When, arXiv 2505.00212).

Published as a free answer with agent, step and reason; here the step is picked from a closed set, and its
agent is who made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentguard.detect.base import Finding
from agentguard.judge.base import root_cause_question
from agentguard.localize.judged.asking import Asking
from agentguard.localize.judged.method import Judged, Ranked, judged
from agentguard.trajectory.model import Trajectory


def all_at_once(**options: Any) -> Judged:
    """Make the localizer; options as `agentguard.localize.judged.method.judged` takes them."""
    return judged("all_at_once", ask, options)


def ask(asking: Asking, run: Trajectory, findings: Sequence[Finding]) -> Ranked:
    """Which of all steps it was."""
    del findings  # the method as published sees the run alone
    found = asking.choose(run, root_cause_question(run))
    return Ranked(steps={int(step): share for step, share in (found or {}).items()})
