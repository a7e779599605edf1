"""A batch job writes one row a run, resumes, and keeps rows that it cannot read."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest
import zstandard

from agentguard.batch import BatchJob, DiagnosisOperation, InputOptions, JobSummary
from agentguard.batch.chunks import Chunk, InputPosition, iter_chunks, list_input_files
from agentguard.batch.processor import ChunkProcessor, ChunkResult, ProcessorConfig
from agentguard.batch.verdict_table import VERDICT_TABLE
from agentguard.config.policy import Policy
from agentguard.errors import ConfigError

OPTIONS = InputOptions(rows_per_chunk=2)


class InlineEngine:
    """Engine in the test's own process; it stops after ``max_chunks``."""

    def __init__(self, max_chunks: int | None = None) -> None:
        self.max_chunks = max_chunks
        self.processed: list[Chunk] = []

    def run(self, chunks: Iterator[Chunk], config: ProcessorConfig) -> Iterator[tuple[Chunk, ChunkResult]]:
        processor = ChunkProcessor(config)
        for chunk in chunks:
            if self.max_chunks is not None and len(self.processed) >= self.max_chunks:
                return
            self.processed.append(chunk)
            yield chunk, processor.process(chunk)


def build_run(number: int) -> dict[str, Any]:
    turns = [
        {"role": "user", "content": f"Task {number}?"},
        {"role": "assistant", "content": f"Answer {number}."},
    ]
    return {"id": f"run-{number}", "messages": turns}


