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
from tests.unit.trajectory.formats.samples import SAMPLES, records, sample


@pytest.fixture
def record() -> Record:
    return records(SAMPLES / "tau2_bench.json")[0]


def test_results_of_parallel_calls_have_their_error_flags(record: Record) -> None:
    turn = record.trajectory.steps[2]
    assert [(seen.tool, seen.is_error) for seen in turn.observations] == [
        ("find_ticket", True),
        ("find_route", False),
    ]
    assert turn.usage == Usage(prompt_tokens=80, completion_tokens=9, cost_usd=0.01)


def test_call_of_the_user_is_part_of_the_users_turn(record: Record) -> None:
    turn = record.trajectory.steps[4]
    assert (turn.source, turn.tool_calls[0].name) == (Source.USER, "restart_phone")
    assert turn.observations[0].content == "restarted"


def test_policy_and_termination_are_typed(record: Record) -> None:
    run = record.trajectory
    assert (run.id, run.exit_status) == ("ferry-task-3-trial-1", "user_stop")
    assert run.system_prompts == {"": "Issue no refund."}
    assert run.task == "My phone shows no ticket."


def test_run_excludes_reward_and_scripts(record: Record) -> None:
    run = record.trajectory
    text = json.dumps([encode_meta(run), *(encode_step(step) for step in run.steps)])
    assert not any(word in text for word in ("reward", "eight", "gold", "db_match"))
    assert (record.annotation.failed, record.annotation.group) == (True, "ferry/3")
    assert record.annotation.extra["task"]["evaluation_criteria"]


def test_calls_without_ids_are_answered_in_order() -> None:
    data = sample("tau2_bench.json")
    messages = data["simulations"][0]["messages"]
    for one in (*messages[2]["tool_calls"], *messages[3]["tool_messages"]):
        one["id"] = ""
    turn = load_records(data)[0].trajectory.steps[2]
    assert [seen.tool for seen in turn.observations] == ["find_ticket", "find_route"]


def test_simulation_with_an_error_does_not_hide_the_others() -> None:
    data = sample("tau2_bench.json")
    data["simulations"].insert(0, {"task_id": "1", "messages": [{"role": 1}]})
    broken, good = read(data)
    assert isinstance(broken, UnreadableRecord)
    assert broken.error.field == "simulations[0].messages[0].role"
    assert isinstance(good, Record)


def test_voice_run_without_messages_counts_its_ticks() -> None:
    data = sample("tau2_bench.json")
    data["simulations"][0] |= {"messages": [], "ticks": [{"tick_id": 0}, {"tick_id": 1}]}
    assert load_records(data)[0].trajectory.unknown_parts == {"tick": 2}


class TestFolder:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        data: dict[str, Any] = sample("tau2_bench.json")
        (tmp_path / "simulations").mkdir()
        (tmp_path / "simulations" / "5f1.json").write_text(json.dumps(data.pop("simulations")[0]))
        (tmp_path / "results.json").write_text(json.dumps(data))
        return tmp_path

    def test_folder_equals_the_single_file(self, folder: Path, record: Record) -> None:
        assert load_records(folder) == [record]

    def test_damaged_simulation_names_its_file(self, folder: Path) -> None:
        (folder / "simulations" / "0.json").write_text("{")
        broken, good = read(folder)
        assert isinstance(broken, UnreadableRecord)
        assert str(broken.error.file).endswith("0.json")
        assert isinstance(good, Record)

    def test_file_without_its_folder_names_the_way_out(self, folder: Path) -> None:
        with pytest.raises(FormatError, match="read the folder"):
            load_records(folder / "results.json")


def test_response_of_the_model_has_reasoning_model_and_stop_reason() -> None:
    (record,) = load_records(SAMPLES / "tau2_bench.raw.json")
    _, user, search, question, *_ = record.trajectory.steps
    assert (search.reasoning, search.model, search.stop_reason) == (
        "I need the booking and the evening ferries.",
        "model-a",
        "tool_use",
    )
    assert (question.reasoning, question.stop_reason) == ("The desk may need the code.", "stop")
    assert (user.reasoning, user.stop_reason) == ("", None)
