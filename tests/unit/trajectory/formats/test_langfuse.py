from __future__ import annotations

import io
import json
from typing import Any

import pytest

from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, read
from agentguard.trajectory.model import Record, Source, Trajectory, Usage
from tests.unit.trajectory.formats.samples import SAMPLES, lines, parse, sample

ASK = {"role": "user", "content": "Look outside."}
CALL = {
    "role": "assistant",
    "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "a garden"}


def observation(id: str, kind: str, at: int, *, parent: str | None = None, **fields: Any) -> dict[str, Any]:
    start = f"2026-05-06T07:00:{at:02}.000Z"
    return {
        "id": id,
        "traceId": "t",
        "type": kind,
        "name": id,
        "startTime": start,
        "parentObservationId": parent,
        **fields,
    }


def run(*observations: dict[str, Any], **trace: Any) -> Trajectory:
    return parse("langfuse", {"trace": {"id": "t", **trace}, "observations": list(observations)}).trajectory


def test_download_has_each_message_once_in_order_of_time() -> None:
    (record,) = load_records(SAMPLES / "langfuse.json")
    steps = record.trajectory.steps
    assert [step.source for step in steps] == [Source.USER, Source.AGENT, Source.AGENT, Source.AGENT]
    assert [call.name for step in steps for call in step.tool_calls] == ["find_ferry", "book_ferry"]
    assert [(seen.content, seen.is_error) for step in steps for seen in step.observations] == [
        ("Ferry 12 leaves at 08:15.", None),
        ("the ferry is full", True),
    ]
    assert record.trajectory.task == "Book the ferry to Hven for Friday."
    assert steps[3].usage == Usage(prompt_tokens=90, completion_tokens=12, cost_usd=0.0012)
    assert steps[1].started_at == 1772614802.0


def test_scores_are_annotations() -> None:
    (record,) = load_records(SAMPLES / "langfuse.json")
    assert record.annotation.extra["scores"] == sample("langfuse.json")["trace"]["scores"]
    assert record.annotation.failed is None
    assert "scores" not in record.trajectory.extra


def test_rows_of_observations_are_grouped_by_trace() -> None:
    records = load_records(SAMPLES / "langfuse.rows.jsonl")
    assert [record.trajectory.id for record in records] == ["lf-row-1", "lf-row-2"]
    assert [record.trajectory.steps[1].content for record in records] == [
        "About 10 metres.",
        "About 20 metres.",
    ]


def test_rows_in_snake_case_are_read() -> None:
    rows = [
        {
            "id": row["id"],
            "trace_id": row["traceId"],
            "type": row["type"],
            "parent_observation_id": row["parentObservationId"],
            "start_time": row["startTime"],
            "usage_details": row.get("usageDetails"),
            "provided_model_name": row.get("providedModelName"),
            "input": row["input"],
            "output": row["output"],
        }
        for row in lines("langfuse.rows.jsonl")
    ]
    steps = load_records(rows)[0].trajectory.steps
    assert steps[1].usage == Usage(prompt_tokens=11, completion_tokens=4)
    assert steps[1].model == "lake-2"


def test_page_of_the_api_gives_its_traces() -> None:
    traces = [{**sample("langfuse.json")["trace"], "id": id, "observations": []} for id in ("a", "b")]
    records = load_records({"data": traces, "meta": {"page": 1, "limit": 2}})
    assert [record.trajectory.id for record in records] == ["a", "b"]
    assert records[0].trajectory.steps[-1].content == "Ferry 12 is full, I could not book it."


def test_broken_row_does_not_hide_others() -> None:
    good = lines("langfuse.rows.jsonl")
    text = "\n".join(json.dumps(one) for one in (good[0], {**good[1], "id": None}, good[2]))
    found = list(read(io.StringIO(text), format="langfuse"))
    assert [type(one) for one in found] == [UnreadableRecord, Record]


@pytest.mark.parametrize(
    "encode", [lambda value: value, json.dumps, lambda value: json.dumps(json.dumps(value)), repr]
)
def test_value_is_decoded_from_json_twice_and_from_python_repr(encode: Any) -> None:
    steps = run(observation("g", "GENERATION", 1, input=encode([ASK]), output=encode(CALL))).steps
    assert steps[0].content == "Look outside."
    assert [call.name for call in steps[1].tool_calls] == ["look"]


def test_text_with_role_lines_is_split() -> None:
    text = "system: Be short.\nuser: Look outside.\nAnd wave."
    result = run(observation("g", "GENERATION", 1, input=text, output="Done."))
    assert [step.content for step in result.steps] == ["Look outside.\nAnd wave.", "Done."]
    assert list(result.system_prompts.values()) == ["Be short."]


def test_tool_recorded_as_span_by_older_sdks_is_the_result_of_the_call() -> None:
    steps = run(
        observation("g", "GENERATION", 1, input=[ASK], output=CALL),
        observation("look", "SPAN", 2, input={}, output="a garden"),
    ).steps
    assert [seen.content for seen in steps[1].observations] == ["a garden"]


def test_generation_around_generations_is_a_loop() -> None:
    steps = run(
        observation("loop", "GENERATION", 0, input=[ASK], output="A garden."),
        observation("g1", "GENERATION", 1, parent="loop", input=[ASK], output=CALL),
        observation("g2", "GENERATION", 2, parent="loop", input=[ASK, CALL, RESULT], output="A garden."),
    ).steps
    assert [step.content for step in steps] == ["Look outside.", "", "A garden."]
    assert steps[1].observations[0].content == "a garden"


def test_calls_of_one_tool_are_paired_by_arguments() -> None:
    calls = [
        {"id": f"c{i}", "function": {"name": "look", "arguments": json.dumps({"at": place})}}
        for i, place in enumerate(("door", "wall"))
    ]
    steps = run(
        observation("g", "GENERATION", 1, input=[ASK], output={"role": "assistant", "tool_calls": calls}),
        observation("look", "TOOL", 2, input={"at": "wall"}, output="white"),
        observation("look2", "TOOL", 3, input={"at": "door"}, output="red", name="look"),
    ).steps
    assert [(seen.call_id, seen.content) for seen in steps[1].observations] == [
        ("c1", "white"),
        ("c0", "red"),
    ]


def test_history_from_an_earlier_trace_is_copied_context() -> None:
    later = {"role": "user", "content": "And now inside."}
    result = run(observation("g", "GENERATION", 1, input=[ASK, CALL, RESULT, later], output="A stove."))
    assert [step.content for step in result.steps] == ["Look outside.", "", "And now inside.", "A stove."]
    assert [step.source for step in result.steps] == [
        Source.USER,
        Source.SYSTEM,
        Source.USER,
        Source.AGENT,
    ]
    assert [bool(step.extra.get("is_copied_context")) for step in result.steps] == [True, True, False, False]
    assert result.task == "And now inside."


def test_generation_without_content_is_not_recorded_content() -> None:
    result = run(observation("g", "GENERATION", 1, model="m", usageDetails={"input": 3, "output": 4}))
    assert not result.is_content_recorded
    assert len(result.steps) == 1


def test_failed_root_is_the_exit_status() -> None:
    failed = observation("a", "AGENT", 0, level="ERROR", statusMessage="ValueError: no key\nTraceback …")
    result = run(failed, observation("g", "GENERATION", 1, parent="a", input=[ASK], output="Hm."))
    assert result.exit_status == "ValueError: no key"


def test_unreadable_part_is_counted() -> None:
    content = [{"type": "text", "text": "Look."}, {"type": "image_url", "image_url": {"url": "x"}}]
    result = run(
        observation("g", "GENERATION", 1, input=[{"role": "user", "content": content}], output="A stove.")
    )
    assert result.unknown_parts == {"image_url": 1}
    assert result.steps[0].unknown_parts == ("image_url",)
