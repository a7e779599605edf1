"""Outline of a run, and the graph and lanes of its agents and tools."""

from __future__ import annotations

from dataclasses import replace

from agentguard_server.viewer.data.run_data import RunData
from agentguard_server.viewer.run.agent_graph import MAX_NODES, build_agent_graph
from agentguard_server.viewer.run.agent_lanes import MAX_ROWS, LaneChart, build_lanes
from agentguard_server.viewer.run.branches import build_branches
from agentguard_server.viewer.run.outline import OUTLINE_ROWS, Outline, build_outline
from agentguard_server.viewer.run.timeline import (
    MAX_AGENT_ROWS,
    OTHER_AGENTS,
    Badge,
    Timeline,
    build_timeline,
)

from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory


def act(index: int, agent: str, *names: str, error: bool = False, **arguments: str) -> Step:
    return Step(
        index=index,
        source=Source.AGENT,
        agent=agent,
        content="I act.",
        tool_calls=tuple(
            ToolCall(id=f"{index}.{i}", name=name, arguments=arguments) for i, name in enumerate(names)
        ),
        observations=tuple(
            Observation(content=f"{name} answers", call_id=f"{index}.{i}", is_error=error)
            for i, name in enumerate(names)
        ),
    )


def outline_of(count: int, *, step: int, only_marked: bool = False, marked: tuple[int, ...] = ()) -> Outline:
    steps = tuple(act(index, "a", "t") for index in range(count))
    run = Trajectory(id="r", format="event_log", task="t", steps=steps)
    badges: dict[int, frozenset[Badge]] = {place: frozenset({"error"}) for place in marked}
    branch = build_branches(RunData.from_run(run)).current
    return build_outline(branch, badges, root=None, step=step, only_marked=only_marked)


def test_outline_line_has_tools_and_last_result() -> None:
    (row,) = outline_of(1, step=0).rows
    assert (row.agent, row.tools, row.summary) == ("a", ("t",), "t answers")


def test_outline_of_marked_steps_omits_others() -> None:
    outline = outline_of(9, step=0, only_marked=True, marked=(2, 5))
    assert ([row.index for row in outline.rows], outline.total) == ([2, 5], 2)


def test_outline_page_contains_the_step_and_links_its_neighbours() -> None:
    outline = outline_of(2 * OUTLINE_ROWS + 1, step=OUTLINE_ROWS + 3)
    assert outline.rows[0].index == OUTLINE_ROWS
    assert (outline.previous_step, outline.next_step) == (0, 2 * OUTLINE_ROWS)


def test_outline_of_an_empty_run_has_no_line() -> None:
    outline = outline_of(0, step=0)
    assert (outline.rows, outline.previous_step, outline.next_step) == ((), None, None)


def test_graph_counts_calls_errors_and_repetitions() -> None:
    steps = [act(0, "a", "find"), act(1, "a", "find", error=True), act(2, "a", "find", place="x")]
    graph = build_agent_graph(steps, root=1)
    (edge,) = graph.edges
    assert (edge.source.name, edge.target.name) == ("a", "find")
    assert (edge.count, edge.errors, edge.repeats, edge.first_step, edge.root) == (3, 1, 1, 0, True)
    assert graph.agents[0].root


def test_graph_counts_parallel_calls_of_one_step() -> None:
    (edge,) = build_agent_graph([act(0, "a", "find", "find")], root=None).edges
    assert (edge.count, edge.repeats) == (2, 1)


def test_graph_has_hand_overs_between_agents() -> None:
    steps = [act(0, "a"), act(1, "b"), act(2, "b"), act(3, "a"), act(4, "b")]
    edges = build_agent_graph(steps, root=None).edges
    assert [(edge.source.name, edge.target.name, edge.count) for edge in edges] == [
        ("a", "b", 2), ("b", "a", 1)
    ]  # fmt: skip


