"""The registry of integrations, by name; a guard makes them without importing any framework itself."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from agentguard.registry import Registry


def integrations() -> Registry[Callable[..., Any]]:
    """The registry of integrations: those in ``agentguard.integrations`` and installed ones."""
    return _INTEGRATIONS


_INTEGRATIONS: Registry[Callable[..., Any]] = Registry(
    "integration",
    group="agentguard.integrations",
    builtin={
        "langchain": "agentguard.integrations.langchain:GuardMiddleware",
        "langgraph": "agentguard.integrations.langgraph:GuardedGraph",
        "langgraph_tools": "agentguard.integrations.langgraph:guarded_tools",
        "loop": "agentguard.integrations.loop:LoopRun",
        "pydantic_ai": "agentguard.integrations.pydantic_ai:GuardCapability",
        "openai_agents": "agentguard.integrations.openai_agents:GuardedRunner",
        "openai": "agentguard.integrations.openai:GuardTransport",
        "openai_async": "agentguard.integrations.openai:AsyncGuardTransport",
    },
)
