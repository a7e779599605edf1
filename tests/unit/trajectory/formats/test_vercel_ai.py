from __future__ import annotations

from typing import Any

import pytest

from agentguard.trajectory.formats.base import formats
from agentguard.trajectory.formats.reader import load_trajectory
from agentguard.trajectory.model import Source, Step, Usage
from tests.unit.trajectory.formats.samples import sample


def steps_of(*parts: dict[str, Any]) -> tuple[Step, ...]:
    return load_trajectory([{"id": "m", "role": "assistant", "parts": list(parts)}]).steps


def tool(state: str, **fields: Any) -> dict[str, Any]:
    return {"type": "tool-look", "toolCallId": "c", "state": state, "input": {"x": 1}, **fields}


def test_step_start_separates_turns() -> None:
    run = load_trajectory(sample("vercel_ai.json"))
    assert [step.source for step in run.steps] == [Source.SYSTEM, Source.USER, *[Source.AGENT] * 3]
    assert [[call.name for call in step.tool_calls] for step in run.steps[2:]] == [
        ["findMoss"],
        ["findMoss", "mcp_map"],
        [],
    ]


def test_usage_of_the_message_counts_once() -> None:
    usages = [step.usage for step in load_trajectory(sample("vercel_ai.json")).steps if step.usage]
    assert usages == [Usage(prompt_tokens=300, completion_tokens=40, cached_tokens=20)]


def test_files_and_sources_are_counted_as_unknown_and_data_parts_are_not() -> None:
    run = load_trajectory(sample("vercel_ai.json"))
    assert run.unknown_parts == {"file": 1, "source-url": 1}


@pytest.mark.parametrize(
    ("part", "results"),
    [
        (tool("output-available", output={"a": 1}), [('{"a":1}', False)]),
        (tool("output-available", output="text"), [("text", False)]),
        (tool("output-error", errorText="no"), [("no", True)]),
        (tool("output-denied"), [("", True)]),
        (tool("output-available", output="half", preliminary=True), []),
        (tool("input-streaming"), []),
        (tool("input-available"), []),
    ],
)
def test_state_of_a_tool_is_its_error_flag(part: dict[str, Any], results: list[tuple[str, bool]]) -> None:
    (step,) = steps_of(part)
    assert [call.name for call in step.tool_calls] == ["look"]
    assert [(seen.content, seen.is_error) for seen in step.observations] == results


def test_input_of_a_failed_parse_stays_as_text() -> None:
    part = tool("output-error", errorText="bad input", rawInput="{broken")
    del part["input"]
    (step,) = steps_of(part)
    assert (step.tool_calls[0].arguments, step.tool_calls[0].raw_arguments) == (None, "{broken")


@pytest.mark.parametrize(
    "value",
    [
        [{"role": "user", "parts": [{"text": "a"}]}],
        [{"role": "user", "content": "a"}],
        [{"kind": "request", "parts": [{"part_kind": "text"}]}],
        {"messages": []},
    ],
)
def test_score_leaves_other_messages(value: Any) -> None:
    assert formats().get("vercel_ai").score_match(value) == 0
