from __future__ import annotations

import builtins
import io
import json
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, read
from agentguard.trajectory.model import Record, Source, Trajectory, Usage
from tests.unit.trajectory.formats.samples import SAMPLES, lines, sample

ASK = {"role": "user", "content": "Look outside."}


def span(id: str, parent: str | None = None, *, at: int = 0, **attributes: Any) -> dict[str, Any]:
    return {
        "name": id,
        "context": {"trace_id": "0xab", "span_id": f"0x{id}"},
        "parent_id": f"0x{parent}" if parent else None,
        "start_time": f"2026-05-06T07:00:{at:02}.000000Z",
        "end_time": f"2026-05-06T07:00:{at:02}.500000Z",
        "status": {"status_code": "UNSET"},
        "attributes": {key.replace("__", "."): value for key, value in attributes.items()},
    }


def run(*spans: dict[str, Any]) -> Trajectory:
    (record,) = load_records(list(spans))
    return record.trajectory


def _outline(records: list[Record]) -> list[Any]:
    return sorted(
        (
            record.trajectory.id,
            [
                (step.content, step.tool_calls, [seen.content for seen in step.observations])
                for step in record.trajectory.steps
            ],
        )
        for record in records
    )


def test_page_of_phoenix_has_runs_with_calls_and_results() -> None:
    failed, good = load_records(SAMPLES / "otel_spans.json")
    assert [step.content for step in good.trajectory.steps] == [
        "How far can ships see at Skagen?",
        "",
        "40 metres: sound the horn.",
    ]
    assert [seen.content for seen in good.trajectory.steps[1].observations] == ["40 metres"]
    (seen,) = failed.trajectory.steps[1].observations
    assert (seen.content, seen.is_error) == ("OSError: sensor unplugged", True)
    assert good.trajectory.steps[1].usage == Usage(prompt_tokens=21, completion_tokens=6)
    assert [tool.name for tool in good.trajectory.tools] == ["measure_fog"]


def test_console_spans_give_the_same_runs_as_phoenix() -> None:
    console, page = (load_records(SAMPLES / f"otel_spans.{end}") for end in ("console.jsonl", "json"))
    assert _outline(console) == _outline(page)


def test_documents_that_follow_each_other_are_read_one_by_one() -> None:
    rows = lines("otel_spans.console.jsonl")
    text = "\n".join(json.dumps(row, indent=4) for row in rows)
    assert _outline(load_records(io.StringIO(text))) == _outline(load_records(rows))
    broken = [one for one in read(io.StringIO(text + '\n{"name": ')) if isinstance(one, UnreadableRecord)]
    assert [one.error.record for one in broken] == [len(rows)]


def test_nested_attributes_and_columns_are_read_like_flat_ones() -> None:
    page = sample("otel_spans.json")["data"]
    wanted = _outline(load_records(page))
    columns = [
        {
            **{key: item for key, item in row.items() if key not in ("attributes", "context")},
            **{f"context.{key}": item for key, item in row["context"].items()},
            **{f"attributes.{key}": item for key, item in row["attributes"].items()},
            "attributes.retrieval.documents": None,
        }
        for row in page
    ]
    assert _outline(load_records(columns)) == wanted
    messages = [{"message": {"role": "user", "content": "Look outside."}}]
    nested = {
        "llm": {
            "input_messages": messages,
            "output_messages": [{"message.role": "assistant", "message.content": "A garden."}],
            "model_name": "m",
        }
    }
    steps = run({**span("a"), "attributes": nested, "span_kind": "LLM"}).steps
    assert [(step.content, step.model) for step in steps] == [("Look outside.", None), ("A garden.", "m")]


