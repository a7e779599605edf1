from __future__ import annotations

import io
import json
from typing import Any

import pytest

from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, read
from agentguard.trajectory.model import Record, Trajectory, Usage
from tests.unit.trajectory.formats.samples import SAMPLES, lines, sample

ASK = {"role": "user", "content": "Look outside."}


def row(id: str, kind: str, parent: str | None = None, **fields: Any) -> dict[str, Any]:
    order = f"20260506T07000{len(id)}000000Z{id}"
    return {
        "id": id,
        "name": id,
        "run_type": kind,
        "trace_id": "t",
        "parent_run_id": parent,
        "dotted_order": order,
        **fields,
    }


def run(*rows: dict[str, Any]) -> Trajectory:
    (record,) = load_records(list(rows), format="langsmith")
    return record.trajectory


def test_recorded_agent_has_each_message_once() -> None:
    first, _ = load_records(SAMPLES / "langsmith.jsonl")
    steps = first.trajectory.steps
    assert [step.content for step in steps] == ["When is high tide in Malmo?", "", "At 11:40."]
    assert [seen.content for seen in steps[1].observations] == ["high tide in Malmo at 11:40"]
    assert steps[1].observations[0].call_id == "w1"
    assert steps[1].usage == Usage(prompt_tokens=11, completion_tokens=5)
    assert [tool.name for tool in first.trajectory.tools] == ["tide"]
    assert list(first.trajectory.system_prompts.values()) == ["You know the sea."]


def test_stack_trace_of_a_tool_is_an_error_and_its_exception_the_exit_status() -> None:
    _, failed = load_records(SAMPLES / "langsmith.jsonl")
    (seen,) = failed.trajectory.steps[1].observations
    assert seen.is_error is True
    assert seen.content.startswith("ValueError('no sea here')")
    assert failed.trajectory.exit_status == "ValueError('no sea here')"


def test_feedback_is_annotation() -> None:
    first, _ = load_records(SAMPLES / "langsmith.jsonl")
    (found,) = first.annotation.extra["runs"].values()
    assert found["feedback_stats"]["helpful"]["avg"] == 0.0
    assert first.annotation.failed is None


def test_order_of_rows_does_not_matter() -> None:
    rows = lines("langsmith.jsonl")
    wanted = {one.trajectory.id: _strip(one) for one in load_records(rows)}
    assert {one.trajectory.id: _strip(one) for one in load_records(rows[::-1])} == wanted


def _strip(record: Record) -> list[Any]:
    steps = record.trajectory.steps
    return [(step.content, step.tool_calls, [seen.content for seen in step.observations]) for step in steps]


def test_page_and_tree_give_the_same_runs_as_lines() -> None:
    rows = lines("langsmith.jsonl")
    wanted = [_strip(record) for record in load_records(rows)]
    assert [_strip(record) for record in load_records({"runs": rows, "cursors": {"next": None}})] == wanted
    children: dict[str, list[Any]] = {}
    for one in rows:
        children.setdefault(one.get("parent_run_id"), []).append(one)
    for one in rows:
        one["child_runs"] = children.get(one["id"], [])
        one.pop("trace_id")
    trees = [json.loads(json.dumps(one)) for one in rows if not one.get("parent_run_id")]
    assert sorted(map(repr, map(_strip, load_records(trees)))) == sorted(map(repr, wanted))


def test_batch_joins_start_and_end_of_a_run() -> None:
    (record,) = load_records(SAMPLES / "langsmith.batch.json")
    answer = record.trajectory.steps[1]
    assert (answer.content, answer.model, answer.stop_reason) == ("Hello, harbour.", "small-1", "stop")
    assert (answer.started_at, answer.ended_at) == (1772614800.0, 1772614802.0)
    assert answer.usage == Usage(prompt_tokens=8, completion_tokens=4)


def test_doubly_nested_messages_and_generations_are_read() -> None:
    human = {"lc": 1, "type": "constructor", "id": ["HumanMessage"], "kwargs": {"content": "Look outside."}}
    answer = {"lc": 1, "type": "constructor", "id": ["AIMessage"], "kwargs": {"content": "A garden."}}
    outputs = {"generations": [[{"text": "A garden.", "message": answer}]], "llm_output": None}
    steps = run(row("m", "llm", inputs={"messages": [[human]]}, outputs=outputs)).steps
    assert [step.content for step in steps] == ["Look outside.", "A garden."]


def test_bulk_export_with_json_in_text_is_read() -> None:
    fields = {
        "inputs": json.dumps({"messages": [ASK]}),
        "outputs": json.dumps({"output": "A garden."}),
        "extra": json.dumps({"metadata": {"ls_model_name": "m-1"}}),
        "total_cost": "0.25",
        "prompt_tokens": 4,
    }
    steps = run(row("m", "llm", **fields)).steps
    assert [step.content for step in steps] == ["Look outside.", "A garden."]
    assert steps[1].model == "m-1"
    assert steps[1].usage == Usage(prompt_tokens=4, cost_usd=0.25)


@pytest.mark.parametrize(
    "value",
    [
        "a garden",
        {"output": "a garden"},
        {"output": {"type": "tool", "content": "a garden", "tool_call_id": "c1"}},
    ],
)
def test_output_of_a_tool_is_unwrapped(value: Any) -> None:
    call = {"role": "assistant", "content": "", "tool_calls": [{"id": "c1", "name": "look", "args": {}}]}
    steps = run(
        row("m", "llm", inputs={"messages": [ASK]}, outputs=call),
        row("ab", "tool", name="look", inputs={"input": "{}"}, outputs=value),
    ).steps
    assert [seen.content for seen in steps[1].observations] == ["a garden"]


def test_broken_line_does_not_hide_others() -> None:
    text = "\n".join(
        json.dumps(one)
        for one in ({**lines("langsmith.jsonl")[0], "id": None}, sample("langsmith.batch.json"))
    )
    found = list(read(io.StringIO(text), format="langsmith"))
    assert [type(one) for one in found] == [UnreadableRecord, Record]
