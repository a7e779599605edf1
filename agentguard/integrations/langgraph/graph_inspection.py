"""Inspection of compiled graphs: the nodes that begin a turn, and the tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from langchain_core.tools import BaseTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.constants import END
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode

from agentguard.errors import ConfigError
from agentguard.trajectory.model import ToolSpec

_MODEL_NODES = frozenset({"model", "agent", "call_model", "llm", "chatbot"})
"""Names of the model's node, for graphs without tools."""

MIDDLEWARE_NODE = "agentguard.before_model"
"""Node of `GuardMiddleware` in an agent of ``create_agent``."""

UNGUARDED_METHODS = frozenset(
    (
        "abatch",
        "abatch_as_completed",
        "as_tool",
        "assign",
        "astream_events",
        "astream_log",
        "atransform",
        "batch",
        "batch_as_completed",
        "bind",
        "copy",
        "map",
        "pick",
        "pipe",
        "stream_events",
        "transform",
        "with_alisteners",
        "with_config",
        "with_fallbacks",
        "with_listeners",
        "with_retry",
        "with_types",
    )
)
"""Methods of a graph that would run it, or derive another graph from it, without the guard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphInfo:
    """Properties of a graph that the guard needs.

    Attributes:
        turn_nodes: nodes that begin a turn. The run pauses before them, and forks start there.
        tools: tool nodes by tool name.
        specs: specifications of the tools.
        has_middleware: True if the agent also has the guard's middleware.
    """

    turn_nodes: frozenset[str]
    tools: Mapping[str, str]
    specs: tuple[ToolSpec, ...]
    has_middleware: bool


def inspect_graph(graph: Any, turn_nodes: str | Iterable[str] | None = None) -> GraphInfo:
    """Inspect a compiled graph.

    Args:
        graph: a compiled state graph, for example from ``create_agent``.
        turn_nodes: the nodes that begin a turn; by default those that follow the tools.

    Raises:
        ConfigError: the graph cannot be guarded; the message gives the reason and the remedy.
    """
    if not isinstance(graph, CompiledStateGraph):
        raise ConfigError(f"langgraph: expected a compiled state graph, found {type(graph).__name__}")
    if not graph.checkpointer or graph.checkpointer is True:
        raise ConfigError(
            "langgraph: the graph has no own checkpointer, so there is nothing to fork; "
            "compile it with checkpointer=InMemorySaver() or a saver on disk"
        )
    if "messages" not in graph.channels:
        raise ConfigError("langgraph: the graph's state has no channel 'messages'")
    nodes = graph.builder.nodes
    found = {name: spec.runnable for name, spec in nodes.items() if isinstance(spec.runnable, ToolNode)}
    named = (
        {turn_nodes}
        if isinstance(turn_nodes, str)
        else set(turn_nodes or _find_turn_nodes(graph, set(found)))
    )
    if unknown := named - set(nodes):
        raise ConfigError(f"langgraph: there is no node {sorted(unknown)}; there are {sorted(nodes)}")
    if not named:
        raise ConfigError(
            "langgraph: cannot tell which node begins a turn; name it: guard.langgraph(graph, before='...'), "
            f"one of {sorted(nodes)}"
        )
    tools = [tool for node in found.values() for tool in node.tools_by_name.values()]
    return GraphInfo(
        turn_nodes=frozenset(named),
        tools={tool: node for node in found for tool in found[node].tools_by_name},
        specs=tuple(_build_tool_spec(tool) for tool in tools),
        has_middleware=MIDDLEWARE_NODE in nodes,
    )


def _find_turn_nodes(graph: Any, tools: set[str]) -> set[str]:
    """Return the nodes that follow the tools, without those that end a run; otherwise the model's node."""
    builder = graph.builder
    after = {b for a, b in builder.edges if a in tools}
    for name in tools:
        for branch in builder.branches.get(name, {}).values():
            after |= set((branch.ends or {}).values())
    after = {name for name in after - tools - {END} if not name.endswith(".after_agent")}
    return after or set(builder.nodes) & _MODEL_NODES


def _build_tool_spec(tool: BaseTool) -> ToolSpec:
    function = convert_to_openai_tool(tool)["function"]
    return ToolSpec(
        name=function["name"],
        description=function.get("description") or "",
        parameters=function.get("parameters") or {},
    )
