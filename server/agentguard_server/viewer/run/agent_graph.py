"""Graph of a run: agents and tools as nodes; calls and hand-overs with their counts as edges."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentguard.detect.step_facts import canonicalize_json
from agentguard.trajectory.model import Source, Step, ToolCall
from agentguard_server.viewer.run.conversation import describe_error
from agentguard_server.viewer.run.effect_ledger import find_result

MAX_NODES = 16
"""Maximum number of agents, and of tools, in a graph."""

NodeKind = Literal["agent", "tool"]
_NodeKey = tuple[NodeKind, str]
_EdgeKey = tuple[_NodeKey, _NodeKey]


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphNode:
    """Agent or tool.

    Attributes:
        kind, name: the node.
        count: steps of the agent, or calls of the tool.
        row: position in its column, from 0.
        root: whether the agent acts in the root cause.
    """

    kind: NodeKind
    name: str
    count: int
    row: int
    root: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphEdge:
    """Calls of a tool by an agent, or hand-overs between agents.

    Attributes:
        source, target: nodes.
        count: number of calls or hand-overs.
        errors: calls with an error.
        repeats: calls that are equal to an earlier call of the agent.
        first_step: step of the first call or hand-over.
        root: whether the root cause is one of the calls.
    """

    source: GraphNode
    target: GraphNode
    count: int
    errors: int
    repeats: int
    first_step: int
    root: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentGraph:
    """Graph of a branch; ``omitted`` is the number of agents and tools beyond `MAX_NODES`."""

    agents: tuple[GraphNode, ...]
    tools: tuple[GraphNode, ...]
    edges: tuple[GraphEdge, ...]
    omitted: int

    @property
    def rows(self) -> int:
        """Return the length of the longer column."""
        return max(len(self.agents), len(self.tools))


def build_agent_graph(steps: Sequence[Step], *, root: int | None) -> AgentGraph:
    """Build the graph of the steps of agents; ``root`` is the step of the root cause."""
    collector = _EdgeCollector(root)
    for place, step in enumerate(steps):
        if step.source is Source.AGENT:
            collector.add_step(place, step)
    return collector.build()


class _EdgeCollector:
    """Collector of the nodes and edges of a branch."""

    def __init__(self, root: int | None) -> None:
        self._root = root
        self._nodes: Counter[_NodeKey] = Counter()
        self._edges: Counter[_EdgeKey] = Counter()
        self._errors: Counter[_EdgeKey] = Counter()
        self._repeats: Counter[_EdgeKey] = Counter()
        self._first_steps: dict[_EdgeKey, int] = {}
        self._roots: set[_NodeKey | _EdgeKey] = set()
        self._calls: set[tuple[_NodeKey, str, str]] = set()
        self._last_agent: _NodeKey | None = None

    def add_step(self, place: int, step: Step) -> None:
        """Add a step of an agent with its calls."""
        agent: _NodeKey = ("agent", step.agent)
        self._nodes[agent] += 1
        if place == self._root:
            self._roots.add(agent)
        if self._last_agent is not None and self._last_agent != agent:
            self._add_edge((self._last_agent, agent), place)
        self._last_agent = agent
        for number, call in enumerate(step.tool_calls):
            edge: _EdgeKey = (agent, ("tool", call.name))
            self._nodes[edge[1]] += 1
            self._add_edge(edge, place)
            result = find_result(step, number)
            self._errors[edge] += result is not None and bool(describe_error(result))
            key = (agent, call.name, _format_arguments(call))
            self._repeats[edge] += key in self._calls
            self._calls.add(key)
            if place == self._root:
                self._roots.add(edge)

    def _add_edge(self, edge: _EdgeKey, place: int) -> None:
        self._edges[edge] += 1
        self._first_steps.setdefault(edge, place)

    def build(self) -> AgentGraph:
        """Build the graph of the most frequent agents and tools, in the order of their first steps."""
        agents, tools = self._build_column("agent"), self._build_column("tool")
        nodes = {(node.kind, node.name): node for node in (*agents, *tools)}
        return AgentGraph(
            agents=agents,
            tools=tools,
            edges=tuple(
                GraphEdge(
                    source=nodes[edge[0]],
                    target=nodes[edge[1]],
                    count=count,
                    errors=self._errors[edge],
                    repeats=self._repeats[edge],
                    first_step=self._first_steps[edge],
                    root=edge in self._roots,
                )
                for edge, count in self._edges.items()
                if edge[0] in nodes and edge[1] in nodes
            ),
            omitted=len(self._nodes) - len(nodes),
        )

    def _build_column(self, kind: NodeKind) -> tuple[GraphNode, ...]:
        keys = [key for key in self._nodes if key[0] == kind]
        most_frequent = set(sorted(keys, key=lambda key: -self._nodes[key])[:MAX_NODES])
        shown_keys = [key for key in keys if key in most_frequent]
        return tuple(
            GraphNode(kind=kind, name=key[1], count=self._nodes[key], row=row, root=key in self._roots)
            for row, key in enumerate(shown_keys)
        )


def _format_arguments(call: ToolCall) -> str:
    return canonicalize_json(call.arguments) if call.arguments is not None else call.raw_arguments or ""
