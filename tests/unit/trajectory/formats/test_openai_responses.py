from __future__ import annotations

import json
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, read
from agentguard.trajectory.model import Record, Source, Step, Usage
from tests.unit.trajectory.formats.samples import SAMPLES, lines, parse, records


def response(id: str, previous: str | None, given: Any, *output: Any, **more: Any) -> dict[str, Any]:
    return {
        "object": "response",
        "id": id,
        "previous_response_id": previous,
        "input": given,
        "output": [*output],
        **more,
    }


def message(text: str) -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}


def contents(steps: tuple[Step, ...]) -> list[str]:
    return [step.content for step in steps]


@pytest.fixture
def search() -> Record:
    return records(SAMPLES / "openai_responses.jsonl")[0]


def test_branch_of_the_last_response_is_current(search: Record) -> None:
    steps = search.trajectory.steps
    assert contents(steps)[0] == search.trajectory.task == "Find the key."
    # r5 is last in the file, but it continues r2.
    assert contents(steps)[1:] == ["", "No key.", "Look again.", "Still no key."]
    assert [seen.content for seen in steps[1].observations] == ["a drawer"]


def test_branch_with_its_own_outputs_begins_at_the_call(search: Record) -> None:
    (branch,) = search.trajectory.branches
    assert (branch.id, branch.fork_step, branch.parent) == ("r3", 1, None)
    assert [step.index for step in branch.steps] == [1, 2, 3]
    assert [seen.content for seen in branch.steps[0].observations] == ["a shelf"]
    assert branch.steps[1].tool_calls[0].arguments is None
    assert branch.steps[1].tool_calls[0].raw_arguments == '{"at": "shelf"'


def test_response_fields_are_read(search: Record) -> None:
    step = search.trajectory.steps[1]
    assert (step.reasoning, step.model, step.started_at) == ("Look first.", "small-1", 1760000000.0)
    assert step.usage == Usage(prompt_tokens=3, completion_tokens=4, cached_tokens=1)
    assert step.extra["response"]["status"] == "completed"
    assert search.trajectory.system_prompts == {"": "Be quick."}
    assert [tool.name for tool in search.trajectory.tools] == ["look", "web_search"]


def test_failed_hosted_call_is_an_error() -> None:
    run = records(SAMPLES / "openai_responses.jsonl")[1]
    turn = run.trajectory.steps[2]
    assert (turn.tool_calls[0].name, turn.observations[0].content, turn.observations[0].is_error) == (
        "greet",
        "timeout",
        True,
    )
    assert turn.content == "Hello."
    assert run.annotation.extra == {"metadata": {"reward": 1}}
    assert run.annotation.failed is False


def test_items_without_response_are_read() -> None:
    (record,) = records(SAMPLES / "openai_responses.items.json")
    user, add, note, answer, orphan = record.trajectory.steps
    assert (user.source, add.observations[0].content) == (Source.USER, "4")
    assert (note.tool_calls[0].arguments, note.tool_calls[0].raw_arguments) == (None, "4")
    assert note.observations[0].is_error is None
    assert (answer.content, orphan.source, orphan.content) == ("4", Source.ENVIRONMENT, "nobody asked")
    assert load_records({"items": json.loads((SAMPLES / "openai_responses.items.json").read_text())})[
        0
    ].trajectory.steps == (record.trajectory.steps)


def test_items_by_line_are_read() -> None:
    found = load_records(lines("openai_responses.jsonl")[:1])
    assert len(found) == 1


def test_parallel_calls_and_usage_are_counted_once() -> None:
    calls = [{"type": "function_call", "call_id": str(i), "name": "f", "arguments": "{}"} for i in range(3)]
    run = parse("openai_responses", response("r", None, "go", *calls, usage={"input_tokens": 5})).trajectory
    assert len(run.steps[1].tool_calls) == 3
    assert [step.usage and step.usage.prompt_tokens for step in run.steps] == [None, 5]


def test_request_and_response_are_joined() -> None:
    inner = response("r", None, None, message("yes"))
    del inner["input"]
    run = parse(
        "openai_responses", {"request": {"input": "ok?", "instructions": "Be kind."}, "response": inner}
    ).trajectory
    assert contents(run.steps) == ["ok?", "yes"]
    assert run.system_prompts == {"": "Be kind."}


def test_nested_branches_are_read() -> None:
    chain = [
        response("a", None, "go", message("a")),
        response("b", "a", [], message("b")),
        response("c", "b", [], message("c")),
        response("d", "b", [], message("d")),
        response("e", "b", [], message("e")),
        response("f", "a", [], message("f")),
    ]
    (record,) = load_records(chain)
    assert contents(record.trajectory.steps) == ["go", "a", "f"]
    found = {b.id: (b.parent, b.fork_step, contents(b.steps)) for b in record.trajectory.branches}
    assert found == {"b": (None, 2, ["b", "e"]), "c": ("b", 3, ["c"]), "d": ("b", 3, ["d"])}


def test_missing_predecessor_begins_a_run() -> None:
    (record,) = load_records([response("b", "lost", "go on", message("ok"))])
    assert record.trajectory.extra == {"previous_response_id": "lost"}


def test_cycle_and_duplicate_are_reported_and_others_are_read() -> None:
    found = list(
        read(
            [
                response("a", "b", "x", message("a")),
                response("b", "a", "x", message("b")),
                response("c", "c", "x", message("c")),
                response("d", None, "x", message("d")),
                response("d", None, "x", message("again")),
            ]
        )
    )
    assert [one.trajectory.id for one in found if isinstance(one, Record)] == ["d"]
    errors = [one.error for one in found if isinstance(one, UnreadableRecord)]
    assert sorted((error.record, error.reason.split()[-1]) for error in errors) == [
        (0, "cycle"),
        (1, "cycle"),
        (2, "cycle"),
        (4, "twice"),
    ]


def test_long_chain_is_read() -> None:
    chain = [response(str(i), str(i - 1) if i else None, [], message("x")) for i in range(3000)]
    (record,) = load_records(chain)
    assert len(record.trajectory.steps) == 3000


def test_broken_response_does_not_hide_others() -> None:
    first, second = load_records(
        [response("a", None, "x", message("a")), response("b", None, "x", message("b"))]
    )
    found = list(
        read(
            [
                response("a", None, "x", message("a")),
                {**response("q", None, 5)},
                response("b", None, "x", message("b")),
            ]
        )
    )
    assert [one for one in found if isinstance(one, Record)] == [first, second]
    (broken,) = [one for one in found if isinstance(one, UnreadableRecord)]
    assert (broken.error.record, broken.error.field) == (1, "input")


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"object": "response", "output": 5}, "output"),
        ({"object": "response", "output": [5]}, "output[0]"),
        (
            {"object": "response", "output": [{"type": "function_call", "arguments": 5}]},
            "output[0].arguments",
        ),
        ({"object": "response", "output": [{"type": "message", "content": 5}]}, "output[0].content"),
        ({"object": "response", "output": [message("x")], "usage": 5}, "usage"),
    ],
)
def test_errors_name_the_location(value: Any, field: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("openai_responses", value)
    assert caught.value.field == field


def test_result_of_a_shell_keeps_its_fields() -> None:
    result = {"stdout": "Hello", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    shell = {"type": "shell_call", "call_id": "c1", "action": {"commands": ["echo Hello"]}}
    output = {"type": "shell_call_output", "call_id": "c1", "output": [result]}
    record = parse("openai_responses", response("r1", None, "Say hello.", shell, output, message("Hello.")))
    (seen,) = record.trajectory.steps[1].observations
    assert json.loads(seen.content) == result
