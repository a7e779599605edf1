"""``all_at_once``: one question over the whole run (Zhang et al., Who&When, arXiv 2505.00212).

Published as a free answer with agent, step and reason; here the step is picked from a closed set, and its
agent is who made it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentguard.detect.base import Finding
from agentguard.judge.base import build_root_cause_question
from agentguard.localize.llm.base import LlmLocalizer, QuerySession, StepRanking, build_llm_localizer
from agentguard.trajectory.model import Trajectory


def build_all_at_once(**options: Any) -> LlmLocalizer:
    """Make the localizer; options as `agentguard.localize.llm.base.build_llm_localizer` takes them."""
    return build_llm_localizer("all_at_once", query_root_cause, options)


def query_root_cause(session: QuerySession, run: Trajectory, findings: Sequence[Finding]) -> StepRanking:
    """Which of all steps it was."""
    del findings  # the method as published sees the run alone
    found = session.ask_choice(run, build_root_cause_question(run))
    return StepRanking(probabilities={int(step): share for step, share in (found or {}).items()})
