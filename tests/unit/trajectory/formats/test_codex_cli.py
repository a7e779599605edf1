from __future__ import annotations

import json
from typing import Any

import pytest

from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, load_trajectory, read
from agentguard.trajectory.model import Source, Trajectory, Usage
from tests.unit.trajectory.formats.samples import lines


def line(kind: str, **payload: Any) -> dict[str, Any]:
    return {"timestamp": "2026-01-01T00:00:00Z", "type": kind, "payload": payload}


def item(**payload: Any) -> dict[str, Any]:
    return line("response_item", **payload)


def message(role: str, text: str) -> dict[str, Any]:
    return item(type="message", role=role, content=[{"type": "input_text", "text": text}])


def call(id: str) -> dict[str, Any]:
    return item(type="function_call", name="shell", arguments="{}", call_id=id)


def output(id: str, value: Any) -> dict[str, Any]:
    return item(type="function_call_output", call_id=id, output=value)


def run_of(*values: dict[str, Any]) -> Trajectory:
    return load_trajectory([line("session_meta", id="s"), *values])


def test_display_events_do_not_repeat_the_items() -> None:
    run = load_trajectory(lines("codex_cli.jsonl"))
    assert [step.content for step in run.steps if step.source is Source.USER] == [
        "Count the hay bales.",
        "Count again.",
    ]
    assert sum(bool(step.tool_calls) for step in run.steps) == 3


def test_contexts_of_the_client_are_not_the_user() -> None:
    run = load_trajectory(lines("codex_cli.jsonl"))
    assert [step.source for step in run.steps[:3]] == [Source.SYSTEM, Source.SYSTEM, Source.USER]
    assert run.system_prompts == {"": "You are a coding agent."}


@pytest.mark.parametrize(
    ("value", "content", "is_error", "extra"),
    [
        (json.dumps({"output": "x", "metadata": {"exit_code": 2}}), "x", True, {"exit_code": 2}),
        (json.dumps({"output": "x", "metadata": {"exit_code": 0}}), "x", False, {"exit_code": 0}),
        ({"content": "x", "success": False}, "x", True, {}),
        ('{"output": "own JSON of a tool"}', '{"output": "own JSON of a tool"}', None, {}),
        ("{broken", "{broken", None, {}),
    ],
)
def test_output_has_text_and_error_flag(
    value: Any, content: str, is_error: bool | None, extra: dict[str, Any]
) -> None:
    (seen,) = run_of(call("c"), output("c", value)).steps[0].observations
    assert (seen.content, seen.is_error, seen.extra) == (content, is_error, extra)


def test_exit_code_of_an_event_marks_its_result() -> None:
    end = line("event_msg", type="exec_command_end", call_id="c", exit_code=3)
    (seen,) = run_of(call("c"), end, output("c", "text")).steps[0].observations
    assert (seen.is_error, seen.extra) == (True, {"exit_code": 3})


def test_repeated_token_count_is_counted_once() -> None:
    steps = load_trajectory(lines("codex_cli.jsonl")).steps
    usages = [step.usage for step in steps if step.usage]
    assert usages[0] == Usage(prompt_tokens=900, completion_tokens=40, cached_tokens=800)
    assert sum(usage.completion_tokens or 0 for usage in usages) == 70


def test_model_of_the_turn_context_is_the_model() -> None:
    run = load_trajectory(lines("codex_cli.jsonl"))
    assert {step.model for step in run.steps if step.source is Source.AGENT} == {"gpt-5-codex"}


def test_rollback_leaves_a_branch() -> None:
    run = load_trajectory(lines("codex_cli.jsonl"))
    (branch,) = run.branches
    assert (branch.fork_step, [step.content for step in branch.steps]) == (
        6,
        ["Burn it.", "I will not burn it."],
    )


def test_rollback_behind_an_earlier_one_is_its_parent() -> None:
    rollback = line("event_msg", type="thread_rolled_back", num_turns=1)
    run = run_of(
        *(message("user", "a"), message("assistant", "b"), message("user", "c"), rollback),
        *(
            message("user", "d"),
            message("user", "e"),
            line("event_msg", type="thread_rolled_back", num_turns=3),
        ),
        message("user", "f"),
    )
    assert [step.content for step in run.steps] == ["f"]
    first, second = run.branches
    assert (first.parent, first.fork_step, second.fork_step) == ("rollback-2", 2, 0)
    assert [step.content for step in second.steps] == ["a", "b", "d", "e"]


def test_interruption_is_the_exit_status_until_the_agent_answers() -> None:
    aborted = line("event_msg", type="turn_aborted", reason="interrupted")
    assert run_of(message("user", "a"), aborted).exit_status == "interrupted"
    assert run_of(message("user", "a"), aborted, message("assistant", "b")).exit_status is None


def test_fork_continues_its_origin_and_another_session_is_a_run() -> None:
    head = line("session_meta", id="new", forked_from_id="old")
    found = load_records(
        [head, line("session_meta", id="old"), message("user", "a"), line("session_meta", id="x"), call("c")]
    )
    assert [record.trajectory.id for record in found] == ["new", "x"]


def test_line_of_an_older_file_is_an_item() -> None:
    run = load_trajectory(lines("codex_cli.old.jsonl"))
    assert (run.id, run.task, len(run.steps)) == ("0188-old", "List the goats.", 3)


def test_unknown_line_and_item_are_counted() -> None:
    run = run_of(message("user", "a"), line("thunder"), item(type="lightning"))
    assert run.unknown_parts == {"lightning": 1, "thunder": 1}


def test_malformed_line_does_not_hide_the_others() -> None:
    found = list(read([line("session_meta", id="s"), item(type="message", role=3), message("user", "a")]))
    assert isinstance(found[0], UnreadableRecord)
    assert (found[0].error.record, found[0].error.field) == (1, "payload.role")
    assert len(found) == 2
