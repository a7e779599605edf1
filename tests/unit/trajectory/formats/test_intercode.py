from __future__ import annotations

import copy
import json

import pytest

from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, read
from agentguard.trajectory.model import Record
from agentguard.trajectory.serialization import encode_meta, encode_step
from tests.unit.trajectory.formats.samples import SAMPLES, records, sample


def test_react_action_is_a_call_of_the_environment_tool() -> None:
    run = records(SAMPLES / "intercode.json")[0].trajectory
    assert [call.name for step in run.steps for call in step.tool_calls] == ["bash", "bash", "submit"]
    assert run.steps[0].tool_calls[0].arguments == {"command": "find /garden -type f"}
    assert run.steps[0].content == "I list the files first."


@pytest.mark.parametrize(
    ("environment", "name", "argument"),
    [("ic_sql", "sql", "query"), ("ic_python", "python", "code"), ("ic_swe", "ic_swe", "action")],
)
def test_action_without_wrapper_is_the_argument(environment: str, name: str, argument: str) -> None:
    data = sample("intercode.json")
    data["7"]["environment"], data["7"]["turn_history"]["actions"][0] = environment, "SHOW TABLES"
    call = load_records(data)[0].trajectory.steps[0].tool_calls[0]
    assert (call.name, call.arguments) == (name, {argument: "SHOW TABLES"})


def test_rewards_are_in_the_annotation_only() -> None:
    (record,) = records(SAMPLES / "intercode.json")
    run = record.trajectory
    text = json.dumps([encode_meta(run), *(encode_step(step) for step in run.steps)])
    assert not any(word in text for word in ("reward", "0.67", "valid_action", "summary"))
    assert record.annotation.failed is True
    assert record.annotation.extra["turn_history"]["valid_action"] == [True, False, True]


@pytest.mark.parametrize(("rewards", "failed"), [([0, 1.0, 0.5], False), ([0, 0, 0], True), ([], None)])
def test_best_reward_decides_the_outcome(rewards: list[float], failed: bool | None) -> None:
    data = sample("intercode.json")
    data["7"]["turn_history"]["rewards"] = rewards
    assert load_records(data)[0].annotation.failed is failed


def test_run_with_an_error_does_not_hide_the_others() -> None:
    data = sample("intercode.json")
    broken = copy.deepcopy(data["7"])
    broken["turn_history"]["observations"].append("one too many")
    first, second, third = read({"6": data["7"], "8": broken, "9": data["7"]})
    assert isinstance(first, Record)
    assert isinstance(third, Record)
    assert isinstance(second, UnreadableRecord)
    assert second.error.field == "8.turn_history.observations"
    assert "4 entries for 3 actions" in str(second.error)
