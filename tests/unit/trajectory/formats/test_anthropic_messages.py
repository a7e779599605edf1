from __future__ import annotations

from typing import Any

import pytest

from agentguard.trajectory.formats.base import formats
from agentguard.trajectory.formats.reader import load_trajectory
from agentguard.trajectory.model import Source, Usage
from tests.unit.trajectory.formats.samples import sample


def test_results_beside_the_users_text_answer_their_calls() -> None:
    run = load_trajectory(sample("anthropic_messages.json"))
    assert [step.source for step in run.steps] == [Source.USER, Source.AGENT, Source.USER, Source.AGENT]
    assert [(seen.call_id, seen.content, seen.is_error) for seen in run.steps[1].observations] == [
        ("toolu_k1", "612 degrees", None),
        ("toolu_k2", "sensor offline", True),
    ]
    assert run.steps[1].reasoning == "I need both sensors."


def test_system_field_is_the_system_prompt() -> None:
    run = load_trajectory(sample("anthropic_messages.json"))
    assert run.system_prompts == {"": "You watch a pottery kiln."}


@pytest.mark.parametrize("name", ["anthropic_messages.json", "anthropic_messages.converse.json"])
def test_schema_of_a_tool_is_its_parameters(name: str) -> None:
    (tool,) = load_trajectory(sample(name)).tools
    assert (tool.parameters["type"], tool.extra) == ("object", {})


def test_response_is_a_turn_with_usage_and_hosted_result() -> None:
    (step,) = load_trajectory(sample("anthropic_messages.response.json")).steps
    assert (step.usage, step.stop_reason) == (Usage(prompt_tokens=10, completion_tokens=20), "end_turn")
    assert [seen.call_id for seen in step.observations] == ["srv1"]


def test_label_is_not_in_the_run() -> None:
    (record,) = (
        formats()
        .get("anthropic_messages")
        .parse({**sample("anthropic_messages.json"), "success": False}, name="x")
    )
    assert record.annotation.failed is True
    assert "success" not in record.trajectory.extra


@pytest.mark.parametrize(
    ("value", "claimed"),
    [
        ({"messages": [{"role": "user", "content": "a"}], "system": "b"}, True),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c"}]}]}, True),
        ({"messages": [{"role": "system", "content": "a"}], "system": "b"}, False),
        ({"messages": [{"role": "user", "content": "a"}]}, False),
        ({"messages": [{"role": "user", "content": "a"}], "system": "b", "response": {}}, False),
    ],
)
def test_score_tells_requests_from_chat_completions(value: dict[str, Any], claimed: bool) -> None:
    assert (formats().get("anthropic_messages").score_match(value) > 0) is claimed


def test_part_with_a_list_as_type_is_not_a_block() -> None:
    messages = [{"role": "assistant", "content": [{"type": ["tool_use"], "text": "I look."}]}]
    assert formats().get("anthropic_messages").score_match({"messages": messages}) == 0.0
