from __future__ import annotations

from typing import Any

import pytest

from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, load_trajectory, read
from agentguard.trajectory.model import Source, Trajectory, Usage
from tests.unit.trajectory.formats.samples import lines, sample

HEAD = {"sessionId": "s", "projectHash": "p"}


def message(id: str, kind: str, content: Any = "", **fields: Any) -> dict[str, Any]:
    return {"id": id, "type": kind, "content": content, **fields}


def call(status: str, *result: Any) -> dict[str, Any]:
    return {"id": "c", "name": "ls", "args": {"path": "."}, "status": status, "result": list(result)}


def run_of(*values: dict[str, Any]) -> Trajectory:
    return load_trajectory([HEAD, *values])


def contents(run: Trajectory) -> list[str]:
    return [step.content for step in run.steps]


def test_later_line_of_a_message_replaces_it() -> None:
    run = load_trajectory(lines("gemini_cli.jsonl"))
    step = run.steps[1]
    assert [seen.content for seen in step.observations] == ["hive_3,empty"]
    assert step.reasoning == "Files: The list is in hives.csv."
    assert step.usage == Usage(prompt_tokens=120, completion_tokens=14, cached_tokens=60)


def test_rewind_leaves_a_branch() -> None:
    run = load_trajectory(lines("gemini_cli.jsonl"))
    (branch,) = run.branches
    assert (branch.fork_step, [step.content for step in branch.steps]) == (3, ["Sell hive 3.", "Sold."])
    assert contents(run)[-1] == "Hive 3 is empty."


def test_rewind_at_the_end_keeps_the_messages_before_it() -> None:
    run = run_of(message("a", "user", "x"), message("b", "gemini", "y"), {"$rewindTo": "b"})
    assert (contents(run), len(run.branches)) == (["x"], 1)


def test_rewind_to_an_unknown_message_is_a_rewind_to_the_start() -> None:
    run = run_of(message("a", "user", "x"), {"$rewindTo": "?"}, message("b", "user", "y"))
    assert (contents(run), run.branches[0].fork_step) == (["y"], 0)


@pytest.mark.parametrize(
    ("status", "response", "content", "is_error"),
    [
        ("success", {"output": "a\nb"}, "a\nb", False),
        ("error", {"error": "denied"}, "denied", True),
        ("cancelled", {"error": "[Operation Cancelled]"}, "[Operation Cancelled]", True),
        ("success", {"rows": 2, "ok": True}, '{"rows":2,"ok":true}', False),
    ],
)
def test_result_has_the_text_and_status_of_its_call(
    status: str, response: dict[str, Any], content: str, is_error: bool
) -> None:
    result = {"functionResponse": {"id": "c", "name": "ls", "response": response}}
    (step,) = run_of(message("a", "gemini", toolCalls=[call(status, result)])).steps
    assert [(seen.call_id, seen.content, seen.is_error) for seen in step.observations] == [
        ("c", content, is_error)
    ]


def test_call_without_a_result_has_no_observation() -> None:
    unfinished = {"id": "c", "name": "ls", "args": {}, "status": "executing"}
    (step,) = run_of(message("a", "gemini", toolCalls=[unfinished])).steps
    assert (len(step.tool_calls), step.observations) == (1, ())


def test_notices_are_not_the_user() -> None:
    run = run_of(message("a", "info", "i"), message("b", "error", "e"), message("c", "user", "u"))
    assert [step.source for step in run.steps] == [Source.SYSTEM, Source.ENVIRONMENT, Source.USER]
    assert run.task == "u"


def test_replacement_of_all_messages_keeps_the_earlier_ones() -> None:
    run = run_of(message("a", "user", "x"), {"$set": {"messages": [message("b", "user", "summary")]}})
    assert contents(run) == ["x", "summary"]


def test_session_object_is_read_as_its_lines_are() -> None:
    run = load_trajectory(sample("gemini_cli.json"))
    assert contents(run) == ["Which hive is empty?", "I read the list.", "Hive 3 is empty."]


def test_heads_of_two_sessions_are_two_runs() -> None:
    values = [HEAD, message("a", "user", "x"), {**HEAD, "sessionId": "t"}, message("a", "user", "y")]
    assert [(one.trajectory.id, one.trajectory.task) for one in load_records(values)] == [
        ("s", "x"),
        ("t", "y"),
    ]


def test_unknown_message_and_part_are_counted() -> None:
    run = run_of(message("a", "thunder"), message("b", "user", [{"inlineData": {"mimeType": "image/png"}}]))
    assert run.unknown_parts == {"inlineData": 1, "thunder": 1}


def test_malformed_line_names_its_place() -> None:
    found = list(read([HEAD, message("a", "user", 7), message("b", "user", "y")]))
    assert isinstance(found[0], UnreadableRecord)
    assert (found[0].error.record, found[0].error.field) == (1, "content")
    assert len(found) == 2
