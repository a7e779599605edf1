from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, read
from agentguard.trajectory.model import Record, Source, Usage
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


class TestFolders:
    @pytest.fixture
    def job(self, tmp_path: Path, atif_run: dict[str, Any]) -> Path:
        """Return a job of Harbor with one trial."""
        trial = tmp_path / "job" / "ledger-sort__x1"
        result: dict[str, Any] = {"task_name": "books/ledger-sort", "trial_name": trial.name}
        result |= {"verifier_result": {"rewards": {"reward": 1.0}}, "exception_info": None}
        write_json(trial / "result.json", result)
        write_json(trial / "agent" / "trajectory.json", atif_run["trajectory"])
        write_json(trial / "config.json", {})
        write_json(tmp_path / "job" / "result.json", {"stats": {}})
        return tmp_path / "job"

    def test_trials_of_a_harbor_job_are_runs(self, job: Path) -> None:
        (record,) = load_records(job)
        assert (record.trajectory.format, record.trajectory.id) == ("terminal_bench", "ledger-sort__x1")
        assert (record.annotation.failed, record.annotation.group) == (False, "books/ledger-sort")

    def test_exception_of_the_trial_is_the_exit_status(self, job: Path) -> None:
        result = {"task_name": "t", "exception_info": {"exception_type": "AgentTimeoutError"}}
        write_json(job / "ledger-sort__x1" / "result.json", result)
        (record,) = load_records(job)
        assert (record.trajectory.exit_status, record.annotation.failed) == ("AgentTimeoutError", None)

    def test_reward_of_the_verifier_counts(self, job: Path) -> None:
        (job / "ledger-sort__x1" / "verifier").mkdir()
        (job / "ledger-sort__x1" / "verifier" / "reward.txt").write_text("0\n")
        assert load_records(job)[0].annotation.failed is True

    def test_trial_without_a_trajectory_does_not_hide_the_others(self, job: Path) -> None:
        write_json(job / "a__x2" / "result.json", {"task_name": "a"})
        (job / "a__x2" / "verifier").mkdir()
        broken, good = read(job)
        assert isinstance(broken, UnreadableRecord)
        assert "a__x2" in str(broken.error.file)
        assert "agent/trajectory.json" in str(broken.error)
        assert isinstance(good, Record)

    def test_events_in_a_terminal_recording_are_read(
        self, tmp_path: Path, events_run: dict[str, Any]
    ) -> None:
        trial = tmp_path / "mill-speed" / "mill-speed.1-of-1"
        result = {key: events_run[key] for key in ("is_resolved", "failure_mode", "instruction")}
        write_json(trial / "results.json", {"task_id": "mill-speed", **result})
        text = "$ claude\r\n\x1b[?25l" + "\r\n".join(json.dumps(event) for event in events_run["events"])
        text = text.replace('{"type": ', '{"type":') + '\r\n{"type":"assistant", "mess'
        frames = [{"version": 2}, *([0.1, "o", text[i : i + 100]] for i in range(0, len(text), 100))]
        (trial / "sessions").mkdir()
        lines_of_cast = "".join(json.dumps(frame) + "\n" for frame in frames)
        (trial / "sessions" / "agent.cast").write_text(lines_of_cast)
        (record,) = load_records(tmp_path)
        (expected,) = load_records(events_run)
        assert record.trajectory.steps == expected.trajectory.steps
        assert record.annotation.group == "mill-speed"


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
