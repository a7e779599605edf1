"""Integration with the Claude Agent SDK: the guard as hooks of the agent's process."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard._lazy import lazy_exports

if TYPE_CHECKING:
    from agentguard.integrations.claude_agent_sdk.hooks import (
        ClaudeAgentHooks as ClaudeAgentHooks,
        build_guarded_options as build_guarded_options,
    )
    from agentguard.integrations.claude_agent_sdk.query import query_with_rollback as query_with_rollback

_EXPORTS = {
    "ClaudeAgentHooks": "agentguard.integrations.claude_agent_sdk.hooks",
    "build_guarded_options": "agentguard.integrations.claude_agent_sdk.hooks",
    "query_with_rollback": "agentguard.integrations.claude_agent_sdk.query",
}

__getattr__, __dir__ = lazy_exports(__name__, _EXPORTS, extra="claude-agent-sdk")
