"""What is wrong with a turn is known before its tools run; of a turn that was refused nothing is kept."""

from __future__ import annotations

from typing import Any

import pytest

from agentguard.detect.run import Watcher
from agentguard.detect.view import RunView
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, ToolSpec

SEAT = {
    "type": "object",
    "properties": {"seat": {"type": "integer", "minimum": 1}, "to": {"type": "string"}},
    "additionalProperties": False,
}
TOOLS = (ToolSpec(name="book", parameters=SEAT), ToolSpec(name="find"))


def turn(index: int, tool: str, arguments: dict[str, Any] | None = None, **more: Any) -> Step:
    call = ToolCall(id=f"c{index}", name=tool, arguments=arguments, **more)
    return Step(index=index, source=Source.AGENT, agent="clerk", tool_calls=(call,))


def watching(**specs: Any) -> Watcher:
    return Watcher(RunView(task="book a seat", tools=TOOLS), specs)


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
def test_what_is_foreseen_is_what_is_then_found(detector: str, options: dict[str, Any], step: Step) -> None:
    watcher = watching(**{detector: options})
    foreseen = watcher.foresee(step)
    assert [finding.detector for finding in foreseen] == [detector]
    assert watcher.foresee(step) == foreseen, "looking ahead twice must say the same"
    assert watcher.observe(step) == foreseen
    assert not watcher.failures


def test_a_refused_turn_leaves_no_trace() -> None:
    watcher = watching(control_flow={"requires": {"book": "find"}}, unknown_origin={})
    assert watcher.foresee(turn(0, "find", {"booking_id": "XK7-2291"}))
    assert watcher.observe(turn(0, "book", {"seat": 1})), "a call that was refused does not count as made"
    assert len(watcher.view.steps) == 1


def test_a_value_that_the_last_result_gave_is_known() -> None:
    watcher = watching(unknown_origin={})
    seen = Observation(content="booking XK7-2291 is open", call_id="c0", tool="find")
    first = turn(0, "find", {})
    watcher.observe(Step(**{**_fields(first), "observations": (seen,)}))
    assert watcher.foresee(turn(1, "find", {"booking_id": "XK7-2291"})) == ()


def test_a_detector_that_fails_ahead_is_a_recorded_failure() -> None:
    class Wild:
        name = "wild"

        def foresee(self, step: Step, view: RunView) -> list[Any]:
            raise RuntimeError("text of the run")

        def observe(self, step: Step, view: RunView) -> tuple[()]:
            return ()

        def finish(self, view: RunView) -> tuple[()]:
            return ()

    watcher = Watcher(RunView(), [Wild()])
    for _ in range(5):
        assert watcher.foresee(turn(0, "book")) == ()
    assert [failure.error for failure in watcher.failures] == ["RuntimeError"] * 3


def _fields(step: Step) -> dict[str, Any]:
    return {name: getattr(step, name) for name in ("index", "source", "agent", "tool_calls")}
