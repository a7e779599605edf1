"""Registry of integrations by name; a guard builds them without importing any framework itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentguard.plugins import Registry


def integration_registry() -> Registry[Callable[..., Any]]:
    """Return the registry of integrations: the built-in ones and installed plug-ins."""
    return _INTEGRATIONS


_INTEGRATIONS: Registry[Callable[..., Any]] = Registry(
    "integration",
    group="agentguard.integrations",
    builtin={
        "claude_agent_sdk": "agentguard.integrations.claude_agent_sdk.hooks:build_guarded_options",
        "crewai": "agentguard.integrations.crewai.llm:build_guarded_llm",
        "google_adk": "agentguard.integrations.google_adk.plugin:GuardPlugin",
        "langchain": "agentguard.integrations.langchain.middleware:GuardMiddleware",
        "langgraph": "agentguard.integrations.langgraph.graph:GuardedGraph",
        "langgraph_tools": "agentguard.integrations.langgraph.graph:build_tool_node",
        "loop": "agentguard.integrations.loop.run:LoopRun",
        "pydantic_ai": "agentguard.integrations.pydantic_ai.capability:GuardCapability",
        "smolagents": "agentguard.integrations.smolagents.agent:build_guarded_agent",
        "openai_agents": "agentguard.integrations.openai_agents.runner:GuardedRunner",
        "openai": "agentguard.integrations.openai.transport:GuardTransport",
        "openai_async": "agentguard.integrations.openai.transport:AsyncGuardTransport",
        "openai_httpx": "agentguard.integrations.openai.httpx_transport:HttpxGuardTransport",
        "openai_httpx_async": "agentguard.integrations.openai.httpx_transport:AsyncHttpxGuardTransport",
    },
)
