"""Integration with CrewAI: the guard as a custom LLM around the LLM of an agent."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.integrations.crewai.llm import (
        GuardedLLM as GuardedLLM,
        build_guarded_llm as build_guarded_llm,
    )

_EXPORTS = {
    "GuardedLLM": "agentguard.integrations.crewai.llm",
    "build_guarded_llm": "agentguard.integrations.crewai.llm",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, extra="crewai")
