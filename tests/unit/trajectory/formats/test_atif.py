from __future__ import annotations

from typing import Any

import atif
import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.formats.atif import FORMAT
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import (
    Annotation,
    Branch,
    Observation,
    Record,
    Source,
    Step,
    ToolCall,
    Trajectory,
    Usage,
)
from tests.unit.trajectory.formats.samples import SAMPLES, parse, records, sample


@pytest.fixture
def record() -> Record:
    return records(SAMPLES / "atif.json")[0]


def step(**fields: Any) -> Step:
    return Step(**{"index": 0, "source": Source.AGENT, "agent": "a", **fields})


def one(**fields: Any) -> Record:
    return Record(trajectory=Trajectory(id="r", format="x", task="", steps=(step(**fields),)))


class TestRead:
    def test_run_fields_are_read(self, record: Record) -> None:
        run = record.trajectory
        assert (run.id, run.task, run.system_prompts) == ("t-1", "Go to the pond.", {"": "You walk."})
        assert [tool.name for tool in run.tools] == ["go"]
        assert run.extra["agent"] == {
            "name": "walker",
            "version": "2.1",
            "model_name": "small-1",
            "extra": {"team": "red"},
        }
        assert run.extra["extra"] == {"place": "garden"}
        assert (record.annotation.failed, record.annotation.extra) == (True, {"extra": {"reward": 0}})

    def test_steps_are_read(self, record: Record) -> None:
        system, user, turn, last = record.trajectory.steps
        assert (system.source, user.source, turn.source, last.agent) == ("system", "user", "agent", "walker")
        assert user.started_at == 1767607200.0
        assert turn.started_at == 1767607201.25
        assert user.extra["message"][1]["type"] == "image"
        assert (turn.model, turn.reasoning) == ("small-2", "West is the pond.")
        assert turn.usage == Usage(prompt_tokens=10, completion_tokens=5, cost_usd=0.01)
        assert turn.extra["metrics"] == {"logprobs": [-0.5]}

    def test_calls_and_results_are_read(self, record: Record) -> None:
        turn = record.trajectory.steps[2]
        assert [(call.id, call.arguments) for call in turn.tool_calls] == [("c1", {"to": "west"}), ("c2", {})]
        wall, rain, helper = turn.observations
        assert (wall.call_id, wall.tool, wall.content) == ("c1", "go", "A wall.")
        assert (rain.call_id, rain.content) == (None, "It begins to rain.")
        assert helper.extra["subagent_trajectory_ref"] == [{"trajectory_id": "sub-1"}]

    @pytest.mark.parametrize(
        ("change", "field"),
        [
            ({"schema_version": "ATIF-v2.0"}, "schema_version"),
            ({"agent": {}}, "agent.name"),
            ({"agent": None}, "agent"),
            ({"steps": [{"step_id": 2, "source": "user", "message": ""}]}, "steps[0].step_id"),
            ({"steps": [{"step_id": 1, "source": "robot", "message": ""}]}, "steps[0].source"),
            (
                {"steps": [{"step_id": 1, "source": "user", "message": "", "timestamp": "noon"}]},
                "steps[0].timestamp",
            ),
            ({"steps": [{"step_id": 1, "source": "user", "message": 5}]}, "steps[0].message"),
        ],
    )
    def test_errors_name_the_location(self, change: dict[str, Any], field: str) -> None:
        with pytest.raises(FormatError) as caught:
            parse("atif", {**sample("atif.json"), **change})
        assert caught.value.field == field

    def test_own_extension_fields_are_validated(self) -> None:
        value = FORMAT.dump(one(observations=(Observation(content="x", is_error=True),)))
        value["steps"][0]["observation"]["results"][0]["extra"]["agentguard"]["is_error"] = "yes"
        with pytest.raises(FormatError, match="is_error"):
            parse("atif", value)


