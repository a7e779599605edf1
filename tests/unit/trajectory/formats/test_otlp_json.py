from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.otlp_json import FORMAT
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Record, Source, Trajectory
from tests.unit.trajectory.formats.samples import SAMPLES, lines, parse, records, sample


def span(
    id: str, parent: str | None = None, *, at: int = 0, name: str = "", **attributes: Any
) -> dict[str, Any]:
    values = {
        key.replace("__", "."): value if isinstance(value, str) else json.dumps(value)
        for key, value in attributes.items()
    }
    return {
        "traceId": "t",
        "spanId": id,
        "parentSpanId": parent or "",
        "name": name or id,
        "startTimeUnixNano": str(1_760_000_000_000_000_000 + at),
        "endTimeUnixNano": "0",
        "attributes": [{"key": key, "value": {"stringValue": value}} for key, value in values.items()],
    }


def run(*spans: dict[str, Any]) -> Trajectory:
    return parse("otlp_json", {"resourceSpans": [{"scopeSpans": [{"spans": list(spans)}]}]}).trajectory


def said(text: str, *calls: tuple[str, str]) -> list[dict[str, Any]]:
    parts = [{"type": "text", "content": text}] if text else []
    parts += [{"type": "tool_call", "id": id, "name": name, "arguments": {}} for id, name in calls]
    return [{"role": "assistant", "parts": parts}]


def chat(id: str, parent: str | None = None, **more: Any) -> dict[str, Any]:
    return span(id, parent, gen_ai__operation__name="chat", **more)


def tool(id: str, parent: str | None = None, *, called: str = "look", **more: Any) -> dict[str, Any]:
    return span(id, parent, gen_ai__operation__name="execute_tool", gen_ai__tool__name=called, **more)


def test_gen_ai_spans_become_a_run() -> None:
    (record,) = records(SAMPLES / "otlp_json.json")
    run, annotation = record.trajectory, record.annotation
    assert run.task == "Cancel order A17 and tell me what I get back."
    assert run.system_prompts == {"clerk": "Shipped orders cannot be cancelled."}
    assert [tool.name for tool in run.tools] == ["get_order"]
    assert [(s.source, s.agent, s.source_index) for s in run.steps] == [
        (Source.USER, "user", 4),
        (Source.AGENT, "clerk", 4),
        (Source.AGENT, "clerk", 2),
        (Source.AGENT, "clerk", 0),
    ]
    first = run.steps[1]
    assert first.reasoning == "I need the status."
    assert (first.model, first.started_at, first.ended_at) == ("small-1-2026", 1760000001.0, 1760000002.0)
    assert first.usage is not None
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (120, 18)
    assert [(c.id, c.name, c.arguments) for c in first.tool_calls] == [
        ("c1", "get_order", {"order_id": "A17"})
    ]
    assert [(o.call_id, o.tool, o.is_error) for o in first.observations] == [("c1", "get_order", False)]
    failed = run.steps[2].observations[0]
    assert (failed.content, failed.is_error) == ("OrderError: order A17 has shipped", True)
    # The annotation holds the scores of the run, the steps do not.
    assert annotation.extra == {"spans": {"b3": {"gen_ai.evaluation.score": 0.0}}}
    assert "evaluation" not in str(run)


def test_open_inference_spans_across_lines_are_one_run() -> None:
    (record,) = records(SAMPLES / "otlp_json.openinference.jsonl")
    run = record.trajectory
    assert run.task == "How tall is the tower?"
    assert run.steps[1].tool_calls[0].raw_arguments == '{"page": "tower"}'
    assert run.steps[1].observations[0].content == "The tower is 81 metres tall."
    assert run.steps[2].content == "It is 18 metres tall."


def test_broken_line_does_not_hide_other_runs(tmp_path: Path) -> None:
    first, second = lines("otlp_json.openinference.jsonl")
    path = tmp_path / "spans.jsonl"
    path.write_text("\n".join([json.dumps(first), '{"resourceSpans": 3}', json.dumps(second)]))
    found = list(read(path))
    broken = [one for one in found if isinstance(one, UnreadableRecord)]
    assert [(one.error.record, one.error.field) for one in broken] == [(1, "resourceSpans")]
    assert [len(one.trajectory.steps) for one in found if isinstance(one, Record)] == [3]


