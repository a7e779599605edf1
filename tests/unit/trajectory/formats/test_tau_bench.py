from __future__ import annotations

import json
from typing import Any

import pytest

from agentguard.errors import FormatError
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Source
from agentguard.trajectory.serialization import encode_meta, encode_step
from tests.data import shared_data
from tests.unit.trajectory.formats.samples import SAMPLES, parse, records, sample


def test_runs_of_one_task_are_a_group_with_unique_ids() -> None:
    first, second = records(SAMPLES / "tau_bench.json")
    assert (first.trajectory.id, second.trajectory.id) == ("task-4-trial-0", "task-4-trial-1")
    assert first.annotation.group == second.annotation.group == "4"
    assert (first.annotation.failed, second.annotation.failed) == (True, False)


def test_steps_are_read() -> None:
    run = records(SAMPLES / "tau_bench.json")[0].trajectory
    assert [step.source for step in run.steps] == [
        Source.SYSTEM,
        Source.USER,
        Source.AGENT,
        Source.AGENT,
        Source.USER,
    ]
    assert run.task == "Please move me to the front."
    assert run.system_prompts == {"": "Only move seats within a cabin."}
    call, seen = run.steps[2].tool_calls[0], run.steps[2].observations[0]
    assert (call.name, call.arguments, seen.content, seen.call_id) == (
        "get_seat",
        {"user": "ann"},
        "20C",
        "c1",
    )
    assert [step.source_index for step in run.steps] == [0, 1, 2, 4, 5]


def test_run_excludes_the_verdict() -> None:
    for record in records(SAMPLES / "tau_bench.json"):
        run = record.trajectory
        seen = json.dumps([encode_meta(run), *(encode_step(step) for step in run.steps)])
        for secret in ("1A", "hurry", "reward", "actions", "gold", "user_cost"):
            assert secret not in seen
        assert record.annotation.extra["info"]["task"]["actions"]


@pytest.mark.parametrize(
    ("reward", "failed"), [(1, False), (1.0, False), (0.9999999, False), (0.5, True), (None, None)]
)
def test_rewards_are_read(reward: Any, failed: bool | None) -> None:
    assert parse("tau_bench", {"traj": [], "reward": reward}).annotation.failed is failed


def test_run_without_ids_is_named_by_its_position() -> None:
    record = parse("tau_bench", {"traj": [], "reward": 0.0})
    assert record.trajectory.id == "name"
    assert record.annotation.group is None


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"traj": None}, "traj"),
        ({"traj": [{"role": "assistant", "tool_calls": [{"id": "x"}]}]}, "traj[0].tool_calls[0].function"),
        ({"reward": "good"}, "reward"),
        ({"task_id": []}, "task_id"),
    ],
)
def test_errors_name_the_location(change: dict[str, Any], field: str) -> None:
    with pytest.raises(FormatError) as caught:
        parse("tau_bench", {**sample("tau_bench.json")[0], **change})
    assert caught.value.field == field


def test_development_data_is_read() -> None:
    found = load_records(shared_data("tau_bench/gpt-4o-airline.dev.json"))
    assert len(found) == len({record.trajectory.id for record in found}) == 128
    assert len({record.annotation.group for record in found}) == 32
    assert sum(bool(record.annotation.failed) for record in found) == 78
    calls = [call for r in found for s in r.trajectory.steps for call in s.tool_calls]
    results = [seen for r in found for s in r.trajectory.steps for seen in s.observations]
    assert len(calls) == len(results) == 828
    assert all(call.arguments is not None and call.raw_arguments is not None for call in calls)
    assert not any(s.source is Source.ENVIRONMENT for r in found for s in r.trajectory.steps)
