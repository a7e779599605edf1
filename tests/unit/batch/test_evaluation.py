"""A batch job evaluates methods like an evaluation in memory."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from agentguard.batch import BatchJob, EvaluationOperation, InputOptions, score_rows
from agentguard.batch.evaluation import EvaluationProcessor
from agentguard.errors import ConfigError, EvaluationError
from agentguard.evals.evaluate import Evaluation, evaluate
from agentguard.evals.methods import resolve_method
from agentguard.evals.result import Setting
from agentguard.trajectory.event_log.recorder import build_events
from agentguard.trajectory.model import Annotation, Record
from tests.unit.batch.test_job import InlineEngine
from tests.unit.judge.runs import group_chat

OPTIONS = InputOptions(rows_per_chunk=2, document_column="document")
EMBEDDED, LAST_ERROR = resolve_method("embedded"), resolve_method("last_error")


def write_records(path: Path, records: list[Record], *others: str) -> Path:
    rows = [{"document": json.dumps(list(build_events(record)))} for record in records]
    path.write_text("".join(f"{row}\n" for row in (*map(json.dumps, rows), *others)))
    return path


def select_scores(result: Evaluation) -> dict[str, Any]:
    """Return the scores; a job measures no durations and omits trained baselines."""
    omitted = ("dataset", "method", "baselines", "seconds", "fit_seconds", "locate_seconds", "broken")
    return {
        name: value for name, value in result.as_dict().items() if name not in (*omitted, "above_baselines")
    }


def build_job(source: Path, output: Path, operation: EvaluationOperation) -> BatchJob:
    return BatchJob([str(source)], str(output), operation, OPTIONS)


@pytest.fixture(scope="module")
def records() -> list[Record]:
    return [group_chat(number) for number in range(6)]


def test_scores_equal_those_of_an_evaluation_in_memory(records: list[Record], tmp_path: Path) -> None:
    source = write_records(tmp_path / "runs.jsonl", records, "{broken")
    methods = (EMBEDDED, LAST_ERROR)
    job = build_job(source, tmp_path / "out", EvaluationOperation(methods=methods))
    assert job.run(InlineEngine()).errors == 1
    results, data = score_rows(job.iter_rows(), methods, dataset="runs")
    for spec, result in zip(methods, results, strict=True):
        expected = evaluate(records, spec.build())
        assert select_scores(result) == select_scores(expected)
        for label, baseline in result.baselines.items():
            assert select_scores(baseline) == select_scores(expected.baselines[label])
    assert [(one.file, one.record) for one in data.broken] == [("runs.jsonl", 6)]
    assert results[0].baselines.keys() == {
        "first_step",
        "last_step",
        "two_line",
        "last_error",
        "first_finding",
    }


def test_table_has_the_annotation_and_the_prediction_of_the_first_method(
    records: list[Record], tmp_path: Path
) -> None:
    source = write_records(tmp_path / "runs.jsonl", records[:1])
    job = build_job(source, tmp_path / "out", EvaluationOperation(methods=(LAST_ERROR,)))
    job.run(InlineEngine())
    (row,) = pyarrow.parquet.read_table(tmp_path / "out" / "predictions").to_pylist()
    cause = records[0].annotation.root_cause
    assert cause is not None
    assert (row["annotated_step"], row["annotated_agent"]) == (cause.step, cause.agent)
    assert row["method"] == "last_error"
    assert row["step"] == json.loads(row["predictions"])["last_error"]["steps"][0]


def test_runs_without_annotation_cannot_be_scored(records: list[Record], tmp_path: Path) -> None:
    plain = [replace(record, annotation=Annotation()) for record in records[:2]]
    source = write_records(tmp_path / "runs.jsonl", plain)
    job = build_job(source, tmp_path / "out", EvaluationOperation(methods=(LAST_ERROR,)))
    job.run(InlineEngine())
    with pytest.raises(EvaluationError, match="no run is annotated"):
        score_rows(job.iter_rows(), (LAST_ERROR,), dataset="runs")


def test_training_runs_are_scored_only_on_request(
    records: list[Record], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(EvaluationProcessor, "_is_training_run", lambda *_: True)
    source = write_records(tmp_path / "runs.jsonl", records[:2])
    job = build_job(source, tmp_path / "out", EvaluationOperation(methods=(EMBEDDED,)))
    job.run(InlineEngine())
    with pytest.raises(EvaluationError, match="trained on 2 of the 2 runs"):
        score_rows(job.iter_rows(), (EMBEDDED,), dataset="runs")
    (result,), _ = score_rows(job.iter_rows(), (EMBEDDED,), dataset="runs", allow_training_data=True)
    assert result.setting is Setting.TRAINING_DATA


def test_method_that_must_be_trained_is_refused() -> None:
    with pytest.raises(ConfigError, match="learns from annotated runs"):
        EvaluationOperation(methods=(resolve_method("label_copy"),))
