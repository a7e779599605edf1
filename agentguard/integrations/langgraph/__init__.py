"""Integration with LangGraph: guarded runs of compiled graphs, and tool nodes with idempotent effects."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.integrations.langgraph.graph import (
        GuardedGraph as GuardedGraph,
        build_tool_node as build_tool_node,
    )

_EXPORTS = {
    "GuardedGraph": "agentguard.integrations.langgraph.graph",
    "build_tool_node": "agentguard.integrations.langgraph.graph",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, extra="langchain")