def test_graph_omits_the_rarest_tools() -> None:
    steps = [act(i, "a", f"t{i}") for i in range(MAX_NODES + 2)] + [act(99, "a", f"t{MAX_NODES + 1}")]
    graph = build_agent_graph(steps, root=None)
    assert (len(graph.tools), graph.omitted) == (MAX_NODES, 2)
    assert graph.tools[-1].name == f"t{MAX_NODES + 1}"
    assert len(graph.edges) == MAX_NODES


def lanes_of(*steps: Step, error: int = -1, root: int | None = None) -> LaneChart:
    run = Trajectory(id="r", format="event_log", task="t", steps=steps)
    branch = build_branches(RunData.from_run(run)).current
    return build_lanes(branch, {error: frozenset({"error"})}, root=root, axis=None)


def test_lanes_of_tools_follow_their_agent() -> None:
    chart = lanes_of(act(0, "a", "x"), act(1, "b", "x", "y"), act(2, "a", "z"))
    assert [(lane.agent, lane.tool) for lane in chart.lanes] == [
        ("a", ""), ("a", "x"), ("a", "z"), ("b", ""), ("b", "x"), ("b", "y")
    ]  # fmt: skip
    assert [bar.step for bar in chart.lanes[0].bars] == [0, 2]


def test_lanes_show_times_if_the_run_has_them() -> None:
    steps = [replace(act(i, "a"), started_at=100.0 + 3 * i, ended_at=101.0 + 3 * i) for i in range(3)]
    chart = lanes_of(*steps)
    assert chart.axis == "time"
    assert [(bar.x, bar.width) for bar in chart.lanes[0].bars] == [(0, 14.29), (42.86, 14.29), (85.71, 14.29)]


def test_lanes_merge_bars_of_long_runs_and_keep_errors_and_root() -> None:
    chart = lanes_of(*(act(i, "a") for i in range(5_000)), error=2_001, root=3_001)
    (lane,) = chart.lanes
    assert (chart.axis, len(lane.bars) <= 334) == ("steps", True)
    assert sum(bar.error for bar in lane.bars) == 1
    assert [bar.step for bar in lane.bars if bar.root] == [3_001]


def test_lanes_beyond_the_limit_are_counted() -> None:
    chart = lanes_of(act(0, "a", *(f"t{i}" for i in range(MAX_ROWS + 1))))
    assert (len(chart.lanes), chart.omitted) == (MAX_ROWS, 2)


def timeline_of(*steps: Step) -> Timeline:
    run = Trajectory(id="r", format="event_log", task="t", steps=steps)
    return build_timeline(build_branches(RunData.from_run(run)).current, {}, root=None)


def test_timeline_of_several_agents_has_a_row_for_each() -> None:
    user = Step(index=0, source=Source.USER, agent="human", content="Go.")
    timeline = timeline_of(user, act(1, "planner"), act(2, "coder"), act(3, "planner"))
    assert timeline.agents == ("planner", "coder")
    assert [bar.row for bar in timeline.bars] == [None, 0, 1, 0]


def test_timeline_of_one_agent_has_no_rows() -> None:
    timeline = timeline_of(act(0, "solo"), act(1, "solo"))
    assert (timeline.agents, {bar.row for bar in timeline.bars}) == ((), {None})


def test_timeline_gives_rare_agents_one_row() -> None:
    names = [f"agent {number}" for number in range(MAX_AGENT_ROWS + 3)]
    steps = [act(index, name) for index, name in enumerate([*names[:5], *names])]
    timeline = timeline_of(*steps)
    assert len(timeline.agents) == MAX_AGENT_ROWS
    assert timeline.agents[-1] == OTHER_AGENTS
    assert timeline.bars[-1].row == MAX_AGENT_ROWS - 1


def test_timeline_of_a_long_run_has_bars_for_each_agent_of_a_group() -> None:
    timeline = timeline_of(*(act(index, f"agent {index % 2}") for index in range(480)))
    assert timeline.steps_per_bar == 2
    assert {bar.row for bar in timeline.bars} == {0, 1}
    assert len(timeline.bars) == 480