class TestWrite:
    def test_original_is_reproduced(self, record: Record) -> None:
        original = sample("atif.json")
        dumped = FORMAT.dump(record)
        del original["extra"]["reward"]
        # An equal time may have another notation.
        assert dumped["steps"][2].pop("timestamp") == "2026-01-05T10:00:01.250000Z"
        assert original["steps"][2].pop("timestamp") == "2026-01-05T10:00:01.250Z"
        # A result without text gets an empty text.
        assert dumped["steps"][2]["observation"]["results"][2].pop("content") == ""
        assert dumped == original

    def test_fields_without_a_place_are_written_as_extension(self) -> None:
        record = one(
            agent="b",
            source=Source.ENVIRONMENT,
            modules={"planning": "p"},
            observations=(Observation(content="bad", call_id="zz", is_error=True),),
        )
        document = FORMAT.dump(record)
        atif.Trajectory.model_validate(document)
        (written,) = document["steps"]
        assert written["source"] == "system"
        assert written["extra"]["agentguard"]["source"] == "environment"
        assert written["extra"]["agentguard"]["modules"] == {"planning": "p"}
        (result,) = written["observation"]["results"]
        assert result["extra"]["agentguard"] == {"is_error": True, "call_id": "zz"}
        assert load_records(document) == [record]

    @pytest.mark.parametrize(
        "fields",
        [
            {"tool_calls": (ToolCall(id="1", name="f", raw_arguments="{oops"),)},
            {"tool_calls": (ToolCall(id="1", name="f", arguments={"x": 1}, raw_arguments='{ "x":1 }'),)},
            {"tool_calls": (ToolCall(id="1", name="f"),), "source": Source.USER},
            {"tool_calls": (ToolCall(id="1", name="f"), ToolCall(id="1", name="g"))},
            {"observations": (Observation(content="", call_id="", tool=""),)},
            {"started_at": 1e300, "ended_at": -5.0},
            {"started_at": 0.1 + 0.2, "usage": Usage()},
            {"reasoning": "r", "source": Source.SYSTEM, "model": "m", "usage": Usage(prompt_tokens=1)},
            {"extra": {"extra": 5, "message": [1], "metrics": [], "llm_call_count": "x", "agentguard": 1}},
            {"source_index": 7, "content": ""},
        ],
    )
    @pytest.mark.parametrize("format", ["x", "atif"])
    def test_unusual_steps_round_trip(self, fields: dict[str, Any], format: str) -> None:
        record = Record(trajectory=Trajectory(id="", format=format, task="t", steps=(step(**fields),)))
        document = FORMAT.dump(record)
        atif.Trajectory.model_validate(document)
        assert load_records(document, format="atif") == [record]

    def test_branches_and_annotation_round_trip(self) -> None:
        branch = Branch(id="b", fork_step=1, steps=(step(index=1),), reason="r")
        record = Record(
            trajectory=Trajectory(id="r", format="x", task="", steps=(step(),), branches=(branch,)),
            annotation=Annotation(failed=True, answer="42"),
        )
        assert "42" not in str(FORMAT.dump(record))
        assert load_records(FORMAT.dump(record, annotation=True)) == [record]
        assert load_records(FORMAT.dump(record))[0].trajectory == record.trajectory


def test_copied_context_is_no_work_of_the_agent() -> None:
    call = {"tool_call_id": "c1", "function_name": "look", "arguments": {}}
    result = {"source_call_id": "c1", "content": "seen"}
    copied = {"step_id": 2, "source": "agent", "message": "I looked.", "is_copied_context": True}
    copied |= {"tool_calls": [call], "observation": {"results": [result]}}
    document = {
        "schema_version": "ATIF-v1.7",
        "session_id": "s",
        "agent": {"name": "walker", "version": "1"},
        "steps": [
            {"step_id": 1, "source": "user", "message": "Look.", "is_copied_context": True},
            copied,
            {"step_id": 3, "source": "agent", "message": "I go on."},
        ],
    }
    (record,) = load_records(document)
    steps = record.trajectory.steps
    assert [step.source for step in steps] == [Source.USER, Source.SYSTEM, Source.AGENT]
    assert [seen.content for seen in steps[1].observations] == ["seen"]
    written = FORMAT.dump(record)
    assert written["steps"][1]["is_copied_context"] is True
    assert load_records(written) == [record]