def test_each_trace_is_a_run() -> None:
    value = sample("otlp_json.json")
    other = lines("otlp_json.openinference.jsonl")
    value["resourceSpans"] += [part for line in other for part in line["resourceSpans"]]
    ids = [record.trajectory.id for record in FORMAT.parse(value, name="x")]
    assert ids == ["7f0000000000000000000000000000a1", "7f0000000000000000000000000000b2"]


def test_snake_case_and_plain_attributes_are_read() -> None:
    one = {"trace_id": "t", "span_id": "s", "name": "chat", "attributes": {"gen_ai.operation.name": "chat"}}
    value = {"resource_spans": [{"scope_spans": [{"spans": [one]}]}]}
    assert len(parse("otlp_json", value).trajectory.steps) == 1


def test_calls_without_content_come_from_tool_spans() -> None:
    steps = run(
        span("a", gen_ai__operation__name="invoke_agent", gen_ai__agent__name="clerk"),
        chat("m1", "a", at=1),
        tool("t1", "a", at=2, called="look"),
        tool("t2", "a", at=3, called="book"),
        chat("m2", "a", at=4),
    ).steps
    assert [[call.name for call in step.tool_calls] for step in steps] == [["look", "book"], []]
    assert [len(step.observations) for step in steps] == [2, 0]


def test_tool_span_is_matched_by_id_before_name() -> None:
    steps = run(
        chat("m", at=1, gen_ai__output__messages=said("", ("c1", "look"), ("c2", "look"))),
        tool("t2", at=2, gen_ai__tool__call__id="c2", gen_ai__tool__call__result="second"),
        tool("t1", at=3, gen_ai__tool__call__result="first"),
    ).steps
    seen = steps[0].observations
    assert [(one.call_id, one.content) for one in seen] == [("c2", "second"), ("c1", "first")]


def test_results_in_the_next_input_are_observations() -> None:
    told = [
        {"role": "user", "parts": [{"type": "text", "content": "Go."}]},
        *said("", ("c1", "look")),
        {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "a door"}]},
        {"role": "user", "parts": [{"type": "text", "content": "And now out."}]},
    ]
    steps = run(
        chat("m1", at=1, gen_ai__input__messages=told[:1], gen_ai__output__messages=told[1:2]),
        chat("m2", at=2, gen_ai__input__messages=told, gen_ai__output__messages=said("Out.")),
    ).steps
    assert [step.content for step in steps] == ["Go.", "", "And now out.", "Out."]
    assert [one.content for one in steps[1].observations] == ["a door"]


def test_observation_in_user_role_belongs_to_the_previous_step() -> None:
    told = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": "look()"}]
    steps = run(
        chat("m1", at=1, gen_ai__input__messages=told[:1], gen_ai__output__messages=told[1:]),
        chat("m2", at=2, gen_ai__input__messages=[*told, {"role": "user", "content": "Observation: a door"}]),
    ).steps
    assert [step.source for step in steps] == [Source.USER, Source.AGENT, Source.AGENT]
    assert steps[1].observations[0].content == "Observation: a door"


def test_call_recorded_by_two_libraries_is_one_step() -> None:
    steps = run(
        chat("outer", at=1, gen_ai__output__messages=said("Hello.")),
        chat("inner", "outer", at=2, gen_ai__output__messages=said("Hello.")),
        tool("client", at=3),
        tool("server", "client", at=4),
    ).steps
    assert len(steps) == 1
    assert len(steps[0].tool_calls) == len(steps[0].observations) == 1


