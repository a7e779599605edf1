"""A batch job converts runs to documents, which another job reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from agentguard.batch import BatchJob, ConversionOperation, DiagnosisOperation, InputOptions
from agentguard.config.policy import Policy
from agentguard.errors import ConfigError
from agentguard.trajectory.formats.reader import load_records
from tests.unit.batch.test_job import OPTIONS, InlineEngine, build_run, read_letters, read_rows, write_lines

SECRET_RUN = {
    "id": "run-9",
    "messages": [
        {"role": "user", "content": "Mail ann@example.org about TCK-1."},
        {"role": "assistant", "content": "Done."},
    ],
}


def convert(source: Path, output: Path, operation: ConversionOperation) -> list[dict[str, Any]]:
    BatchJob([str(source)], str(output), operation, OPTIONS).run(InlineEngine())
    table = pyarrow.parquet.read_table(output / "runs")
    return sorted(table.to_pylist(), key=lambda row: row["record"])


@pytest.mark.parametrize("target", ["event_log", "atif", "openai_chat"])
def test_document_is_the_run_in_the_target_format(tmp_path: Path, target: str) -> None:
    source = write_lines(tmp_path / "a.jsonl", [build_run(0), "{broken", build_run(2)])
    first, broken, last = convert(source, tmp_path / "out", ConversionOperation(target=target))
    assert (broken["target"], broken["document"]) == (None, None)
    assert "not valid JSON" in broken["error"]
    assert [row["run_id"] for row in (first, last)] == ["run-0", "run-2"]
    (tmp_path / "document.json").write_text(first["document"])
    (record,) = load_records(tmp_path / "document.json")
    assert [step.content for step in record.trajectory.steps] == ["Task 0?", "Answer 0."]


def test_documents_are_diagnosed_like_the_original_runs(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [build_run(number) for number in range(3)])
    convert(source, tmp_path / "out", ConversionOperation(target="event_log"))
    verdicts = []
    for path, options in (
        (source, InputOptions()),
        (tmp_path / "out" / "runs", InputOptions(document_column="document")),
    ):
        output = tmp_path / f"verdicts-{path.name}"
        BatchJob([str(path)], str(output), DiagnosisOperation(Policy()), options).run(InlineEngine())
        rows = sorted(read_rows(output), key=lambda row: row["run_id"])
        verdicts.append([(row["run_id"], row["verdict"], row["probability"], row["error"]) for row in rows])
    assert verdicts[0] == verdicts[1]


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
def test_row_without_document_names_the_column(tmp_path: Path, name: str) -> None:
    rows = [{"body": json.dumps(build_run(0))}, {"body": None}, {"body": "{"}]
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / name)
    else:
        write_lines(tmp_path / name, rows)
    options = InputOptions(document_column="body")
    job = BatchJob([str(tmp_path / name)], str(tmp_path / "out"), DiagnosisOperation(Policy()), options)
    assert job.run(InlineEngine()).errors == 2
    letters = read_letters(tmp_path / "out")
    assert [letter["record"] for letter in letters] == [1, 2]
    assert "body" in letters[0]["error"]
    assert "not valid JSON" in letters[1]["error"]


def test_secrets_are_redacted_and_unreadable_rows_are_not_copied(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [SECRET_RUN, "{ann@example.org"])
    operation = ConversionOperation(target="openai_chat", redaction_patterns=(("ticket", r"TCK-\d+"),))
    first, second = convert(source, tmp_path / "out", operation)
    assert first["redacted"] > 1
    assert second["redacted"] is None
    written = b"".join(path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert "ann@example.org" not in first["document"]
    assert b"ann@example.org" not in written


def test_other_target_on_the_same_folder_is_refused(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "a.jsonl", [build_run(0)])
    convert(source, tmp_path / "out", ConversionOperation(target="atif"))
    with pytest.raises(ConfigError, match=r"another configuration \(different: target\)"):
        convert(source, tmp_path / "out", ConversionOperation(target="openai_chat"))
    with pytest.raises(ConfigError, match="operation"):
        BatchJob([str(source)], str(tmp_path / "out"), DiagnosisOperation(Policy()), OPTIONS)


def test_format_that_can_only_be_read_is_refused() -> None:
    with pytest.raises(ConfigError, match="can only be read"):
        ConversionOperation(target="swe_agent")
