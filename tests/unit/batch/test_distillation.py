"""A batch job distils one schema a failed run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from agentguard.batch import BatchJob, DistillationOperation
from agentguard.batch.distillation import DistillationProcessor
from agentguard.errors import ConfigError, JudgeError
from agentguard.schemata.serialization import parse_schema
from agentguard.schemata.signal_trainer import distill_records
from agentguard.trajectory.event_log.log_file import write_log
from tests.unit.batch.test_job import OPTIONS, InlineEngine, build_run, read_letters, write_lines
from tests.unit.judge.runs import group_chat

ROOT = Path(__file__).resolve().parents[3]


def distill(source: Path, output: Path, operation: DistillationOperation) -> list[dict[str, Any]]:
    job = BatchJob([str(source)], str(output), operation, OPTIONS)
    job.run(InlineEngine())
    rows = list(job.iter_rows())
    assert rows == sorted(pyarrow.parquet.read_table(output / "schemata").to_pylist(), key=get_record)
    return rows


def get_record(row: dict[str, Any]) -> int:
    return int(row["record"])


def test_table_has_the_schemata_of_the_library(tmp_path: Path) -> None:
    records = [group_chat(number) for number in range(4)]
    for record in records:
        write_log(record, tmp_path / "runs.jsonl")
    rows = distill(tmp_path / "runs.jsonl", tmp_path / "out", DistillationOperation())
    assert [row["outcome"] for row in rows] == ["distilled"] * 4
    assert tuple(parse_schema(row["schema"]) for row in rows) == distill_records(records)[0]


def test_run_without_failure_is_passed_over(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [build_run(0), "{broken"])
    passed_over, broken = distill(source, tmp_path / "out", DistillationOperation())
    assert (passed_over["outcome"], passed_over["schema"]) == ("passed_over", None)
    assert (broken["outcome"], "not valid JSON" in broken["error"]) == (None, True)


def test_unannotated_runs_are_distilled_if_they_are_diagnosed(tmp_path: Path) -> None:
    source = ROOT / "samples" / "04-wine-bottle.json"
    (plain,) = distill(source, tmp_path / "plain", DistillationOperation())
    (diagnosed,) = distill(source, tmp_path / "diagnosed", DistillationOperation(is_diagnosed=True))
    assert (plain["outcome"], diagnosed["outcome"]) == ("passed_over", "distilled")


def test_judge_that_does_not_answer_leaves_a_retryable_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write_lines(tmp_path / "a.jsonl", [build_run(0)])

    def fail(*_: object) -> None:
        raise JudgeError("timeout: no answer")

    with monkeypatch.context() as patch:
        patch.setattr(DistillationProcessor, "distill", fail)
        (row,) = distill(source, tmp_path / "out", DistillationOperation())
    assert "no answer" in row["error"]
    assert len(read_letters(tmp_path / "out")) == 1
    (row,) = distill(source, tmp_path / "out", DistillationOperation())
    assert row["error"] is None
    assert not read_letters(tmp_path / "out")


def test_model_without_url_is_refused() -> None:
    with pytest.raises(ConfigError, match="--judge"):
        DistillationOperation(judge_model="m")
