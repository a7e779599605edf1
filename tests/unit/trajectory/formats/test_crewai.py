"""Logs of CrewAI."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentguard.trajectory.formats.reader import load_records, load_trajectory
from agentguard.trajectory.model import Source

SAMPLES = Path(__file__).parents[3] / "contract" / "samples"


@pytest.mark.parametrize("name", ["crewai.json", "crewai.txt"])
def test_tasks_become_turns_of_user_and_agent(name: str) -> None:
    run = load_trajectory(SAMPLES / name)
    assert run.format == "crewai"
    assert run.task == "Find the price of hay."
    assert [(step.source, step.agent) for step in run.steps] == [
        (Source.USER, "CrewAI"),
        (Source.AGENT, "Researcher"),
        (Source.USER, "CrewAI"),
        (Source.AGENT, "Writer"),
    ]
    assert " ".join(run.steps[-1].content.split()) == "Hay costs 9 EUR a bale."
    assert run.steps[1].ended_at is not None
    assert run.steps[1].started_at is not None
    assert run.steps[1].ended_at - run.steps[1].started_at == 20
    assert run.unknown_parts == {}


def test_repeated_kickoff_is_another_run(tmp_path: Path) -> None:
    entries = json.loads((SAMPLES / "crewai.json").read_text())
    file = tmp_path / "log.json"
    file.write_text(json.dumps(entries * 3))
    records = load_records(file)
    assert [record.trajectory.id for record in records] == ["log", "log#1", "log#2"]
    assert [len(record.trajectory.steps) for record in records] == [4, 4, 4]


def test_counts_equal_those_of_the_entries() -> None:
    entries = json.loads((SAMPLES / "crewai.json").read_text())
    run = load_trajectory(SAMPLES / "crewai.json")
    outputs = [entry["output"] for entry in entries if entry["status"] == "completed"]
    assert [step.content for step in run.steps if step.source is Source.AGENT] == outputs


def test_unknown_status_is_counted(tmp_path: Path) -> None:
    entries = json.loads((SAMPLES / "crewai.json").read_text())
    entries.insert(1, entries[0] | {"status": "paused"})
    run = load_trajectory({"entries": entries}["entries"])
    assert run.unknown_parts == {"entry paused": 1}
