from __future__ import annotations

import json
from pathlib import Path

import pyarrow.parquet
import pytest
from typer.testing import CliRunner, Result

from agentguard.batch import JobSummary
from agentguard.cli.app import build_app
from agentguard.cli.batch_mode import format_progress

RUN = {"messages": [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": "Two."}]}


def call(*arguments: object) -> Result:
    return CliRunner().invoke(build_app(), ["diagnose", *map(str, arguments)])


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "runs.jsonl"
    path.write_text("".join(json.dumps({"id": f"run-{number}", **RUN}) + "\n" for number in range(3)))
    return path


@pytest.mark.process
def test_rows_are_written_and_resumed(source: Path, tmp_path: Path) -> None:
    first = call(source, "--batch-output", tmp_path / "out", "--jobs", 2)
    assert first.exit_code == 0, first.output
    assert "3 rows:" in first.stdout
    assert pyarrow.parquet.read_table(tmp_path / "out" / "verdicts").num_rows == 3
    again = call(f"file://{source}", "--batch-output", tmp_path / "out", "--jobs", 2, "--json")
    assert json.loads(again.stdout)["resumed_rows"] == 3


@pytest.mark.process
def test_unreadable_rows_set_the_exit_status_and_name_the_dead_letters(source: Path, tmp_path: Path) -> None:
    source.write_text(source.read_text() + "{broken\n")
    result = call(source, "--batch-output", f"{tmp_path}/out/", "--jobs", 2)
    assert result.exit_code == 1
    assert "1 without a result" in result.stdout
    assert f"{tmp_path}/out/dead_letters" in result.stdout
    source.write_text("{broken\n")
    assert call(source, "--batch-output", tmp_path / "out2", "--jobs", 2).exit_code == 2


def test_dry_run_writes_no_verdict(source: Path, tmp_path: Path) -> None:
    result = call(source, "--batch-output", tmp_path / "out", "--dry-run", "--limit", 2)
    assert result.exit_code == 0, result.output
    assert "1 file, 2 rows, 0 of them done" in result.stdout
    assert not (tmp_path / "out" / "verdicts").exists()


def test_number_of_workers_is_exact(source: Path, tmp_path: Path) -> None:
    result = call(source, "--batch-output", tmp_path / "out", "--dry-run", "--jobs", 1)
    assert "with 1 worker" in result.stdout


def test_number_of_workers_does_not_change_the_configuration(source: Path, tmp_path: Path) -> None:
    judge = ("--judge", "http://127.0.0.1:9/v1", "--judge-model", "m", "--dry-run")
    for workers in (2, 20):
        result = call(source, "--batch-output", f"{tmp_path}/out/", *judge, "--jobs", workers)
        assert result.exit_code == 0, result.output


def test_standard_input_is_refused(tmp_path: Path) -> None:
    result = call("-", "--batch-output", tmp_path / "out")
    assert result.exit_code == 2
    assert "standard input cannot be read again" in result.output


def test_progress_names_the_remaining_time_and_the_cost() -> None:
    summary = JobSummary(rows=300, share=0.25, cost_usd=1.5)
    assert format_progress(summary, 60.0) == "300 rows, 5 rows/s, 25 %, 0:03:00 left, $1.50"
    assert "left" not in format_progress(JobSummary(), 60.0)
