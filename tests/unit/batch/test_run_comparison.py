"""The second pass of a batch job gives the verdicts of a comparison in memory."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentguard.batch import InputOptions, run_comparison as batch_comparison
from agentguard.batch.output_folder import BatchOutput
from agentguard.config.policy import Policy
from agentguard.guard import Guard
from agentguard.localize import run_comparison
from agentguard.trajectory.formats.reader import load_trajectory
from tests.unit.batch.test_job import InlineEngine, read_rows, start, write_lines

COMPARED = ("verdict", "probability", "basis", "notes")


def build_run(number: int) -> dict[str, Any]:
    """Return a run of one of two agents; its trouble grows with ``number % 7``."""
    tool, trouble = "browse" if number % 3 else "query", number % 7
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"Find record {number}."}]
    for turn in range(3 + 2 * trouble):
        is_error = turn >= 3 + trouble
        arguments = json.dumps({"id": number * 100 + turn + 7 * trouble})
        call = {"id": f"c{turn}", "type": "function", "function": {"name": tool, "arguments": arguments}}
        messages += [
            {"role": "assistant", "content": "Maybe here. " * trouble, "tool_calls": [call]},
            {
                "role": "tool",
                "tool_call_id": f"c{turn}",
                "content": f"Error: no table {turn}" if is_error else f"row {turn}-{number}",
            },
        ]
    closing = f"The record {number} is found." + " I am not sure, sorry." * trouble
    return {"id": f"run-{number}", "messages": [*messages, {"role": "assistant", "content": closing}]}


@pytest.fixture(scope="module")
def runs() -> list[Any]:
    built: list[Any] = [build_run(number) for number in range(70)]
    return [*built[:30], "{broken", *built[30:]]


def compare_in_memory(runs: list[Any]) -> list[dict[str, Any]]:
    guard = Guard.from_policy(Policy(detector_deadline_s=60.0))
    trajectories = [load_trajectory(run) for run in runs if not isinstance(run, str)]
    diagnosed = run_comparison.compare_runs(
        [(run, guard.diagnose(run)) for run in trajectories], guard.localizer
    )
    return [
        {
            "verdict": str(diagnosis.verdict),
            "probability": diagnosis.probability,
            "basis": str(diagnosis.basis),
            "notes": list(diagnosis.notes),
        }
        for _, diagnosis in diagnosed
    ]


def select_compared(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [{name: row[name] for name in COMPARED} for row in rows if row["run_id"] is not None]


@pytest.mark.parametrize(("rows_per_chunk", "max_compared"), [(64, 1000), (7, 40), (1, 1000)])
def test_batch_job_compares_runs_as_in_memory(
    runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rows_per_chunk: int, max_compared: int
) -> None:
    for module in (batch_comparison, run_comparison):
        monkeypatch.setattr(module, "MAX_COMPARED_RUNS", max_compared)
    job = start(
        [write_lines(tmp_path / "a.jsonl", runs)],
        tmp_path / "out",
        InputOptions(rows_per_chunk=rows_per_chunk),
    )
    summary = job.run(InlineEngine())
    rows = read_rows(tmp_path / "out")
    assert select_compared(rows) == compare_in_memory(runs)
    assert [row["record"] for row in rows] == list(range(71))
    assert {row["basis"] for row in rows} >= {"other_runs"}
    verdicts = [row["verdict"] for row in rows if row["verdict"]]
    assert +summary.outcomes == {verdict: verdicts.count(verdict) for verdict in set(verdicts)}
    assert summary.revised_rows == sum(
        json.loads(row["single_run"])["verdict"] != row["verdict"] for row in rows if row["single_run"]
    )


def test_batch_job_without_a_cause_clears_its_columns(runs: list[Any], tmp_path: Path) -> None:
    start([write_lines(tmp_path / "a.jsonl", runs)], tmp_path / "out").run(InlineEngine())
    rows = [row for row in read_rows(tmp_path / "out") if row["basis"] == "other_runs"]
    passed = [row for row in rows if row["verdict"] == "no_failure_found"]
    assert passed
    assert all((row["step"], row["codes"], row["evidence"]) == (None, [], []) for row in passed)
    assert all(row["step"] is not None for row in rows if row["verdict"] != "no_failure_found")


def test_batch_job_with_grown_input_compares_again(runs: list[Any], tmp_path: Path) -> None:
    options = InputOptions(rows_per_chunk=8)
    path = write_lines(tmp_path / "a.jsonl", runs[:40])
    start([path], tmp_path / "out", options).run(InlineEngine())
    write_lines(path, runs)
    start([path], tmp_path / "out", options).run(InlineEngine())
    start([path], tmp_path / "fresh", options).run(InlineEngine())
    assert read_rows(tmp_path / "out") == read_rows(tmp_path / "fresh")


def test_batch_job_that_stops_during_the_comparison_continues(
    runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = InputOptions(rows_per_chunk=8)
    path = write_lines(tmp_path / "a.jsonl", runs)
    replace_rows = BatchOutput.replace_rows
    replaced: list[str] = []

    def stop_at_the_third(self: BatchOutput, slot: str, rows: Any) -> None:
        if len(replaced) == 2:
            raise KeyboardInterrupt
        replaced.append(slot)
        replace_rows(self, slot, rows)

    with monkeypatch.context() as patch:
        patch.setattr(BatchOutput, "replace_rows", stop_at_the_third)
        with pytest.raises(KeyboardInterrupt):
            start([path], tmp_path / "out", options).run(InlineEngine())
    summary = start([path], tmp_path / "out", options).run(InlineEngine())
    assert (summary.rows, summary.resumed_rows) == (0, 71)
    start([path], tmp_path / "fresh", options).run(InlineEngine())
    assert read_rows(tmp_path / "out") == read_rows(tmp_path / "fresh")


def test_repeated_comparison_writes_nothing(
    runs: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write_lines(tmp_path / "a.jsonl", runs)
    start([path], tmp_path / "out").run(InlineEngine())
    monkeypatch.setattr(BatchOutput, "replace_rows", lambda *_: pytest.fail("an equal part is written"))
    assert start([path], tmp_path / "out").run(InlineEngine()).revised_rows == 0
