"""Registry of integrations, and the methods of a guard that build them; frameworks are imported on demand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from agentguard.plugins import Registry


def integration_registry() -> Registry[Callable[..., Any]]:
    """Return the registry of integrations: the built-in ones and installed plug-ins."""
    return _INTEGRATIONS


_INTEGRATIONS: Registry[Callable[..., Any]] = Registry(
    "integration",
    group="agentguard.integrations",
    builtin={
        "claude_agent_query": "agentguard.integrations.claude_agent_sdk.query:query_with_rollback",
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
        "openai": "agentguard.integrations.openai.httpx2_transport:GuardTransport",
        "openai_async": "agentguard.integrations.openai.httpx2_transport:AsyncGuardTransport",
        "openai_httpx": "agentguard.integrations.openai.httpx_transport:HttpxGuardTransport",
        "openai_httpx_async": "agentguard.integrations.openai.httpx_transport:AsyncHttpxGuardTransport",
    },
)


class IntegrationMethods:
    """Methods of a guard that build its integrations."""

    def run(self, task: str, **options: Any) -> Any:
        """Return the guarded run of a custom agent loop; see `agentguard.integrations.loop.run.LoopRun`."""
        return self.integrate("loop", task, **options)

    def langchain(self, **options: Any) -> Any:
        """Return a middleware for ``create_agent``.

        See `agentguard.integrations.langchain.middleware.GuardMiddleware`.
        """
        return self.integrate("langchain", **options)

    def langgraph(self, graph: Any, **options: Any) -> Any:
        """Return a guarded compiled graph; see `agentguard.integrations.langgraph.graph.GuardedGraph`."""
        return self.integrate("langgraph", graph, **options)

    def langgraph_tools(self, tools: Sequence[Any], **options: Any) -> Any:
        """Return a tool node that runs each effect once; see `agentguard.integrations.langgraph.graph`."""
        return self.integrate("langgraph_tools", tools, **options)

    def transport(self, **options: Any) -> Any:
        """Return a client transport; see `agentguard.integrations.openai.httpx2_transport.GuardTransport`."""
        return self.integrate("openai", **options)

    def atransport(self, **options: Any) -> Any:
        """Return a transport like `transport`, for the asynchronous client."""
        return self.integrate("openai_async", **options)

    def httpx_transport(self, **options: Any) -> Any:
        """Return a transport for httpx 0.28; see `agentguard.integrations.openai.httpx_transport`."""
        return self.integrate("openai_httpx", **options)

    def ahttpx_transport(self, **options: Any) -> Any:
        """Return a transport like `httpx_transport`, for the asynchronous client."""
        return self.integrate("openai_httpx_async", **options)

    def pydantic_ai(self, **options: Any) -> Any:
        """Return a capability; see `agentguard.integrations.pydantic_ai.capability.GuardCapability`."""
        return self.integrate("pydantic_ai", **options)

    def smolagents(self, agent: Any, **options: Any) -> Any:
        """Return a guarded copy; see `agentguard.integrations.smolagents.agent.build_guarded_agent`."""
        return self.integrate("smolagents", agent, **options)

    def crewai(self, llm: Any, **options: Any) -> Any:
        """Return a guarded LLM; see `agentguard.integrations.crewai.llm.build_guarded_llm`."""
        return self.integrate("crewai", llm, **options)

    def google_adk(self, **options: Any) -> Any:
        """Return a plugin of a runner; see `agentguard.integrations.google_adk.plugin.GuardPlugin`."""
        return self.integrate("google_adk", **options)

    def claude_agent_sdk(self, options: Any = None, **settings: Any) -> Any:
        """Return options with hooks; see `agentguard.integrations.claude_agent_sdk.hooks`."""
        return self.integrate("claude_agent_sdk", options, **settings)

    def claude_agent_query(self, prompt: str, options: Any = None, **settings: Any) -> Any:
        """Query with rollbacks; see `agentguard.integrations.claude_agent_sdk.query.query_with_rollback`."""
        return self.integrate("claude_agent_query", prompt, options, **settings)

    @property
    def openai_agents(self) -> Any:
        """Guarded runner of agents; see `agentguard.integrations.openai_agents.runner.GuardedRunner`."""
        return self.integrate("openai_agents")

    def integrate(self, framework: str, *args: Any, **options: Any) -> Any:
        """Return the integration of a framework for this guard.

        Args:
            framework: name of the integration in the registry.
            args, options: arguments of the integration after the guard.

        Raises:
            UnknownPlugin: there is no integration with that name.
            MissingExtra: the framework is not installed.
        """
        return integration_registry().get(framework)(self, *args, **options)
