"""Integration with the OpenAI Agents SDK: a runner that guards agents, handoffs and sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.integrations.openai_agents.runner import GuardedRunner as GuardedRunner

_EXPORTS = {
    "GuardedRunner": "agentguard.integrations.openai_agents.runner",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, extra="openai-agents")
