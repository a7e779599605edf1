"""Guarded copies of agents, with their tools and models.

The guard never changes the caller's agents, because concurrent runs may use the same agent.
"""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from typing import Any

from agents import Agent, FunctionTool, Handoff, Model, ModelProvider, ModelSettings, RunConfig
from agents.items import ModelResponse
from agents.models import get_default_model
from agents.run import CallModelData, ModelInputData

from agentguard.integrations.openai_agents.model_calls import CallCandidate, ModelCaller
from agentguard.recover.actions import SampleVariant
from agentguard.trajectory.model import ToolSpec

InvokeTool = Callable[[Any, str, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Function of the tool context, the arguments as JSON, and the function that runs the tool."""

DeclareTool = Callable[[str, dict[str, Any]], None]
"""Function of the name of an MCP tool and its annotations."""


class GuardedModel(Model):
    """Model whose responses the guard may reject before the SDK acts on them."""

    def __init__(self, inner: Model, model_caller: ModelCaller, get_model: Callable[[str], Model]) -> None:
        self.inner, self._model_caller, self._get_model = inner, model_caller, get_model

    async def get_response(  # the signature is the SDK's
        self, system_instructions: str | None, input: Any, *more: Any, **options: Any
    ) -> ModelResponse:
        """Implement `Model.get_response`."""

        async def ask(items: list[Any]) -> ModelResponse:
            return await self.inner.get_response(system_instructions, items, *more, **options)

        return await self._model_caller.get_response(
            _to_items(input), ask, self._build_candidate_call(system_instructions, more, options)
        )

    def stream_response(
        self, system_instructions: str | None, input: Any, *more: Any, **options: Any
    ) -> AsyncIterator[Any]:
        """Implement `Model.stream_response`; hide rejected responses if the output must be JSON."""

        def ask(items: list[Any]) -> AsyncIterator[Any]:
            return self.inner.stream_response(system_instructions, items, *more, **options)

        schema = options.get("output_schema", more[2] if len(more) > 2 else None)
        candidate = self._build_candidate_call(system_instructions, more, options)
        everything = schema is not None and not schema.is_plain_text()
        return self._model_caller.stream_events(_to_items(input), ask, candidate, buffer_all=everything)

    def _build_candidate_call(
        self, system: str | None, args: tuple[Any, ...], options: dict[str, Any]
    ) -> CallCandidate:
        """Build the function that requests another candidate of a response."""

        async def candidate(items: list[Any], variant: SampleVariant) -> ModelResponse:
            model = self._get_model(variant.model) if variant.model else self.inner
            positional, keywords = list(args), dict(options)
            if variant.temperature is not None:
                settings = keywords.get("model_settings", positional[0] if positional else None)
                settings = replace(settings or ModelSettings(), temperature=variant.temperature)
                if "model_settings" in keywords or not positional:
                    keywords["model_settings"] = settings
                else:
                    positional[0] = settings
            instruction = [{"role": "user", "content": variant.instruction}] if variant.instruction else []
            messages: Any = [*items, *instruction]
            return await model.get_response(system, messages, *positional, **keywords)

        return candidate

    def get_retry_advice(self, request: Any) -> Any:
        """Implement `Model.get_retry_advice`."""
        return self.inner.get_retry_advice(request)

    async def close(self) -> None:
        """Implement `Model.close`."""
        await self.inner.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self.inner._cleanup_on_run_end(owner)


def find_model_name(model: str | Model | None) -> str | None:
    """Return the name of an agent's model; None if the model has no name."""
    if isinstance(model, GuardedModel):
        model = model.inner
    if model is None:
        return get_default_model()
    name = model if isinstance(model, str) else getattr(model, "model", None)
    return name if isinstance(name, str) else None


class GuardedProvider(ModelProvider):
    """Provider of guarded models."""

    def __init__(self, inner: ModelProvider, model_caller: ModelCaller) -> None:
        self._inner, self._model_caller = inner, model_caller

    def get_model(self, model_name: str | None) -> Model:
        """Implement `ModelProvider.get_model`."""
        return GuardedModel(self._inner.get_model(model_name), self._model_caller, self._inner.get_model)


def build_guarded_config(
    config: RunConfig,
    filter_input: Callable[[CallModelData[Any]], Awaitable[ModelInputData]],
    model_caller: ModelCaller,
    get_model: Callable[[str], Model],
) -> RunConfig:
    """Return the caller's configuration with the guard's hooks; the caller's filter gets the guard's items.

    Args:
        config: the caller's configuration.
        filter_input: called before each model call with the SDK's input; returns the input to use.
        model_caller: makes the model calls.
        get_model: returns a model by name.
    """
    caller_filter = config.call_model_input_filter

    async def filter_twice(data: CallModelData[Any]) -> ModelInputData:
        model_data = await filter_input(data)
        if caller_filter is None:
            return model_data
        result = caller_filter(replace(data, model_data=model_data))
        return await result if inspect.isawaitable(result) else result

    model = config.model
    return replace(
        config,
        call_model_input_filter=filter_twice,
        # the run continues, so that the guard can add a hint
        tool_not_found_behavior="return_error_to_model",
        model_provider=GuardedProvider(config.model_provider, model_caller),
        model=GuardedModel(model, model_caller, get_model) if isinstance(model, Model) else model,
    )


class AgentWrapper:
    """Factory of the copies of agents for one run; it copies each agent once, so handoffs may be circular.

    Args:
        invoke_tool: runs a tool.
        model_caller: makes the model calls.
        get_model: returns a model by name.
        disabled_tools: names of disabled tools; the owner may add names during the run.
        declare_tool: called with the annotations of each MCP tool.
    """

    def __init__(
        self,
        invoke_tool: InvokeTool,
        model_caller: ModelCaller,
        *,
        get_model: Callable[[str], Model],
        disabled_tools: set[str],
        declare_tool: DeclareTool,
    ) -> None:
        self._invoke_tool, self._model_caller, self._disabled_tools, self._declare_tool = (
            invoke_tool,
            model_caller,
            disabled_tools,
            declare_tool,
        )
        self._get_model = get_model
        self._copies: dict[int, tuple[Agent[Any], Agent[Any]]] = {}
        self._has_unknown_tools = False

    def wrap_agent(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the guarded copy of an agent; the agents that it hands off to are copied too."""
        if id(agent) in self._copies:
            return self._copies[id(agent)][1]
        if any(agent is agent_copy for _, agent_copy in self._copies.values()):
            return agent
        changes: dict[str, Any] = {"tools": [self._wrap_tool(tool) for tool in agent.tools]}
        if isinstance(agent.model, Model):
            changes["model"] = GuardedModel(agent.model, self._model_caller, self._get_model)
            changes["model_settings"] = agent.model_settings
        agent_copy = agent.clone(**changes)
        self._copies[id(agent)] = (agent, agent_copy)
        agent_copy.handoffs = [self._wrap_handoff(one) for one in agent.handoffs]
        if agent.mcp_servers:
            self._has_unknown_tools = True  # the servers list their tools later
            agent_copy.get_mcp_tools = self._wrap_mcp_tools(agent)  # type: ignore[method-assign, assignment]
        return agent_copy

    def get_original(self, agent: Agent[Any]) -> Agent[Any]:
        """Return the caller's agent of a copy; an agent that is not a copy is returned as it is."""
        return next((original for original, one in self._copies.values() if one is agent), agent)

    def list_tool_specs(self) -> tuple[ToolSpec, ...]:
        """Return all tools and handoffs of the agents; empty if some become known only during the run."""
        specs: dict[str, ToolSpec] = {}
        for agent, _ in list(self._copies.values()):
            for tool in agent.tools:
                specs[tool.name] = _build_tool_spec(tool)
            for one in agent.handoffs:
                handoff = one if isinstance(one, Handoff) else None
                name = handoff.tool_name if handoff else Handoff.default_tool_name(one)  # type: ignore[arg-type]
                specs[name] = ToolSpec(name=name, parameters=handoff.input_json_schema if handoff else {})
        return () if self._has_unknown_tools else tuple(specs.values())

    def _wrap_handoff(self, handoff: Any) -> Any:
        if not isinstance(handoff, Handoff):
            return self.wrap_agent(handoff)
        self._has_unknown_tools = True  # only its invocation returns the target
        invoke = handoff.on_invoke_handoff

        async def hand_off(context: Any, arguments: str) -> Any:
            return self.wrap_agent(await invoke(context, arguments))

        return replace(handoff, on_invoke_handoff=hand_off)

    def _wrap_mcp_tools(self, agent: Agent[Any]) -> Callable[[Any], Awaitable[list[Any]]]:
        async def get_tools(context: Any) -> list[Any]:
            tools = await agent.get_mcp_tools(context)
            for tool in tools:
                annotations = getattr(tool, "mcp_annotations", None)
                if annotations is not None:
                    self._declare_tool(tool.name, annotations.model_dump(by_alias=True, exclude_none=True))
            return [self._wrap_tool(tool) for tool in tools]

        return get_tools

    def _wrap_tool(self, tool: Any) -> Any:
        if not isinstance(tool, FunctionTool):
            return tool
        wrapped = copy.copy(tool)
        wrapped.on_invoke_tool = self._build_invoker(wrapped)
        wrapped.is_enabled = self._build_enabled_check(tool)
        return wrapped

    def _build_invoker(self, tool: FunctionTool) -> Any:
        """Build the function that runs the tool at most once.

        A function tool converts its exceptions to results with a text. The guard wraps the inner function,
        which raises the exception.
        """
        outer: Any = tool.on_invoke_tool
        inner = getattr(outer, "_invoke_tool_impl", None)
        function = outer if inner is None else inner

        async def invoke_once(context: Any, arguments: str) -> Any:
            return await self._invoke_tool(context, arguments, lambda: function(context, arguments))

        if inner is None:
            return invoke_once
        functools.update_wrapper(invoke_once, inner)
        outer = copy.copy(outer)
        outer._invoke_tool_impl = invoke_once
        return outer

    def _build_enabled_check(self, tool: FunctionTool) -> Any:
        caller_check = tool.is_enabled

        async def is_enabled(context: Any, agent: Any) -> bool:
            if tool.name in self._disabled_tools:
                return False
            if isinstance(caller_check, bool):
                return caller_check
            result: Any = caller_check(context, agent)
            return bool(await result if inspect.isawaitable(result) else result)

        return is_enabled


def _to_items(input: Any) -> list[Any]:
    return [{"role": "user", "content": input}] if isinstance(input, str) else list(input)


def _build_tool_spec(tool: Any) -> ToolSpec:
    return ToolSpec(
        name=tool.name,
        description=getattr(tool, "description", "") or "",
        parameters=getattr(tool, "params_json_schema", None) or {},
    )
