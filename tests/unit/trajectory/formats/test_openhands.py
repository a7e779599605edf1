from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Record, Source, Usage
from agentguard.trajectory.serialization import encode_meta, encode_step
from tests.unit.trajectory.formats.samples import SAMPLES, lines, records, sample


class TestStream:
    @pytest.fixture
    def record(self) -> Record:
        return records(SAMPLES / "openhands.json")[0]

    def test_parallel_actions_of_an_answer_are_one_turn(self, record: Record) -> None:
        turn = record.trajectory.steps[2]
        assert [(call.name, call.id) for call in turn.tool_calls] == [
            ("execute_bash", "c1"),
            ("str_replace_editor", "c2"),
        ]
        assert turn.tool_calls[1].arguments == {"command": "view", "path": "/quay/bell.py"}
        assert [seen.content for seen in turn.observations] == ["ls: no /quay", "RING = 6"]
        assert turn.usage == Usage(prompt_tokens=30, completion_tokens=6)

    def test_failed_command_has_flag_and_exit_code(self, record: Record) -> None:
        failed, read = record.trajectory.steps[2].observations
        assert (failed.is_error, failed.extra["exit_code"]) == (True, 2)
        assert read.is_error is None

    def test_states_are_not_steps_and_the_last_is_the_exit_status(self, record: Record) -> None:
        assert [step.source for step in record.trajectory.steps] == [
            *(Source.SYSTEM, Source.USER, Source.AGENT, Source.SYSTEM, Source.AGENT)
        ]
        assert record.trajectory.exit_status == "finished"
        assert record.trajectory.steps[3].content == "The bell file has RING = 6."
        assert [tool.name for tool in record.trajectory.tools] == ["execute_bash"]

    def test_lines_give_the_same_run(self, record: Record, tmp_path: Path) -> None:
        path = tmp_path / "openhands.jsonl"
        path.write_text("".join(json.dumps(event) + "\n" for event in sample("openhands.json")))
        assert load_records(path) == [record]

    def test_late_result_is_a_step_of_the_environment(self) -> None:
        events = sample("openhands.json")
        events.append(dict(events[4], id=10))
        last = load_records(events)[0].trajectory.steps[-1]
        assert (last.source, last.extra["tool_call_id"]) == (Source.ENVIRONMENT, "c1")

    def test_unknown_event_is_counted(self) -> None:
        run = load_records([*sample("openhands.json"), {"id": 10, "source": "agent"}])[0].trajectory
        assert run.unknown_parts == {"event without a type": 1}

    def test_malformed_event_names_its_field(self) -> None:
        events = sample("openhands.json")
        events[3]["args"] = 1
        with pytest.raises(FormatError) as caught:
            load_records(events)
        assert caught.value.field == "history[3].args"


class TestRows:
    def test_pairs_of_events_are_read(self) -> None:
        run = records(SAMPLES / "openhands.jsonl")[0].trajectory
        assert (run.id, run.task, [step.content for step in run.steps]) == (
            "bell-1",
            "Ring the bell.",
            ["Ring the bell.", "I ring."],
        )
        assert run.steps[1].tool_calls[0].arguments == {"command": "ring"}
        assert [(seen.content, seen.is_error) for seen in run.steps[1].observations] == [
            ("ring: not found", True)
        ]

    def test_events_of_the_sdk_are_read(self) -> None:
        run = records(SAMPLES / "openhands.jsonl")[1].trajectory
        first, second = (step for step in run.steps if step.source is Source.AGENT)
        assert (first.content, first.reasoning) == ("I ring.", "A command is enough.")
        assert [(seen.content, seen.is_error) for seen in first.observations] == [("dong", False)]
        assert (second.tool_calls[0].raw_arguments, second.tool_calls[0].arguments) == ("{", None)
        assert second.observations[0].is_error is True
        assert (run.exit_status, run.unknown_parts) == ("finished", {"WeatherEvent": 1})

    def test_content_of_the_context_and_other_observations_are_read(self) -> None:
        data = lines("openhands.jsonl")[1]
        data["history"][3]["extended_content"] = [{"type": "text", "text": "Ring softly."}]
        data["history"][5] |= {"kind": "ObservationEvent", "observation": {"kind": "Bell", "rings": 2}}
        del data["history"][5]["error"]
        run = load_records(data)[0].trajectory
        seen = [seen.content for step in run.steps for seen in step.observations]
        assert seen == ["dong\nRing softly.", '{"rings":2}']

    def test_rejected_action_is_an_error(self) -> None:
        data = lines("openhands.jsonl")[1]
        data["history"][5] |= {"kind": "UserRejectObservation", "rejection_reason": "not now"}
        del data["history"][5]["error"]
        (seen,) = load_records(data)[0].trajectory.steps[-1].observations
        assert (seen.content, seen.is_error) == ("not now", True)

    def test_report_is_part_of_the_annotation(self) -> None:
        for record, failed in zip(records(SAMPLES / "openhands.jsonl"), (True, False), strict=True):
            run = record.trajectory
            text = json.dumps([encode_meta(run), *(encode_step(step) for step in run.steps)])
            assert not any(word in text for word in ("resolved", "report", "git_patch"))
            assert record.annotation.failed is failed

    def test_history_of_another_format_is_not_claimed(self) -> None:
        data = lines("openhands.jsonl")[0] | {"history": [{"role": "user", "content": "a"}]}
        with pytest.raises(FormatError):
            load_records(data)
