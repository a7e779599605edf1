"""Rates at which each code of AgentErrorTaxonomy is injected online."""

from __future__ import annotations

from collections.abc import Mapping

AGENT_ERRORS: Mapping[str, float] = {
    "memory.over_simplification": 7,
    "memory.retrieval_failure": 8,
    "memory.hallucination": 7,
    "reflection.progress_misjudge": 8,
    "reflection.outcome_misinterpretation": 7,
    "reflection.causal_misattribution": 5,
    "reflection.hallucination": 5,
    "planning.constraint_ignorance": 10,
    "planning.impossible_action": 8,
    "planning.inefficient_plan": 12,
    "action.misalignment": 6,
    "action.invalid_action": 3,
    "action.format_error": 3,
    "action.parameter_error": 5,
    "system.step_limit": 2,
    "system.tool_execution_error": 2,
    "system.llm_limit": 1,
    "system.environment_error": 1,
}
"""Weight of each code.

The version of the taxonomy's paper (arXiv 2509.25370) available to us gives no numbers by code. The weights
are therefore our own assumption. Planning and reflection lead, memory follows. Malformed actions are rare in
current agents, and the system is rarely the cause.
"""

CAREFUL_SHARE = 0.25
"""Maximum share of the passed runs that contain an error from which the agent recovered."""

DIFFICULTIES: Mapping[str, float] = {"easy": 2, "medium": 5, "hard": 3}
"""Weight of each difficulty if none is requested."""
