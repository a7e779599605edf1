from __future__ import annotations

from typing import Any

import pytest

from agentguard.errors import FormatError
from tests.unit.trajectory.formats.samples import SAMPLES, lines, parse, records

ROW = lines("agent_process_bench.jsonl")[0]


def test_message_labels_become_step_labels() -> None:
    wrong, right = records(SAMPLES / "agent_process_bench.jsonl")
    # Message 4 is step 3, since the tool's answer, message 3, is part of step 2.
    assert wrong.annotation.step_labels == {2: 1, 3: -1}
    assert [(one.step, one.agent) for one in wrong.annotation.failures] == [(3, "assistant")]
    assert wrong.annotation.failed is True
    assert right.annotation.failed is False
    assert right.annotation.step_labels == {1: 0}


def test_run_and_annotation_are_separate() -> None:
    record = parse("agent_process_bench", ROW)
    assert record.trajectory.id == "pets:0:1"
    assert record.trajectory.task == "How old is the tortoise?"
    assert [tool.name for tool in record.trajectory.tools] == ["register"]
    assert record.annotation.answer == "96"
    assert record.annotation.extra == {"answer_text": "69", "reward_info": {"reward": 0}}
    assert "reward" not in str(record.trajectory)
    assert record.annotation.group == "how old is the tortoise"


def test_label_of_tool_message_applies_to_its_step() -> None:
    record = parse("agent_process_bench", {**ROW, "step_labels": {"2": 1, "3": -1}})
    assert record.annotation.step_labels == {2: -1}


def test_undecided_outcome_is_unknown() -> None:
    assert parse("agent_process_bench", {**ROW, "final_label": 0}).annotation.failed is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"step_labels": {"99": 1}}, "step_labels.99"),
        ({"step_labels": {"two": 1}}, "step_labels.two"),
        ({"step_labels": {"2": "good"}}, "step_labels.2"),
        ({"step_labels": []}, "step_labels"),
        ({"final_label": "bad"}, "final_label"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"tools": {}}, "tools"),
        ({"question": 1}, "question"),
    ],
)
def test_error_names_the_location(change: dict[str, Any], field: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("agent_process_bench", {**ROW, **change})
    assert caught.value.field == field
