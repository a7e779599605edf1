from __future__ import annotations

import json
from typing import Any

import pytest

from agentguard.trajectory.formats.reader import load_trajectory
from agentguard.trajectory.model import Source, Usage
from tests.unit.trajectory.formats.samples import sample


def request(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "request", "parts": list(parts)}


def response(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"kind": "response", "parts": list(parts)}


def test_retry_prompt_is_an_error_of_its_tool() -> None:
    run = load_trajectory(sample("pydantic_ai.json"))
    results = [(seen.content, seen.is_error) for step in run.steps for seen in step.observations]
    assert results == [
        ("unknown fruit: plumb", True),
        ('{"grams":412}', False),
        ("Final result processed.", None),
    ]


def test_arguments_of_the_output_tool_are_the_answer() -> None:
    run = load_trajectory(sample("pydantic_ai.json"))
    assert run.steps[-1].content == '{"grams":412}'
    assert run.steps[-1].tool_calls[0].name == "final_result"


def test_turn_has_usage_model_reasoning_and_stop_reason() -> None:
    run = load_trajectory(sample("pydantic_ai.json"))
    step = run.steps[2]
    assert step.usage == Usage(prompt_tokens=20, completion_tokens=6, cached_tokens=4)
    assert (step.model, step.reasoning, step.stop_reason) == ("gpt-4.1-mini", "I use the scale.", "tool_call")
    assert (run.id, run.task) == ("run-plum", "How heavy are the plums?")
    assert run.system_prompts == {"": "Be exact.\n\nWeigh fruit."}


def test_retry_without_a_tool_is_an_environment_step() -> None:
    run = load_trajectory([request({"part_kind": "retry-prompt", "content": "answer in JSON"})])
    assert (run.steps[0].source, run.steps[0].extra) == (Source.ENVIRONMENT, {"is_error": True})


@pytest.mark.parametrize(("outcome", "is_error"), [("success", False), ("failed", True), ("denied", True)])
def test_outcome_of_a_return_is_the_error_flag(outcome: str, is_error: bool) -> None:
    call = {"part_kind": "tool-call", "tool_name": "f", "args": {}, "tool_call_id": "c"}
    seen = {
        "part_kind": "tool-return",
        "tool_name": "f",
        "tool_call_id": "c",
        "content": 1,
        "outcome": outcome,
    }
    (step,) = load_trajectory([response(call), request(seen)]).steps
    assert step.observations[0].is_error is is_error


def test_unknown_parts_are_counted_with_their_kind() -> None:
    image = {"kind": "image-url", "url": "https://example.org/a.png"}
    run = load_trajectory(
        [request({"part_kind": "user-prompt", "content": ["see", image]}), response({"part_kind": "file"})]
    )
    assert (run.task, run.unknown_parts) == ("see", {"file": 1, "image-url": 1})


def test_messages_of_the_installed_library_are_read() -> None:
    messages = pytest.importorskip("pydantic_ai.messages")
    history = [
        messages.ModelRequest([messages.UserPromptPart("go")]),
        messages.ModelResponse([messages.ToolCallPart("look", {"x": 1}, tool_call_id="c")]),
        messages.ModelRequest([messages.ToolReturnPart("look", {"y": 2}, tool_call_id="c")]),
        messages.ModelResponse([messages.TextPart("done")]),
    ]
    run = load_trajectory(json.loads(messages.ModelMessagesTypeAdapter.dump_json(history)))
    assert (run.format, run.task, run.unknown_parts) == ("pydantic_ai", "go", {})
    assert [seen.content for seen in run.steps[1].observations] == ['{"y":2}']
    assert run.steps[2].content == "done"
