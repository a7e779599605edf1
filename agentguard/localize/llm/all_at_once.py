"""Localizer ``all_at_once``: one question over the whole run (Zhang et al., Who&When, arXiv 2505.00212).

The published method asks for a free answer with agent, step and reason. Here the judge picks the step from a
closed set; the agent is that of the step.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agentguard.detect.base import Finding
from agentguard.judge.base import build_root_cause_question
from agentguard.localize.llm.base import LlmLocalizer, QuerySession, StepRanking, build_llm_localizer
from agentguard.trajectory.model import Trajectory


def build_all_at_once(**options: Any) -> LlmLocalizer:
    """Build the localizer; options as for `agentguard.localize.llm.base.build_llm_localizer`."""
    return build_llm_localizer("all_at_once", query_root_cause, options)


def query_root_cause(session: QuerySession, run: Trajectory, findings: Sequence[Finding]) -> StepRanking:
    """Ask which of all steps caused the failure."""
    del findings  # the published method uses the run alone
    probabilities = session.ask_choice(run, build_root_cause_question(run))
    return StepRanking(probabilities={int(step): share for step, share in (probabilities or {}).items()})
