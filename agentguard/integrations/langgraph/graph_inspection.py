"""Inspection of compiled graphs: the nodes that begin a turn, and the tools."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from langgraph.constants import END
from langgraph.graph.state import CompiledStateGraph
from langgraph.prebuilt import ToolNode

from agentguard.errors import ConfigError
from agentguard.integrations.langchain.run_registry import build_tool_spec
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
        has_middleware: whether the agent also has the guard's middleware.
    """

    turn_nodes: frozenset[str]
    tools: Mapping[str, str]
    specs: tuple[ToolSpec, ...]
    has_middleware: bool


def inspect_graph(graph: Any, turn_nodes: str | Iterable[str] | None = None) -> GraphInfo:
    """Inspect a compiled graph.

    Args:
        graph: compiled state graph, for example from ``create_agent``.
        turn_nodes: names of the nodes that begin a turn; by default the nodes that follow the tools.

    Raises:
        ConfigError: the graph cannot be guarded; the message gives the reason and the remedy.
    """
    if not isinstance(graph, CompiledStateGraph):
        raise ConfigError(f"langgraph: expected a compiled state graph, found {type(graph).__name__}")
    if not graph.checkpointer or graph.checkpointer is True:
        raise ConfigError(
            "langgraph: the graph has no checkpointer of its own, so it cannot be forked; "
            "compile it with checkpointer=InMemorySaver() or a saver on disk"
        )
    if "messages" not in graph.channels:
        raise ConfigError("langgraph: the graph's state has no channel 'messages'")
    nodes = graph.builder.nodes
    tool_nodes = {name: spec.runnable for name, spec in nodes.items() if isinstance(spec.runnable, ToolNode)}
    turn_node_names = (
        {turn_nodes}
        if isinstance(turn_nodes, str)
        else set(turn_nodes or _find_turn_nodes(graph, set(tool_nodes)))
    )
    if unknown := turn_node_names - set(nodes):
        raise ConfigError(f"langgraph: unknown nodes {sorted(unknown)}; there are: {sorted(nodes)}")
    if not turn_node_names:
        raise ConfigError(
            "langgraph: the node that begins a turn is unknown; name it: "
            "guard.langgraph(graph, turn_nodes='...'), "
            f"one of {sorted(nodes)}"
        )
    tools = [tool for node in tool_nodes.values() for tool in node.tools_by_name.values()]
    return GraphInfo(
        turn_nodes=frozenset(turn_node_names),
        tools={tool: node for node in tool_nodes for tool in tool_nodes[node].tools_by_name},
        specs=tuple(build_tool_spec(tool) for tool in tools),
        has_middleware=MIDDLEWARE_NODE in nodes,
    )


def _find_turn_nodes(graph: Any, tools: set[str]) -> set[str]:
    """Return the nodes that follow the tools, without those that end a run; otherwise the model's node."""
    builder = graph.builder
    followers = {b for a, b in builder.edges if a in tools}
    for name in tools:
        for branch in builder.branches.get(name, {}).values():
            followers |= set((branch.ends or {}).values())
    followers = {name for name in followers - tools - {END} if not name.endswith(".after_agent")}
    return followers or set(builder.nodes) & _MODEL_NODES