def write_lines(path: Path, runs: list[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{run if isinstance(run, str) else json.dumps(run)}\n" for run in runs))
    return path


def write_runs(path: Path, runs: list[Any]) -> Path:
    """Write runs as Parquet or as JSON Lines, compressed according to the name."""
    data = "".join(f"{json.dumps(run)}\n" for run in runs).encode()
    if path.suffix == ".parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(runs), path)
    else:
        compress = {".gz": gzip.compress, ".zst": zstandard.compress}.get(path.suffix, bytes)
        path.write_bytes(compress(data))
    return path


def start(inputs: list[Path | str], output: Path | str, options: InputOptions = OPTIONS) -> BatchJob:
    return BatchJob([str(one) for one in inputs], str(output), DiagnosisOperation(Policy()), options)


def read_rows(output: Path) -> list[dict[str, Any]]:
    table = pyarrow.parquet.read_table(output / "verdicts")
    return sorted(table.to_pylist(), key=lambda row: (row["source"], row["record"]))


def read_letters(output: Path) -> list[dict[str, Any]]:
    paths = sorted((output / "dead_letters").glob("*.jsonl"))
    return [json.loads(line) for path in paths for line in path.read_text().splitlines()]


class TestInput:
    @pytest.mark.parametrize("name", ["runs.jsonl", "runs.jsonl.gz", "runs.jsonl.zst", "runs.parquet"])
    def test_each_kind_of_file_gives_one_row_a_run(self, tmp_path: Path, name: str) -> None:
        runs = [build_run(number) for number in range(5)]
        path = write_runs(tmp_path / name, runs)
        summary = start([path], tmp_path / "out").run(InlineEngine())
        rows = read_rows(tmp_path / "out")
        assert [row["run_id"] for row in rows] == [run["id"] for run in runs]
        assert {(row["source"], row["format"], row["error"]) for row in rows} == {(name, "openai_chat", None)}
        assert (summary.rows, summary.errors, summary.outcomes.total()) == (5, 0, 5)

    def test_schema_is_fixed(self, tmp_path: Path) -> None:
        start([write_lines(tmp_path / "a.jsonl", [build_run(0)])], tmp_path / "out").run(InlineEngine())
        (part,) = (tmp_path / "out" / "verdicts").iterdir()
        schema = pyarrow.parquet.read_schema(part)
        assert schema.names == list(VERDICT_TABLE.columns)
        manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
        assert manifest["columns"] == VERDICT_TABLE.columns

    def test_file_whose_runs_span_lines_is_read_as_a_whole(self, tmp_path: Path) -> None:
        messages = build_run(0)["messages"] + build_run(1)["messages"]
        start([write_lines(tmp_path / "log.jsonl", messages)], tmp_path / "out").run(InlineEngine())
        (row,) = read_rows(tmp_path / "out")
        assert (row["steps"], row["error"]) == (4, None)

    def test_folder_with_partitions_is_filtered_and_mirrored(self, tmp_path: Path) -> None:
        for day in (1, 2):
            write_lines(tmp_path / "in" / f"day={day}" / "a.jsonl", [build_run(day)])
        options = InputOptions(partitions=("day=2",))
        start([tmp_path / "in"], tmp_path / "out", options).run(InlineEngine())
        (part,) = (tmp_path / "out" / "verdicts").rglob("*.parquet")
        assert part.parent.name == "day=2"
        assert pyarrow.parquet.ParquetFile(part).metadata.num_rows == 1

    def test_glob_selects_files(self, tmp_path: Path) -> None:
        for name in ("a1", "a2", "b1"):
            write_lines(tmp_path / f"{name}.jsonl", [build_run(0)])
        start([f"{tmp_path}/a*.jsonl"], tmp_path / "out").run(InlineEngine())
        assert [row["source"] for row in read_rows(tmp_path / "out")] == ["a1.jsonl", "a2.jsonl"]

    def test_other_file_systems_are_read_and_written(self) -> None:
        import fsspec

        system = fsspec.filesystem("memory")
        system.pipe_file("/in/a.jsonl", json.dumps(build_run(0)).encode() + b"\n")
        system.pipe_file("/in/one.json", json.dumps(build_run(1)).encode())
        summary = start(["memory://in"], "memory://out").run(InlineEngine())
        assert summary.rows == 2
        assert len(system.find("/out/verdicts")) == 2
        assert start(["memory://in"], "memory://out").run(InlineEngine()).resumed_rows == 2

    def test_id_column_names_the_run(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "a.jsonl", [build_run(0) | {"trace": "t-9"}])
        start([path], tmp_path / "out", InputOptions(id_column="trace")).run(InlineEngine())
        assert read_rows(tmp_path / "out")[0]["run_id"] == "t-9"

    @pytest.mark.parametrize("pattern", ["nothing.jsonl", "no*.jsonl", "nosuchprotocol://x/a.jsonl"])
    def test_input_without_files_is_refused(self, tmp_path: Path, pattern: str) -> None:
        pattern = pattern if "://" in pattern else str(tmp_path / pattern)
        with pytest.raises(ConfigError, match=r"no file of runs|cannot be listed|nosuchprotocol"):
            start([pattern], tmp_path / "out")

    def test_sample_and_limit_select_the_same_rows_again(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "a.jsonl", [build_run(number) for number in range(40)])
        chosen = []
        for number in (1, 2):
            output = tmp_path / f"out{number}"
            start([path], output, InputOptions(rows_per_chunk=8, sample=0.5, limit=10)).run(InlineEngine())
            chosen.append([row["record"] for row in read_rows(output)])
        assert chosen[0] == chosen[1]
        assert len(chosen[0]) == 10


class TestDeadLetters:
    def test_unreadable_rows_are_kept_and_do_not_stop_the_job(self, tmp_path: Path) -> None:
        runs: list[Any] = [build_run(0), "{broken", {"messages": [{}]}, build_run(3)]
        summary = start([write_lines(tmp_path / "a.jsonl", runs)], tmp_path / "out").run(InlineEngine())
        rows = read_rows(tmp_path / "out")
        assert [row["record"] for row in rows] == [0, 1, 2, 3]
        assert [row["error"] is None for row in rows] == [True, False, False, True]
        assert summary.errors == 2
        letters = read_letters(tmp_path / "out")
        assert [(letter["record"], letter["data"].strip()) for letter in letters] == [
            (1, "{broken"),
            (2, json.dumps(runs[2])),
        ]
        assert "not valid JSON" in letters[0]["error"]
        assert "messages[0].role" in letters[1]["error"]

    @pytest.mark.parametrize("name", ["a.parquet", "a.jsonl.gz", "a.json"])
    def test_damaged_file_is_one_error_row(self, tmp_path: Path, name: str) -> None:
        (tmp_path / name).write_bytes(b"\x00\x01 damaged")
        write_lines(tmp_path / "good.jsonl", [build_run(0)])
        start([tmp_path], tmp_path / "out").run(InlineEngine())
        rows = {row["source"]: row for row in read_rows(tmp_path / "out")}
        assert rows[name]["error"]
        assert rows["good.jsonl"]["error"] is None


class TestResumption:
    def test_finished_chunks_are_not_processed_again(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "a.jsonl", [build_run(number) for number in range(9)])
        start([path], tmp_path / "out").run(InlineEngine(max_chunks=3))
        engine = InlineEngine()
        summary = start([path], tmp_path / "out").run(engine)
        assert (summary.resumed_rows, summary.rows) == (6, 3)
        assert [chunk.records for chunk in engine.processed] == [(6, 7), (8,)]
        assert [row["record"] for row in read_rows(tmp_path / "out")] == list(range(9))

    def test_grown_input_adds_rows_and_doubles_none(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "a.jsonl", [build_run(number) for number in range(3)])
        start([path], tmp_path / "out").run(InlineEngine())
        write_lines(path, [build_run(number) for number in range(6)])
        write_lines(tmp_path / "b.jsonl", [build_run(9)])
        summary = start([tmp_path / "*.jsonl"], tmp_path / "out").run(InlineEngine())
        assert summary.resumed_rows == 2
        rows = read_rows(tmp_path / "out")
        assert [(row["source"], row["record"]) for row in rows] == [
            *(("a.jsonl", number) for number in range(6)),
            ("b.jsonl", 0),
        ]

    def test_retryable_failure_is_processed_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        path = write_lines(tmp_path / "a.jsonl", [build_run(0)])
        process = ChunkProcessor.process

        def fail_softly(self: ChunkProcessor, chunk: Chunk) -> ChunkResult:
            result = process(self, chunk)
            result.is_retryable = True
            return result

        with monkeypatch.context() as patch:
            patch.setattr(ChunkProcessor, "process", fail_softly)
            start([path], tmp_path / "out").run(InlineEngine())
        assert [
            part.name.endswith(".retry.parquet") for part in (tmp_path / "out" / "verdicts").iterdir()
        ] == [True]
        summary = start([path], tmp_path / "out").run(InlineEngine())
        assert (summary.rows, summary.resumed_rows) == (1, 0)
        assert len(read_rows(tmp_path / "out")) == 1
        assert start([path], tmp_path / "out").run(InlineEngine()).resumed_rows == 1

    def test_leftover_of_a_killed_writer_is_ignored(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "a.jsonl", [build_run(0)])
        start([path], tmp_path / "out").run(InlineEngine())
        (part,) = (tmp_path / "out" / "verdicts").iterdir()
        part.with_name(part.name + ".tmp").write_bytes(b"half")
        assert start([path], tmp_path / "out").run(InlineEngine()).resumed_rows == 1

    def test_output_of_another_policy_is_refused(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "a.jsonl", [build_run(0)])
        start([path], tmp_path / "out").run(InlineEngine())
        operation = DiagnosisOperation(Policy(enabled_detectors=("tool_error",)))
        with pytest.raises(ConfigError, match=r"\(different: policy.enabled_detectors\)"):
            BatchJob([str(path)], str(tmp_path / "out"), operation, OPTIONS)

    def test_folder_with_other_files_is_refused(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "a.jsonl", [build_run(0)])
        with pytest.raises(ConfigError, match="name an empty folder"):
            start([path], tmp_path)


class TestCost:
    def test_estimate_counts_and_writes_nothing(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "a.jsonl", [build_run(number) for number in range(5)])
        start([path], tmp_path / "out").run(InlineEngine(max_chunks=1))
        before = sorted((tmp_path / "out").rglob("*"))
        estimate = start([path], tmp_path / "out").estimate()
        assert (estimate.files, estimate.rows, estimate.finished_rows) == (1, 5, 2)
        assert estimate.seconds_per_row > 0
        assert sorted((tmp_path / "out").rglob("*")) == before

    def test_cost_limit_stops_new_chunks(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "a.jsonl", [build_run(number) for number in range(6)])

        class CostlyEngine(InlineEngine):
            def run(self, chunks: Any, config: ProcessorConfig) -> Iterator[tuple[Chunk, ChunkResult]]:
                for chunk, result in super().run(chunks, config):
                    for row in result.rows:
                        row["cost_usd"] = 1.0
                    yield chunk, result

        summary = start([path], tmp_path / "out").run(CostlyEngine(), max_cost_usd=3.0)
        assert (summary.rows, summary.cost_usd, summary.is_complete) == (4, 4.0, False)


class TestProgress:
    @pytest.mark.parametrize("name", ["runs.jsonl", "runs.jsonl.gz", "runs.jsonl.zst", "runs.parquet"])
    def test_share_grows_to_the_complete_input(self, tmp_path: Path, name: str) -> None:
        runs = [build_run(number) for number in range(600)]
        write_runs(tmp_path / name, runs)
        write_lines(tmp_path / "z.jsonl", runs[:10])
        files = list_input_files([str(tmp_path)], OPTIONS)
        position = InputPosition(0)
        shares = [position.share for _ in iter_chunks(files, InputOptions(), position)]
        assert shares == sorted(shares)
        assert (0 < shares[0] < 1, shares[-1]) == (True, 1.0)

    def test_share_of_a_limit_counts_rows(self, tmp_path: Path) -> None:
        path = write_lines(tmp_path / "a.jsonl", [build_run(number) for number in range(40)])
        options, position = InputOptions(rows_per_chunk=2, limit=8), InputPosition(0)
        shares = [
            position.share for _ in iter_chunks(list_input_files([str(path)], options), options, position)
        ]
        assert shares[-1] >= 0.75

    def test_remaining_time_excludes_finished_chunks(self) -> None:
        summary = JobSummary(share=0.6, resumed_share=0.5)
        assert summary.estimate_remaining_s(10.0) == pytest.approx(40.0)
        assert JobSummary(share=0.5, resumed_share=0.5).estimate_remaining_s(10.0) is None
