"""Integration with MCP (Model Context Protocol): a relay between client and server that guards tool calls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.integrations.mcp.stdio_relay import run_stdio_relay as run_stdio_relay
    from agentguard.integrations.mcp.tool_guard import (
        McpToolGuard as McpToolGuard,
        RelayedMessage as RelayedMessage,
    )

_EXPORTS = {
    "McpToolGuard": "agentguard.integrations.mcp.tool_guard",
    "RelayedMessage": "agentguard.integrations.mcp.tool_guard",
    "run_stdio_relay": "agentguard.integrations.mcp.stdio_relay",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS)
