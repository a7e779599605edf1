from __future__ import annotations

from typing import Any

import pytest

from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Source
from tests.unit.trajectory.formats.samples import SAMPLES, lines, records


def test_thoughts_belong_to_the_next_action() -> None:
    run = records(SAMPLES / "alfworld.jsonl")[0].trajectory
    assert [step.source for step in run.steps] == [
        *(Source.USER, Source.AGENT, Source.AGENT, Source.AGENT),
        *(Source.ENVIRONMENT, Source.AGENT),
    ]
    first = run.steps[1]
    assert first.content == "think: A lantern may be in crate 1."
    assert first.tool_calls[0].arguments == {"command": "go to crate 1"}
    assert first.observations[0].content == "On the crate 1, you see a lantern 1."
    assert (run.steps[3].content, run.steps[4].content) == ("think: Now the barrel.", "OK.")


def test_text_before_the_first_turn_is_the_task() -> None:
    run = records(SAMPLES / "alfworld.txt")[0].trajectory
    assert run.task.startswith("You are in a cellar.")
    assert run.task.endswith("put some lantern in barrel.")


def test_last_thought_without_an_action_is_a_turn() -> None:
    data = lines("alfworld.jsonl")[0]
    data["traj"] += "\n> Think: Another way is open."
    assert load_records(data)[0].trajectory.steps[-1].content == "Think: Another way is open."


@pytest.mark.parametrize(
    ("result", "failed"), [(True, False), (False, True), (0, True), (1, False), (None, None), ("?", None)]
)
def test_result_is_the_outcome(result: Any, failed: bool | None) -> None:
    (record,) = load_records(lines("alfworld.jsonl")[0] | {"result": result})
    assert record.annotation.failed is failed
    assert "result" not in record.trajectory.extra


def test_games_of_a_task_are_a_group() -> None:
    assert len({record.annotation.group for record in records(SAMPLES / "alfworld.jsonl")}) == 1
