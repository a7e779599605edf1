"""Event streams of ``codex exec --json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, load_trajectory, read
from agentguard.trajectory.model import Source

SAMPLE = Path(__file__).parents[3] / "contract" / "samples" / "codex_exec.jsonl"


def item(**fields: Any) -> dict[str, Any]:
    return {"type": "item.completed", "item": {"id": "i1", **fields}}


def test_items_become_steps_with_calls_and_results() -> None:
    run = load_trajectory(SAMPLE)
    assert (run.id, run.format, run.task) == ("0199bbbb-barn", "codex_exec", "")
    names = [call.name for step in run.steps for call in step.tool_calls]
    assert names == ["shell", "file_change", "mcp__docs__search", "mcp__docs__open", "web_search"]
    errors = [one.is_error for step in run.steps for one in step.observations]
    assert errors == [True, False, False, True]
    assert run.steps[0].reasoning == "**Looking at the hay**"
    assert run.steps[0].observations[0].extra == {"exit_code": 1}
    assert run.steps[-1].content == "The test passes now."
    assert run.extra["plan"] == [{"text": "Fix the test", "completed": True}]


def test_usage_of_a_turn_is_at_its_last_step() -> None:
    usage = load_trajectory(SAMPLE).steps[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.cached_tokens, usage.completion_tokens) == (1200, 200, 345)


def test_unknown_item_is_counted() -> None:
    assert load_trajectory(SAMPLE).unknown_parts == {"item hologram": 1}


def test_counts_equal_those_of_the_lines() -> None:
    events = [json.loads(line) for line in SAMPLE.read_text().splitlines()]
    done = [event["item"]["type"] for event in events if event["type"] == "item.completed"]
    calls = sum(kind in ("command_execution", "file_change", "mcp_tool_call", "web_search") for kind in done)
    run = load_trajectory(SAMPLE)
    assert sum(len(step.tool_calls) for step in run.steps) == calls
    assert len(run.steps) == calls + done.count("agent_message")


def test_item_that_was_not_completed_is_a_call_without_result() -> None:
    events = [
        {"type": "thread.started", "thread_id": "t"},
        {"type": "item.started", "item": {"id": "i1", "type": "command_execution", "command": "sleep 9"}},
    ]
    (step,) = load_trajectory(events).steps
    assert step.tool_calls[0].arguments == {"command": "sleep 9"}
    assert step.observations == ()


def test_failed_turn_is_the_exit_status() -> None:
    events = [
        {"type": "thread.started", "thread_id": "t"},
        item(type="agent_message", text="Working."),
        {"type": "turn.failed", "error": {"message": "stream disconnected"}},
    ]
    run = load_trajectory(events)
    assert run.exit_status == "error"
    assert (run.steps[-1].source, run.steps[-1].content) == (Source.ENVIRONMENT, "stream disconnected")


def test_second_thread_is_a_second_run(tmp_path: Path) -> None:
    file = tmp_path / "two.jsonl"
    text = SAMPLE.read_text()
    file.write_text(text + text.replace("0199bbbb", "0199cccc"))
    assert [record.trajectory.id for record in load_records(file)] == ["0199bbbb-barn", "0199cccc-barn"]


def test_malformed_event_is_reported_with_its_line(tmp_path: Path) -> None:
    file = tmp_path / "run.jsonl"
    file.write_text(SAMPLE.read_text() + json.dumps({"type": "item.completed", "item": 5}) + "\n")
    found = list(read(file))
    (broken,) = [one for one in found if isinstance(one, UnreadableRecord)]
    assert (broken.error.record, broken.error.field) == (14, "item")
    assert len(found) == 2
