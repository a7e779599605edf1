"""``agentguard inject runs``: readable output, continuation after an interruption, and clear errors."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentguard.cli.app import build_app
from agentguard.evals.inject.edits.base import get_edit_registry
from agentguard.trajectory.event_log.log_file import write_log
from agentguard.trajectory.formats.reader import load_records
from agentguard.trajectory.model import Record
from tests.unit.evals.inject.runs import shop


def run(*arguments: str | Path) -> Any:
    return CliRunner().invoke(build_app(), ["inject", *map(str, arguments)])


def judged(record: Record, failed: bool | None) -> Record:
    return replace(record, annotation=replace(record.annotation, failed=failed))


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "passed.jsonl"
    for number in range(3):
        run = replace(shop().trajectory, id=f"run-{number}", extra={"number": number})
        write_log(replace(shop(), trajectory=run), path)
    return path


def test_injected_log_round_trips_with_labels(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "failed.jsonl"
    result = run("runs", log, "--output", out, "--per-run", 3, "--seed", 5, "--json")
    assert result.exit_code == 0
    records = load_records(out)
    assert len(records) == 9
    for record in records:
        told = record.annotation.extra["injected"]
        assert record.annotation.failed
        assert record.annotation.extra["origin"] == "injected"
        assert record.annotation.group == "q 1"
        assert record.annotation.root_cause.codes == get_edit_registry().get(told["edit"]).codes
        assert told["source_run"].startswith("run-")
    summary = json.loads(result.stdout)
    assert summary["written"] == summary["failed"] == sum(summary["by_code"].values()) == 9
    assert {path.name for path in tmp_path.iterdir()} == {"passed.jsonl", "failed.jsonl"}


def test_three_formats_contain_the_same_runs(log: Path, tmp_path: Path) -> None:
    outs = [tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz", tmp_path / "folder"]
    for out in outs:
        assert run("runs", log, "--output", out, "--seed", 2).exit_code == 0
    plain, packed, folder = (load_records(out, format="event_log") for out in outs)
    assert plain == packed
    assert sorted(plain, key=lambda r: r.trajectory.id) == sorted(folder, key=lambda r: r.trajectory.id)
    assert gzip.decompress(outs[1].read_bytes()) == outs[0].read_bytes()


def test_same_seed_writes_the_same_bytes(log: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        run("runs", log, "--output", tmp_path / f"{name}.jsonl.gz", "--per-run", 2)
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()
    run("runs", log, "--output", tmp_path / "c.jsonl.gz", "--per-run", 2, "--seed", 1)
    assert (tmp_path / "c.jsonl.gz").read_bytes() != (tmp_path / "b.jsonl.gz").read_bytes()


@pytest.mark.parametrize("cut", [0, 1, 400, 3_000, -1, -20])
@pytest.mark.parametrize("name", ["x.jsonl", "x.jsonl.gz"])
def test_interrupted_injection_resumes(log: Path, tmp_path: Path, name: str, cut: int) -> None:
    arguments = ("runs", log, "--output", tmp_path / name, "--per-run", 3)
    run(*arguments)
    whole = (tmp_path / name).read_bytes()
    plain = gzip.decompress(whole) if name.endswith("gz") else whole
    (tmp_path / name).unlink()
    (tmp_path / f"{name}.part").write_bytes(plain[:cut])
    refused = run(*arguments)
    assert refused.exit_code == 2
    assert "--resume" in refused.output
    result = run(*arguments, "--resume", "--json")
    assert result.exit_code == 0
    assert (tmp_path / name).read_bytes() == whole
    summary = json.loads(result.stdout)
    assert summary["written"] + summary["kept"] == 9
    assert not (tmp_path / f"{name}.part").exists()


def test_part_file_of_interrupted_command_is_not_resumed_by_another(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from agentguard.evals.datasets.writer import DatasetWriter

    out = tmp_path / "x.jsonl"
    written = []
    add = DatasetWriter.write

    def stopped(self: DatasetWriter, record: Record) -> bool:
        if len(written) == 4:
            raise KeyboardInterrupt
        written.append(record)
        return add(self, record)

    with monkeypatch.context() as patch:
        patch.setattr(DatasetWriter, "write", stopped)
        assert run("runs", log, "--output", out, "--per-run", 3).exit_code == 130
    assert not out.exists()
    other = run("runs", log, "--output", out, "--per-run", 2, "--resume")
    assert other.exit_code == 2
    assert "another command" in other.output
    result = run("runs", log, "--output", out, "--per-run", 3, "--resume", "--json")
    assert json.loads(result.stdout)["kept"] == 4
    assert len(load_records(out)) == 9


def test_interrupted_folder_resumes(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "runs"
    run("runs", log, "--output", out, "--per-run", 3)
    out.rename(tmp_path / "runs.part")
    gone = sorted((tmp_path / "runs.part").glob("*.jsonl"))[:2]
    for file in gone:
        file.unlink()
    result = run("runs", log, "--output", out, "--per-run", 3, "--resume", "--json")
    assert json.loads(result.stdout)["written"] == 2
    assert all((out / file.name).exists() for file in gone)


def test_existing_output_is_kept_by_default(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.jsonl"
    out.write_text("mine")
    result = run("runs", log, "--output", out)
    assert result.exit_code == 2
    assert "--force" in result.output
    assert out.read_text() == "mine"
    assert run("runs", log, "--output", out, "--force").exit_code == 0
    assert load_records(out)


def test_runs_without_passed_label_are_rejected(tmp_path: Path) -> None:
    log = tmp_path / "mixed.jsonl"
    for number, failed in enumerate((True, None, False)):
        trajectory = replace(shop().trajectory, id=f"run-{number}")
        write_log(judged(replace(shop(), trajectory=trajectory), failed), log)
    result = run("runs", log, "--output", tmp_path / "a.jsonl", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["refused"] == 2
    assert "run-0: the run failed already" in result.stderr
    assert "run-1: the run is not known to have passed (--assume-passed" in result.stderr
    result = run("runs", log, "--output", tmp_path / "b.jsonl", "--json", "--assume-passed")
    assert json.loads(result.stdout)["refused"] == 1


def test_empty_result_is_an_error_without_output(tmp_path: Path) -> None:
    log = tmp_path / "failed.jsonl"
    write_log(judged(shop(), True), log)
    result = run("runs", log, "--output", tmp_path / "out.jsonl")
    assert result.exit_code == 2
    assert "no run is written" in result.output
    assert run("runs", tmp_path / "absent.jsonl", "--output", tmp_path / "out.jsonl").exit_code == 2
    assert {path.name for path in tmp_path.iterdir()} == {"failed.jsonl"}


def test_kinds_and_rates_are_respected(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    result = run("runs", log, "--output", out, "--kinds", "repeat_loop,step_limit", "--per-run", 2, "--json")
    assert set(json.loads(result.stdout)["by_edit"]) <= {"repeat_loop", "step_limit"}
    rates = tmp_path / "rates.toml"
    rates.write_text("format_error = 2\nrepeat_loop = 0\n")
    result = run("runs", log, "--output", out, "--rates", rates, "--force", "--json")
    assert set(json.loads(result.stdout)["by_edit"]) == {"format_error"}
    rates.write_text("no_such_edit = 2\n")
    assert "no edit named" in run("runs", log, "--output", out, "--rates", rates, "--force").output
    for text in ("a = 'b'", "a = -1", "[", "repeat_loop = 0"):
        rates.write_text(text)
        assert run("runs", log, "--output", out, "--rates", rates, "--force").exit_code == 2
    assert run("runs", log, "--output", out, "--rates", "often", "--force").exit_code == 2
    assert run("runs", log, "--output", out, "--kinds", "often", "--force").exit_code == 2


def test_passed_sources_are_written_on_request(log: Path, tmp_path: Path) -> None:
    out = tmp_path / "a.jsonl"
    run("runs", log, "--output", out, "--with-passed")
    records = load_records(out)
    passed = [r for r in records if r.annotation.failed is False]
    assert len(passed) == 3
    for record in records:
        assert len(record.trajectory.id) == 16
        assert "run-" not in record.trajectory.id
        assert "reward" not in record.annotation.extra


def test_kinds_are_listed() -> None:
    listed = json.loads(run("kinds", "--json").stdout)
    assert [one["name"] for one in listed] == list(get_edit_registry().names())
    shown = run("kinds").output
    assert all(one["codes"][0].split(":")[1][:8] in shown for one in listed)
