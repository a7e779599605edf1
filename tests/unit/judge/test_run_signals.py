from __future__ import annotations

from agentguard.detect.base import Finding
from agentguard.judge.embedded.features.roles import analyze_layout
from agentguard.judge.embedded.features.run_signals import RUN_SIGNAL_NAMES, compute_run_signals
from agentguard.trajectory.model import Observation, Source, Step, ToolCall, Trajectory


def build_run(*results: tuple[str, bool], closing: str = "") -> Trajectory:
    steps = [Step(index=0, source=Source.USER, agent="user", content="Count the rows.")]
    for index, (content, is_error) in enumerate(results, start=1):
        call = ToolCall(id=str(index), name="query", arguments={"sql": "select 1"})
        result = Observation(content=content, call_id=call.id, is_error=is_error)
        steps.append(
            Step(index=index, source=Source.AGENT, agent="agent", tool_calls=(call,), observations=(result,))
        )
    if closing:
        steps.append(Step(index=len(steps), source=Source.AGENT, agent="agent", content=closing))
    return Trajectory(id="run", format="test", task="Count the rows.", steps=tuple(steps))


def compute(run: Trajectory, *findings: Finding) -> dict[str, float]:
    values = compute_run_signals(analyze_layout(run), findings)
    return dict(zip(RUN_SIGNAL_NAMES, values.tolist(), strict=True))


def test_run_signals_count_errors_and_repetitions() -> None:
    signals = compute(build_run(("error: a", True), ("error: a", True), ("3 rows", False)))
    assert signals["turns"] == 3
    assert signals["errors"] == 2
    assert signals["consecutive_errors"] == 1
    assert signals["last_error"] == 0
    assert signals["repeated_calls"] == signals["consecutive_calls"] == 2
    assert signals["repeated_results"] == 1 / 4


def test_run_signals_read_the_closing_message() -> None:
    done = compute(build_run(("3 rows", False), closing="The task is complete: 3 rows."))
    doubtful = compute(build_run(("3 rows", False), closing="It failed; perhaps there are 3 rows."))
    assert done["closing_open"] < doubtful["closing_open"] == 1
    assert done["closing_failure"] == 0 < doubtful["closing_failure"]
    assert done["closing_hedge"] == 0 < doubtful["closing_hedge"]
    assert done["closing_length"] > 0


def test_run_signals_weigh_late_findings() -> None:
    run = build_run(*[("ok", False)] * 8)
    early = Finding(detector="loop", step=1, probability=0.8, codes=("x",), message="m")
    late = Finding(detector="loop", step=8, probability=0.5, codes=("x",), message="m")
    signals = compute(run, early, late)
    assert signals["strongest_finding"] == 0.8
    assert signals["late_findings"] == 0.5
    assert signals["findings"] == (0.8 + 0.5) / 9


def test_run_signals_of_a_run_without_calls_are_finite() -> None:
    run = Trajectory(
        id="run",
        format="test",
        task="",
        steps=(Step(index=0, source=Source.USER, agent="user", content="Hello."),),
    )
    assert all(value == value for value in compute(run).values())