def test_parquet_rows_are_read_like_json(tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pyarrow = pytest.importorskip("pyarrow")
    page = sample("otel_spans.json")["data"]
    rows = [
        {**row, "attributes": json.dumps(row["attributes"]), "events": json.dumps(row["events"])}
        for row in page
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "spans.parquet")
    assert _outline(load_records(tmp_path / "spans.parquet")) == _outline(load_records(page))


def test_damaged_parquet_names_the_file(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    path = tmp_path / "spans.parquet"
    path.write_bytes(b"PAR1 but no more")
    with pytest.raises(FormatError, match="not a readable Parquet file") as caught:
        load_records(path)
    assert caught.value.file == str(path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = builtins.__import__

    def refuse(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "pyarrow":
            raise ModuleNotFoundError(name, name=name)
        return original(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", refuse)
    (tmp_path / "spans.parquet").write_bytes(b"PAR1")
    with pytest.raises(FormatError, match="needs pyarrow") as caught:
        load_records(tmp_path / "spans.parquet")
    assert "agentguard[parquet]" in str(caught.value)


def test_vercel_loop_is_no_step_and_its_inner_calls_are() -> None:
    call = json.dumps(
        [{"type": "tool-call", "toolCallId": "c1", "toolName": "look", "input": '{"at": "door"}'}]
    )
    history = [
        {"role": "user", "content": [{"type": "text", "text": "Look outside."}]},
        {
            "role": "assistant",
            "content": [
                {"type": "tool-call", "toolCallId": "c1", "toolName": "look", "input": {"at": "door"}}
            ],
        },
        {
            "role": "tool",
            "content": [
                {
                    "type": "tool-result",
                    "toolCallId": "c1",
                    "toolName": "look",
                    "output": {"type": "text", "value": "a garden"},
                }
            ],
        },
    ]
    loop = {
        "ai__operationId": "ai.generateText",
        "ai__response__text": "A garden.",
        "ai__prompt": json.dumps({"prompt": "Look outside."}),
        "ai__model__id": "m-1",
    }
    step = {
        "ai__operationId": "ai.generateText.doGenerate",
        "ai__response__model": "m-1",
        "ai__usage__inputTokens": 7,
    }
    steps = run(
        span("loop", **loop),
        span(
            "one",
            "loop",
            at=1,
            **step,
            ai__prompt__messages=json.dumps(history[:1]),
            ai__response__toolCalls=call,
            ai__response__finishReason="tool-calls",
        ),
        span(
            "tool",
            "loop",
            at=2,
            ai__operationId="ai.toolCall",
            ai__toolCall__name="look",
            ai__toolCall__id="c1",
            ai__toolCall__args='{"at": "door"}',
            ai__toolCall__result='"a garden"',
        ),
        span(
            "two",
            "loop",
            at=3,
            **step,
            ai__prompt__messages=json.dumps(history),
            ai__response__text="A garden.",
        ),
    ).steps
    assert [step.content for step in steps] == ["Look outside.", "", "A garden."]
    assert [(one.id, one.arguments) for one in steps[1].tool_calls] == [("c1", {"at": "door"})]
    assert [seen.content for seen in steps[1].observations] == ["a garden"]
    assert (steps[1].stop_reason, steps[1].usage) == ("tool-calls", Usage(prompt_tokens=7))


def test_events_of_older_pydantic_ai_are_messages() -> None:
    events = [
        {"event.name": "gen_ai.system.message", "content": "Be short.", "role": "system"},
        {"event.name": "gen_ai.user.message", "content": "Look outside.", "role": "user"},
        {
            "event.name": "gen_ai.choice",
            "message": {
                "role": "assistant",
                "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{}"}}],
            },
        },
    ]
    result = run(
        span("agent", agent_name="scout", all_messages_events="[]"),
        span(
            "chat",
            "agent",
            at=1,
            gen_ai__operation__name="chat",
            gen_ai__request__model="m",
            events=json.dumps(events),
        ),
        span(
            "running tool",
            "agent",
            at=2,
            gen_ai__tool__name="look",
            gen_ai__tool__call__id="c1",
            tool_arguments="{}",
            tool_response="a garden",
        ),
    )
    assert [(step.agent, step.content) for step in result.steps] == [("user", "Look outside."), ("scout", "")]
    assert [seen.content for seen in result.steps[1].observations] == ["a garden"]
    assert result.system_prompts == {"scout": "Be short."}


def test_agent_span_with_all_messages_and_no_model_spans_is_read() -> None:
    messages = [
        {"role": "user", "parts": [{"type": "text", "content": "Look outside."}]},
        {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "look", "arguments": {}}]},
        {"role": "user", "parts": [{"type": "tool_call_response", "id": "c1", "result": "a garden"}]},
    ]
    steps = run(
        span("agent", gen_ai__operation__name="invoke_agent", pydantic_ai__all_messages=json.dumps(messages))
    ).steps
    assert [step.source for step in steps] == [Source.USER, Source.AGENT]
    assert steps[1].observations[0].content == "a garden"
    assert "is_copied_context" not in steps[1].extra


