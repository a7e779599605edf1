"""Integration with LangChain agents: middleware that guards model calls and tool calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.integrations.langchain.middleware import GuardMiddleware as GuardMiddleware

_EXPORTS = {
    "GuardMiddleware": "agentguard.integrations.langchain.middleware",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, extra="langchain")
