"""Copies of agents, with their tools and models, that a guarded run can look into.

The agents a user made are never changed: one agent may be in many runs at once.
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
from agents.run import CallModelData, ModelInputData

from agentguard.integrations.openai_agents.model_calls import Candidate, ModelCall
from agentguard.recover.strategy import SampleVariant
from agentguard.trajectory.model import ToolSpec

Invoke = Callable[[Any, str, Callable[[], Awaitable[Any]]], Awaitable[Any]]
"""Called with the tool, its arguments as JSON and what runs it."""

Declare = Callable[[str, dict[str, Any]], None]
"""Called with the name of an MCP tool and its annotations."""


class GuardedModel(Model):
    """A model whose answers the guard may refuse before anything comes of them."""

    def __init__(self, inner: Model, asking: ModelCall, models: Callable[[str], Model]) -> None:
        self._inner, self._asking, self._models = inner, asking, models

    async def get_response(  # the signature is the SDK's
        self, system_instructions: str | None, input: Any, *more: Any, **options: Any
    ) -> ModelResponse:
        """As `Model.get_response`."""

        async def ask(items: list[Any]) -> ModelResponse:
            return await self._inner.get_response(system_instructions, items, *more, **options)

        return await self._asking.respond(
            _items(input), ask, self._candidate(system_instructions, more, options)
        )

    def stream_response(
        self, system_instructions: str | None, input: Any, *more: Any, **options: Any
    ) -> AsyncIterator[Any]:
        """As `Model.stream_response`; where the answer is to be JSON, nothing of a refused one is seen."""

        def ask(items: list[Any]) -> AsyncIterator[Any]:
            return self._inner.stream_response(system_instructions, items, *more, **options)

        schema = options.get("output_schema", more[2] if len(more) > 2 else None)
        candidate = self._candidate(system_instructions, more, options)
        everything = schema is not None and not schema.is_plain_text()
        return self._asking.flow(_items(input), ask, candidate, everything=everything)

    def _candidate(self, system: str | None, more: tuple[Any, ...], options: dict[str, Any]) -> Candidate:
        """What asks for another candidate of an answer."""

        async def candidate(items: list[Any], variant: SampleVariant) -> ModelResponse:
            model = self._models(variant.model) if variant.model else self._inner
            given, named = list(more), dict(options)
            if variant.temperature is not None:
                settings = named.get("model_settings", given[0] if given else None) or ModelSettings()
                warm = replace(settings, temperature=variant.temperature)
                if "model_settings" in named or not given:
                    named["model_settings"] = warm
                else:
                    given[0] = warm
            said = [{"role": "user", "content": variant.instruction}] if variant.instruction else []
            shown: Any = [*items, *said]
            return await model.get_response(system, shown, *given, **named)

        return candidate

    def get_retry_advice(self, request: Any) -> Any:
        """As `Model.get_retry_advice`."""
        return self._inner.get_retry_advice(request)

    async def close(self) -> None:
        """As `Model.close`."""
        await self._inner.close()

    async def _cleanup_on_run_end(self, owner: object) -> None:
        await self._inner._cleanup_on_run_end(owner)


class GuardedProvider(ModelProvider):
    """A provider of guarded models."""

    def __init__(self, inner: ModelProvider, asking: ModelCall) -> None:
        self._inner, self._asking = inner, asking

    def get_model(self, model_name: str | None) -> Model:
        """As `ModelProvider.get_model`."""
        return GuardedModel(self._inner.get_model(model_name), self._asking, self._inner.get_model)


def guarded_config(
    config: RunConfig,
    before: Callable[[CallModelData[Any]], Awaitable[ModelInputData]],
    asking: ModelCall,
    models: Callable[[str], Model],
) -> RunConfig:
    """The caller's configuration with the guard's seams; the caller's filter sees the guard's view.

    Args:
        config: the caller's.
        before: called before each model call, with what the SDK would show; gives what is shown.
        asking: makes model calls.
        models: the model of a name.
    """
    theirs = config.call_model_input_filter

    async def view(data: CallModelData[Any]) -> ModelInputData:
        shown = await before(data)
        if theirs is None:
            return shown
        filtered = theirs(replace(data, model_data=shown))
        return await filtered if inspect.isawaitable(filtered) else filtered

    model = config.model
    return replace(
        config,
        call_model_input_filter=view,
        tool_not_found_behavior="return_error_to_model",  # a hint, if nothing else, comes after it
        model_provider=GuardedProvider(config.model_provider, asking),
        model=GuardedModel(model, asking, models) if isinstance(model, Model) else model,
    )


class Wrapping:
    """Makes the copies for one run, each agent once, so that agents may hand off in a circle.

    Args:
        invoke: runs a tool.
        asking: makes model calls.
        models: gives the model of a name.
        withheld: names of tools that were taken away; looked at whenever tools are offered.
        declare: told of an MCP tool what its server says it does.
    """

    def __init__(
        self,
        invoke: Invoke,
        asking: ModelCall,
        *,
        models: Callable[[str], Model],
        withheld: set[str],
        declare: Declare,
    ) -> None:
        self._invoke, self._asking, self._withheld, self._declare = invoke, asking, withheld, declare
        self._models = models
        self._made: dict[int, tuple[Agent[Any], Agent[Any]]] = {}
        self._blind = False

    def agent(self, agent: Agent[Any]) -> Agent[Any]:
        """The copy of an agent, and with it of those it hands off to."""
        if id(agent) in self._made:
            return self._made[id(agent)][1]
        if any(agent is made for _, made in self._made.values()):
            return agent
        changes: dict[str, Any] = {"tools": [self._tool(tool) for tool in agent.tools]}
        if isinstance(agent.model, Model):
            changes["model"] = GuardedModel(agent.model, self._asking, self._models)
            changes["model_settings"] = agent.model_settings
        made = agent.clone(**changes)
        self._made[id(agent)] = (agent, made)
        made.handoffs = [self._handoff(one) for one in agent.handoffs]
        if agent.mcp_servers:
            self._blind = True  # which tools its servers have is known only later
            made.get_mcp_tools = self._mcp(agent)  # type: ignore[method-assign, assignment]
        return made

    def original(self, agent: Agent[Any]) -> Agent[Any]:
        """The agent that a copy was made of."""
        return next((own for own, made in self._made.values() if made is agent), agent)

    def specs(self) -> tuple[ToolSpec, ...]:
        """All tools and handoffs of the agents; none if some cannot be known before they are used."""
        specs: dict[str, ToolSpec] = {}
        for agent, _ in list(self._made.values()):
            for tool in agent.tools:
                specs[tool.name] = _spec(tool)
            for one in agent.handoffs:
                handoff = one if isinstance(one, Handoff) else None
                name = handoff.tool_name if handoff else Handoff.default_tool_name(one)  # type: ignore[arg-type]
                specs[name] = ToolSpec(name=name, parameters=handoff.input_json_schema if handoff else {})
        return () if self._blind else tuple(specs.values())

    def _handoff(self, one: Any) -> Any:
        if not isinstance(one, Handoff):
            return self.agent(one)
        self._blind = True  # its target is known when it is invoked
        invoke = one.on_invoke_handoff

        async def handed(context: Any, arguments: str) -> Any:
            return self.agent(await invoke(context, arguments))

        return replace(one, on_invoke_handoff=handed)

    def _mcp(self, agent: Agent[Any]) -> Callable[[Any], Awaitable[list[Any]]]:
        async def tools(context: Any) -> list[Any]:
            found = await agent.get_mcp_tools(context)
            for tool in found:
                hints = getattr(tool, "mcp_annotations", None)
                if hints is not None:
                    self._declare(tool.name, hints.model_dump(by_alias=True, exclude_none=True))
            return [self._tool(tool) for tool in found]

        return tools

    def _tool(self, tool: Any) -> Any:
        if not isinstance(tool, FunctionTool):
            return tool
        made = copy.copy(tool)
        made.on_invoke_tool = self._invoker(made)
        made.is_enabled = self._enabled(tool)
        return made

    def _invoker(self, tool: FunctionTool) -> Any:
        """What runs the tool, once.

        A tool made from a function turns its exceptions into texts, which look like results. So the guard
        goes below that, where an exception is still one.
        """
        outer: Any = tool.on_invoke_tool
        raw = getattr(outer, "_invoke_tool_impl", None)
        below = outer if raw is None else raw

        async def once(context: Any, arguments: str) -> Any:
            return await self._invoke(context, arguments, lambda: below(context, arguments))

        if raw is None:
            return once
        functools.update_wrapper(once, raw)
        made = copy.copy(outer)
        made._invoke_tool_impl = once
        return made

    def _enabled(self, tool: FunctionTool) -> Any:
        given = tool.is_enabled

        async def enabled(context: Any, agent: Any) -> bool:
            if tool.name in self._withheld:
                return False
            if isinstance(given, bool):
                return given
            answer: Any = given(context, agent)
            return bool(await answer if hasattr(answer, "__await__") else answer)

        return enabled


def _items(input: Any) -> list[Any]:
    return [{"role": "user", "content": input}] if isinstance(input, str) else list(input)


def _spec(tool: Any) -> ToolSpec:
    return ToolSpec(
        name=tool.name,
        description=getattr(tool, "description", "") or "",
        parameters=getattr(tool, "params_json_schema", None) or {},
    )
