from __future__ import annotations

from typing import Any

import pytest

from agentguard.errors import FormatError
from tests.unit.trajectory.formats.samples import SAMPLES, parse, records, sample


def test_entries_are_steps() -> None:
    (record,) = records(SAMPLES / "swe_agent.traj")
    run = record.trajectory
    assert run.task == "add(1, 2) returns -1. Fix it."
    assert run.system_prompts == {"main": "You fix bugs."}
    assert [step.content for step in run.steps] == ["Let me look.", "Fix the sign.", "Done."]
    assert [call.name for step in run.steps for call in step.tool_calls] == ["open", "edit", "submit"]
    first = run.steps[0]
    assert first.tool_calls[0].arguments == {"command": "open calc.py"}
    assert first.observations[0].call_id == first.tool_calls[0].id
    assert first.extra["state"] == '{"open_file": "n/a"}'
    assert run.extra["info"]["exit_status"] == "submitted"


def test_outcome_is_part_of_the_annotation() -> None:
    record = parse("swe_agent", sample("swe_agent.traj"))
    assert record.annotation.failed is True
    assert record.annotation.extra == {"resolved": False}
    assert "resolved" not in record.trajectory.extra["info"]


@pytest.mark.parametrize(
    ("verdict", "failed"),
    [
        ({"resolved": True}, False),
        ({"score": 0}, True),
        ({"score": 0.5}, None),
        ({"target": 1}, False),
        ({}, None),
    ],
)
def test_verdicts_are_read(verdict: dict[str, Any], failed: bool | None) -> None:
    value = {"trajectory": [], "info": {"exit_status": "exit_cost", **verdict}}
    assert parse("swe_agent", value).annotation.failed is failed


def test_recorded_tool_calls_are_kept() -> None:
    calls = [{"id": "c1", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}]
    entry = {"action": "ls", "observation": "a.py", "thought": "", "response": "Look.", "tool_calls": calls}
    (step,) = parse("swe_agent", {"trajectory": [entry]}).trajectory.steps
    assert [(c.id, c.name, c.arguments) for c in step.tool_calls] == [("c1", "bash", {"command": "ls"})]
    assert step.content == "Look."


def test_empty_action_is_not_a_call() -> None:
    (step,) = parse("swe_agent", {"trajectory": [{"action": " ", "observation": "?"}]}).trajectory.steps
    assert step.tool_calls == ()
    assert step.observations[0].call_id is None


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({}, "trajectory"),
        ({"trajectory": [1]}, "trajectory[0]"),
        ({"trajectory": [{"action": 1}]}, "trajectory[0].action"),
        ({"trajectory": [], "history": [{"role": "assistant", "agent": 1}]}, "history[0].agent"),
        ({"trajectory": [], "info": 1}, "info"),
    ],
)
def test_error_names_the_location(value: Any, field: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("swe_agent", value)
    assert caught.value.field == field
