"""Integration with smolagents: a guarded copy of a ``ToolCallingAgent`` or a ``CodeAgent``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.integrations.smolagents.agent import build_guarded_agent as build_guarded_agent

_EXPORTS = {
    "build_guarded_agent": "agentguard.integrations.smolagents.agent",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, extra="smolagents")