def test_agent_called_as_tool_is_part_of_the_step_of_the_caller() -> None:
    steps = run(
        span("a", gen_ai__operation__name="invoke_agent", gen_ai__agent__name="boss"),
        chat("m1", "a", at=1, gen_ai__output__messages=said("", ("c1", "helper"))),
        tool("t", "a", at=2, called="helper", gen_ai__tool__call__id="c1", gen_ai__tool__call__result="done"),
        span("b", "t", at=3, gen_ai__operation__name="invoke_agent", name="invoke_agent helper"),
        chat(
            "m2",
            "b",
            at=4,
            gen_ai__input__messages=[{"role": "user", "content": "Help the boss."}],
            gen_ai__output__messages=said("Helped."),
        ),
        chat("m3", "a", at=5, gen_ai__output__messages=said("All done.")),
    ).steps
    assert [(step.agent, step.content) for step in steps] == [
        ("boss", ""),
        ("helper", "Helped."),
        ("boss", "All done."),
    ]
    assert steps[0].observations[0].content == "done"


def test_earlier_conventions_are_read() -> None:
    events = [
        {"name": "gen_ai.user.message", "attributes": {"content": "Go."}},
        {"name": "gen_ai.choice", "attributes": {"message": '{"role": "assistant", "content": "Gone."}'}},
    ]
    steps = run({**chat("m"), "events": events}).steps
    assert [step.content for step in steps] == ["Go.", "Gone."]
    flat = chat("m", gen_ai__completion__0__role="assistant", gen_ai__completion__0__content="Gone.")
    assert run(flat).steps[0].content == "Gone."


def test_failed_model_call_is_an_error_of_its_step() -> None:
    failed = {**chat("m"), "status": {"code": "STATUS_CODE_ERROR", "message": "rate limited"}}
    seen = run(failed).steps[0].observations
    assert [(one.content, one.is_error) for one in seen] == [("rate limited", True)]


def test_tools_without_model_call_are_separate_steps() -> None:
    steps = run(span("a", name="job"), tool("t1", "a", at=1), tool("t2", "a", at=2)).steps
    assert [len(step.tool_calls) for step in steps] == [1, 1]


def test_result_without_id_belongs_to_the_previous_step() -> None:
    told = [
        {"role": "MessageRole.USER", "content": "Go."},
        {"role": "tool-call", "content": "look()"},
        {"role": "tool-response", "content": "Observation: a door"},
    ]
    steps = run(
        chat("m1", at=1, gen_ai__input__messages=told[:1], gen_ai__output__messages=said("look()")),
        chat("m2", at=2, gen_ai__input__messages=told, gen_ai__output__messages=said("Out.")),
    ).steps
    assert [step.content for step in steps] == ["Go.", "look()", "Out."]
    assert [one.content for one in steps[1].observations] == ["Observation: a door"]


def test_span_with_only_a_model_name_is_a_model_call() -> None:
    assert len(run(span("m", gen_ai__request__model="small-1")).steps) == 1


def test_cyclic_parents_terminate() -> None:
    assert len(run(chat("a", "b"), chat("b", "a"), chat("c", "c")).steps) == 2


@pytest.mark.parametrize(
    ("value", "field"),
    [
        ({"resourceSpans": 1}, "resourceSpans"),
        ({"resourceSpans": [{"scopeSpans": [{"spans": [1]}]}]}, "resourceSpans[0].scopeSpans[0].spans[0]"),
        ({"resourceSpans": []}, "resourceSpans"),
        (
            {"resourceSpans": [{"scopeSpans": [{"spans": [{"startTimeUnixNano": "soon"}]}]}]},
            "resourceSpans[0].scopeSpans[0].spans[0].startTimeUnixNano",
        ),
        (
            {
                "resourceSpans": [
                    {"scopeSpans": [{"spans": [{"attributes": [{"key": "k", "value": {"v": 1}}]}]}]}
                ]
            },
            "resourceSpans[0].scopeSpans[0].spans[0].attributes[0].value",
        ),
    ],
)
def test_error_names_the_location(value: Any, field: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("otlp_json", value)
    assert caught.value.field == field


def test_long_trace_takes_linear_time() -> None:
    spans = [span("a", gen_ai__operation__name="invoke_agent")]
    for i in range(4000):
        spans.append(chat(f"m{i}", "a", at=2 * i))
        spans.append(tool(f"t{i}", "a", at=2 * i + 1, called=f"tool{i % 7}"))
    assert len(run(*spans).steps) == 4000
