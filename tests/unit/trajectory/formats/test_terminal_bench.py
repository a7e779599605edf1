from __future__ import annotations

import json
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Source, Usage
from agentguard.trajectory.serialization import encode_meta, encode_step
from tests.unit.trajectory.formats.samples import lines


@pytest.fixture
def events_run() -> dict[str, Any]:
    """Return a run with Claude Code events."""
    return dict(lines("terminal_bench.jsonl")[0])


@pytest.fixture
def atif_run() -> dict[str, Any]:
    """Return a run with an ATIF document."""
    return dict(lines("terminal_bench.jsonl")[1])


class TestEvents:
    def test_lines_of_a_message_are_one_turn(self, events_run: dict[str, Any]) -> None:
        first = load_records(events_run)[0].trajectory.steps[0]
        assert first.content == "I look at the folder and read the note."
        assert [call.id for call in first.tool_calls] == ["u1", "u2"]
        assert [one.is_error for one in first.observations] == [None, True]
        assert first.usage == Usage(prompt_tokens=50, completion_tokens=21, cached_tokens=10)
        assert first.stop_reason == "tool_use"

    def test_sub_agent_has_its_own_name(self, events_run: dict[str, Any]) -> None:
        steps = load_records(events_run)[0].trajectory.steps
        assert [(step.source, step.agent) for step in steps[1:5]] == [
            (Source.AGENT, "claude"),
            (Source.SYSTEM, "client"),
            (Source.AGENT, "Explore"),
            (Source.ENVIRONMENT, "tool"),
        ]

    def test_unknown_events_are_counted_and_notices_are_not(self, events_run: dict[str, Any]) -> None:
        events_run["events"] += [
            {"type": "thunder"},
            {"type": "stream_event", "event": {}},
            {"type": "system", "subtype": "compact_boundary"},
        ]
        assert load_records(events_run)[0].trajectory.unknown_parts == {"thunder": 1}

    @pytest.mark.parametrize(
        ("result", "status"),
        [
            ({"subtype": "error_max_turns", "is_error": True}, "error_max_turns"),
            ({"subtype": "success", "is_error": True}, "error"),
            ({"subtype": "success"}, "success"),
        ],
    )
    def test_result_is_the_exit_status(
        self, events_run: dict[str, Any], result: dict[str, Any], status: str
    ) -> None:
        events_run["events"][-1] = {"type": "result", **result}
        events_run["failure_mode"] = "unset"
        assert load_records(events_run)[0].trajectory.exit_status == status

    def test_timeout_of_the_harness_is_the_exit_status(self, events_run: dict[str, Any]) -> None:
        assert load_records(events_run)[0].trajectory.exit_status == "agent_timeout"

    def test_run_without_events_keeps_its_task(self, events_run: dict[str, Any]) -> None:
        run = load_records(events_run | {"events": []})[0].trajectory
        assert (run.task, run.steps) == (events_run["instruction"], ())

    def test_malformed_event_names_its_field(self, events_run: dict[str, Any]) -> None:
        events_run["events"][3]["message"]["content"] = 7
        with pytest.raises(FormatError) as caught:
            load_records(events_run)
        assert caught.value.field == "events[3].message.content"


def test_run_excludes_the_test_results(events_run: dict[str, Any], atif_run: dict[str, Any]) -> None:
    for record in (*load_records(events_run), *load_records(atif_run)):
        run = record.trajectory
        text = json.dumps([encode_meta(run), *(encode_step(step) for step in run.steps)])
        assert not any(word in text for word in ("test_speed", "is_resolved", "reward", "parser_results"))
        assert record.annotation.failed is True


def test_harbor_extra_fields_are_typed(atif_run: dict[str, Any]) -> None:
    (record,) = load_records(atif_run)
    step = record.trajectory.steps[1]
    assert (step.observations[0].is_error, step.stop_reason) == (True, "tool_use")
    assert (record.trajectory.id, record.annotation.group) == ("ledger-sort__x1", "ledger-sort")
