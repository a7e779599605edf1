from __future__ import annotations

import json
from pathlib import Path

from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Source

SAMPLE = Path(__file__).resolve().parents[3] / "contract" / "samples" / "browser_use.json"


def test_entries_become_turns_with_a_result_for_each_action() -> None:
    (record,) = load_records(SAMPLE)
    first, last = record.trajectory.steps
    assert [(call.name, call.arguments) for call in first.tool_calls] == [
        ("go_to_url", {"url": "https://ferries.example/timetable"}),
        ("click_element", {"index": 4}),
    ]
    assert [(one.content, one.is_error) for one in first.observations] == [
        ("Navigated to https://ferries.example/timetable", False),
        ("Element 4 does not exist", True),
    ]
    assert first.reasoning == "A search is first."
    assert (first.started_at, first.ended_at) == (1760000000.0, 1760000004.5)
    assert first.usage is not None
    assert first.usage.prompt_tokens == 900
    assert [call.name for call in last.tool_calls] == ["done"]
    assert record.trajectory.unknown_parts == {"screenshot": 1}


def test_claim_of_success_is_not_a_verdict() -> None:
    (record,) = load_records(SAMPLE)
    assert record.annotation.failed is None
    assert record.trajectory.steps[-1].extra["claims_success"] is True


def test_judgement_is_an_annotation() -> None:
    data = json.loads(SAMPLE.read_text())
    data["history"][1]["result"][0]["judgement"] = {"verdict": False, "reasoning": "It leaves at 10."}
    (record,) = load_records(data)
    assert record.annotation.failed
    assert "It leaves at 10" not in repr(record.trajectory)


def test_error_of_the_client_without_an_output_is_no_turn() -> None:
    run = load_records(SAMPLE.with_name("browser_use.judged.json"))[0].trajectory
    assert run.task == "What does the lamp cost?"
    assert (run.steps[0].source, run.steps[0].content) == (Source.ENVIRONMENT, "Navigation failed")