def test_rows_of_logfire_are_read() -> None:
    row = {
        "trace_id": "ab",
        "span_id": "1",
        "parent_span_id": None,
        "span_name": "chat m",
        "start_timestamp": "2026-05-06T07:00:00Z",
        "otel_status_code": "ERROR",
        "otel_status_message": "rate limited",
        "attributes": {"gen_ai.operation.name": "chat", "gen_ai.input.messages": [ASK]},
    }
    result = run(row)
    assert result.exit_status == "rate limited"
    assert [(seen.content, seen.is_error) for seen in result.steps[1].observations] == [
        ("rate limited", True)
    ]


def test_generation_spans_of_openai_agents_repeat_no_history() -> None:
    call = {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "function": {"name": "look", "arguments": "{}"}}],
    }
    result = {"role": "tool", "tool_call_id": "c1", "content": "a garden"}

    def item(id: str, at: int, **data: Any) -> dict[str, Any]:
        time = f"2026-05-06T07:00:{at:02}+00:00"
        return {
            "object": "trace.span",
            "id": id,
            "trace_id": "trace_1",
            "parent_id": "agent" if id != "agent" else None,
            "started_at": time,
            "ended_at": time,
            "span_data": data,
            "error": None,
        }

    steps = run(
        {"object": "trace", "id": "trace_1", "workflow_name": "scouting"},
        item("agent", 0, type="agent", name="scout"),
        item(
            "g1",
            1,
            type="generation",
            input=[ASK],
            output=[call],
            model="m",
            usage={"input_tokens": 3, "output_tokens": 1},
        ),
        item("f1", 2, type="function", name="look", input="{}", output="a garden"),
        item(
            "g2",
            3,
            type="generation",
            input=[ASK, call, result],
            output=[{"role": "assistant", "content": "A garden."}],
            model="m",
        ),
    ).steps
    assert [(step.agent, step.content) for step in steps] == [
        ("user", "Look outside."),
        ("scout", ""),
        ("scout", "A garden."),
    ]
    assert len(steps[1].observations) == 1


def test_response_span_without_content_is_not_recorded_content() -> None:
    row = {
        "object": "trace.span",
        "id": "r",
        "trace_id": "t",
        "started_at": "2026-05-06T07:00:00Z",
        "span_data": {"type": "response", "response_id": "resp_1"},
    }
    result = run(row)
    assert len(result.steps) == 1
    assert not result.is_content_recorded


def test_trace_without_content_is_marked_and_one_with_content_is_not() -> None:
    bare = {"openinference__span__kind": "LLM", "llm__model_name": "m"}
    assert not run(
        span("m", **bare), span("look", at=1, openinference__span__kind="TOOL")
    ).is_content_recorded
    assert run(span("m", **bare, output__value="A garden.")).is_content_recorded


def test_span_without_id_is_unreadable_and_named() -> None:
    good = span("m", openinference__span__kind="LLM", output__value="A garden.")
    bad = {**good, "context": {"trace_id": "0xab"}}
    found = list(read([good, bad]))
    assert [type(one) for one in found] == [UnreadableRecord, Record]
    broken = found[0]
    assert isinstance(broken, UnreadableRecord)
    assert (broken.error.record, broken.error.field) == (1, "span_id")
