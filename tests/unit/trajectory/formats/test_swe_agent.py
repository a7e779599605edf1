from __future__ import annotations

from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.formats.reader import load_records
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
    assert run.exit_status == "submitted"
    assert run.extra == {"environment": "swe_main", "info": run.extra["info"]}


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


def test_call_of_the_history_replaces_the_action_line() -> None:
    call = {"id": "c9", "type": "function", "function": {"name": "goto", "arguments": '{"line": 3}'}}
    value = sample("swe_agent.traj")
    rejected = {"role": "assistant", "agent": "main", "content": "?", "action": "fly"}
    answer = {"role": "assistant", "agent": "main", "action": "submit", "tool_calls": [call]}
    thinking = [{"type": "thinking", "thinking": "All is done.", "signature": "s"}]
    value["history"] += [rejected, answer | {"content": "Done.", "thinking_blocks": thinking}]
    last = parse("swe_agent", value).trajectory.steps[-1]
    assert [(one.id, one.name, one.arguments) for one in last.tool_calls] == [("c9", "goto", {"line": 3})]
    assert last.observations[0].call_id == "c9"
    assert last.reasoning == "All is done."


def test_file_with_a_history_only_is_read() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "find_file", "arguments": "{}"}}
    history = [
        {"role": "system", "content": "You fix bugs.", "agent": "main"},
        {"role": "user", "content": "Fix it.", "agent": "main"},
        {"role": "assistant", "content": "I search.", "thought": "I search.", "action": "find_file"}
        | {"tool_calls": [call], "agent": "main"},
        {"role": "tool", "content": "Found 1", "tool_call_ids": ["c1"], "agent": "main"},
        {"role": "assistant", "content": "Done.", "thought": "Done.", "action": "submit", "agent": "main"},
    ]
    (record,) = load_records({"history": history})
    run = record.trajectory
    assert (run.format, run.task, len(run.steps)) == ("swe_agent", "Fix it.", 2)
    assert [call.name for step in run.steps for call in step.tool_calls] == ["find_file", "submit"]
    assert run.steps[0].observations[0].content == "Found 1"
    assert run.steps[1].observations == ()


@pytest.mark.parametrize("line", ["cd /x && find . -name a", "python reproduce.py", "ls -F"])
def test_shell_line_is_a_call_of_bash(line: str) -> None:
    (step,) = parse("swe_agent", {"trajectory": [{"action": line, "observation": ""}]}).trajectory.steps
    assert (step.tool_calls[0].name, step.tool_calls[0].arguments) == ("bash", {"command": line})


def test_messages_of_an_entry_are_omitted() -> None:
    entry = {"action": "ls", "observation": "", "messages": [{"role": "user"}], "query": [], "state": "{}"}
    (step,) = parse("swe_agent", {"trajectory": [entry]}).trajectory.steps
    assert step.extra == {"state": "{}"}


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
