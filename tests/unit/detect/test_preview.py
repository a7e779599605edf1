"""Findings of proposed turns: returned before the tools run, and not stored for a refused turn."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentguard.detect.base import BaseDetector, Finding, detectors
from agentguard.detect.detection import detect, mark_recoveries
from agentguard.detect.run_view import RunView
from agentguard.detect.runner import IncrementalRunner
from agentguard.trajectory.formats.reader import load_trajectory
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec

SAMPLES = Path(__file__).resolve().parents[3] / "samples"
SEAT = {
    "type": "object",
    "properties": {"seat": {"type": "integer", "minimum": 1}, "to": {"type": "string"}},
    "additionalProperties": False,
}
TOOLS = (ToolSpec(name="book", parameters=SEAT), ToolSpec(name="find"))


def turn(index: int, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> Step:
    call = ToolCall(id=f"c{index}", name=tool, arguments=arguments, **more)
    return Step(index=index, source=Source.AGENT, agent="clerk", tool_calls=(call,))


def watching(**specs: Any) -> IncrementalRunner:
    return IncrementalRunner(RunView(task="book a seat", tools=TOOLS), specs)


@pytest.mark.parametrize(
    ("detector", "options", "step"),
    [
        ("unknown_tool", {}, turn(0, "buy", {})),
        ("schema_violation", {}, turn(0, "book", {"chair": 1})),
        ("out_of_range", {}, turn(0, "book", {"seat": 0})),
        ("unparsable_action", {}, turn(0, "book", raw_arguments="{seat: 1")),
        ("capability", {"denied": {"*": ["book"]}}, turn(0, "book", {"seat": 1})),
        ("control_flow", {"requires": {"book": "find"}}, turn(0, "book", {"seat": 1})),
        (
            "policy",
            {"rules": [{"forbid": "window", "where": "arguments"}]},
            turn(0, "book", {"to": "window"}),
        ),
        ("policy", {"rules": [{"before": "please", "tool": "book"}]}, turn(0, "book", {"seat": 1})),
        ("unknown_origin", {}, turn(0, "find", {"booking_id": "XK7-2291"})),
    ],
)
def test_preview_equals_later_findings(detector: str, options: dict[str, Any], step: Step) -> None:
    watcher = watching(**{detector: options})
    foreseen = watcher.check_proposed(step)
    assert [finding.detector for finding in foreseen] == [detector]
    assert watcher.check_proposed(step) == foreseen, "looking ahead twice must say the same"
    assert watcher.observe(step) == foreseen
    assert not watcher.failures


def test_refused_turn_leaves_no_trace() -> None:
    watcher = watching(control_flow={"requires": {"book": "find"}}, unknown_origin={})
    assert watcher.check_proposed(turn(0, "find", {"booking_id": "XK7-2291"}))
    assert watcher.observe(turn(0, "book", {"seat": 1})), "a call that was refused does not count as made"
    assert len(watcher.view.steps) == 1


def test_value_of_last_result_is_known() -> None:
    watcher = watching(unknown_origin={})
    seen = Observation(content="booking XK7-2291 is open", call_id="c0", tool="find")
    first = turn(0, "find", {})
    watcher.observe(Step(**{**_fields(first), "observations": (seen,)}))
    assert watcher.check_proposed(turn(1, "find", {"booking_id": "XK7-2291"})) == ()


def test_arguments_changed_in_place_are_judged_again() -> None:
    watcher = watching(out_of_range={"ranges": {"seats": [1, 9]}})
    step = turn(0, "find", {"seats": [0]})
    assert watcher.check_proposed(step)
    assert step.tool_calls[0].arguments is not None
    step.tool_calls[0].arguments["seats"][0] = 77
    assert [finding.evidence[0].quote for finding in watcher.observe(step)] == ['{"seats":[77]}']
    assert not watcher.failures


VALUES = st.sampled_from(["XK7-2291", "ann@mail.org", "2031-04-09", "row 3", 7, 1234, 1.0, True, None, [812]])
TEXTS = st.sampled_from(
    [
        "",
        "booking XK7-2291 is open",
        "Error: no such seat",
        "I have booked it successfully.",
        "seat 1234",
        "```",
    ]
)
OPTIONS: dict[str, Any] = dict.fromkeys(detectors().names()) | {
    "capability": {"denied": {"clerk": ["pay"]}},
    "control_flow": {"requires": {"book": "find"}},
    "policy": {"rules": [{"forbid": "row", "where": "any"}, {"before": "open", "tool": "book"}]},
    "out_of_range": {"ranges": {"seat": [1, 9]}},
}


@st.composite
def turns(draw: st.DrawFn) -> Step:
    source = draw(
        st.sampled_from([Source.AGENT, Source.AGENT, Source.AGENT, Source.USER, Source.ENVIRONMENT])
    )
    calls: list[ToolCall] = []
    for i in range(draw(st.integers(0, 2)) if source is Source.AGENT else 0):
        given = draw(st.none() | st.dictionaries(st.sampled_from(["seat", "to", "id"]), VALUES, max_size=2))
        calls.append(
            ToolCall(id=f"c{i}", name=draw(st.sampled_from(["book", "find", "pay"])), arguments=given)
        )
    seen = [Observation(content=draw(TEXTS), call_id=call.id, tool=call.name) for call in calls]
    return Step(
        index=0,
        source=source,
        agent=draw(st.sampled_from(["clerk", "planner"])) if source is Source.AGENT else source.value,
        content=draw(TEXTS),
        tool_calls=tuple(calls),
        observations=tuple(seen),
    )


@given(st.lists(turns(), max_size=12), st.data())
def test_preview_does_not_change_findings(steps: list[Step], data: st.DataObject) -> None:
    alone, ahead = watching(**OPTIONS), watching(**OPTIONS)
    for index, given_step in enumerate(steps):
        step = given_step.with_index(index)
        for refused in (*data.draw(st.lists(turns(), max_size=1)), step):
            if refused.source is Source.AGENT:
                ahead.check_proposed(replace(refused, index=index, observations=()))
        assert ahead.observe(step) == alone.observe(step)
    assert ahead.finish() == alone.finish()
    assert ahead.failures == alone.failures == []


@pytest.mark.parametrize("path", sorted(SAMPLES.glob("*.json")), ids=lambda path: path.stem)
def test_check_proposed_does_not_change_findings_of_recorded_runs(path: Path) -> None:
    run = load_trajectory(path)
    watcher = IncrementalRunner(RunView.from_trajectory(run))
    found: list[Finding] = []
    for step in run.steps:
        if step.source is Source.AGENT:
            watcher.check_proposed(replace(step, observations=()))
        found += watcher.observe(step)
    found += watcher.finish()
    expected = detect(run).findings
    assert sorted(map(repr, mark_recoveries(found, run.steps))) == sorted(map(repr, expected))


def test_check_proposed_with_failing_detector_records_failure() -> None:
    class Wild:
        name = "wild"

        def check_proposed(self, step: Step, view: RunView) -> list[Any]:
            raise RuntimeError("text of the run")

        def observe(self, step: Step, view: RunView) -> tuple[()]:
            return ()

        def finish(self, view: RunView) -> tuple[()]:
            return ()

    watcher = IncrementalRunner(RunView(), [Wild()])
    for _ in range(5):
        assert watcher.check_proposed(turn(0, "book")) == ()
    assert [failure.error for failure in watcher.failures] == ["RuntimeError"] * 3


def test_stateless_detector_with_failures_is_disabled() -> None:
    class Slow(BaseDetector):
        name = "slow"
        is_stateless = True

        def observe(self, step: Step, view: RunView) -> list[Finding]:
            raise RuntimeError

        check_proposed = observe

    watcher = IncrementalRunner(RunView(), [Slow()])
    for index in range(4):
        watcher.check_proposed(turn(index, "book"))
        watcher.observe(turn(index, "book"))
    assert [failure.error for failure in watcher.failures] == ["RuntimeError"] * 3


def _fields(step: Step) -> dict[str, Any]:
    return {name: getattr(step, name) for name in ("index", "source", "agent", "tool_calls")}
