"""Throughput of batch jobs: runs a second by engine and number of workers, and memory of a worker.

Run: .venv/bin/python -m benchmarks.scale [--rows 2000] [--repeats 2] [--ray] [--memory-rows N]
    [--report-rows N]
The rows are synthetic runs of 10 steps. `one process` is `agentguard.diagnose` in a loop; `map_batches` is a
plain Ray Data script with the same detectors and model; `--ray` measures both engines of Ray (`pip install
'agentguard[ray]' pandas`).
Bar: efficiency from one to two workers of at least 0.85. Jobs with one and two workers run in turns. On busy
cores, use the efficiency by processor time, of driver and workers: the least time with one worker divided by
the least with two, each without the time of a job of two chunks, which has the start of the workers.
The last lines extrapolate to 10^6 and 10^9 runs; they are an estimate. Each job compares its runs in a second
pass; `comparison` is the time of that pass. `--report-rows` measures `agentguard report` on a table of that
many rows, ten of a task: the rows of a job, copied under other names and tasks.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import agentguard
from agentguard.batch import (
    BatchJob,
    DiagnosisOperation,
    InputOptions,
    LocalEngine,
    RayEngine,
    build_batch_report,
)
from agentguard.batch.chunks import Chunk, InputFile, iter_chunks, list_input_files
from agentguard.batch.diagnosis import DiagnosisProcessor
from agentguard.batch.processor import ChunkProcessor, ProcessorConfig
from agentguard.batch.run_comparison import compare_rows
from agentguard.config.policy import Policy
from agentguard.trajectory.formats import formats
from agentguard.trajectory.formats.reader import load_trajectory
from agentguard.trajectory.model import Record
from benchmarks.diagnose import synthetic_run

STEPS = 10
CHUNK_ROWS = 64


def dump_row(seed: int) -> bytes:
    writer: Any = formats().get("openai_chat")
    return json.dumps(writer.dump(Record(trajectory=synthetic_run(STEPS, seed)))).encode() + b"\n"


def write_rows(path: Path, rows: int) -> None:
    with path.open("wb") as file:
        file.writelines(map(dump_row, range(rows)))


def diagnose_in_one_process(source: Path, folder: Path) -> None:
    del folder
    for line in source.read_text().splitlines():
        agentguard.diagnose(load_trajectory(json.loads(line)))


def run_job(engine: Any) -> Callable[[Path, Path], None]:
    def run(source: Path, folder: Path) -> None:
        BatchJob([str(source)], str(folder / "out"), DiagnosisOperation(Policy()), InputOptions()).run(engine)

    return run


class PlainActor:
    """Actor of the plain Ray Data script."""

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        found = [agentguard.diagnose(load_trajectory(json.loads(text))) for text in batch["text"]]
        return {
            "verdict": [str(one.verdict) for one in found],
            "probability": [one.probability for one in found],
        }


def map_batches(source: Path, folder: Path) -> None:
    import ray

    # The reader of Ray Data needs a core beside those of the actors; with two cores the job never begins.
    ray.init(
        address="local", num_cpus=3, include_dashboard=False, log_to_driver=False, configure_logging=False
    )
    try:
        strategy = ray.data.ActorPoolStrategy(size=2)
        rows = ray.data.read_text(str(source)).repartition(8)
        rows.map_batches(PlainActor, compute=strategy, batch_size=64).write_parquet(str(folder / "plain"))
    finally:
        ray.shutdown()


def read_processor_time() -> tuple[float, float]:
    """Return the processor time of this process and of its ended children in seconds."""
    usages = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    driver, workers = (usage.ru_utime + usage.ru_stime for usage in usages)
    return driver, workers


def measure(name: str, rows: int, run: Callable[[Path, Path], None], source: Path) -> float:
    with tempfile.TemporaryDirectory() as folder:
        begin, (driver, workers) = time.perf_counter(), read_processor_time()
        run(source, Path(folder))
        rate = rows / (time.perf_counter() - begin)
        driver, workers = (
            now - then for now, then in zip(read_processor_time(), (driver, workers), strict=True)
        )
    print(f"{name:24} {rate:8.0f} runs/s, processor time {driver:.2f} + {workers:.2f} s", flush=True)
    PROCESSOR_TIMES.setdefault(name, []).append(driver + workers)
    return rate


PROCESSOR_TIMES: dict[str, list[float]] = {}
"""Processor times of driver and workers by name of the measurement."""


def measure_scaling(rows: int, repeats: int, source: Path) -> float:
    """Measure jobs with one and two workers in turns; return the processor time of a row in seconds."""
    start = source.with_name("start.jsonl")
    write_rows(start, 2 * CHUNK_ROWS)
    rates: dict[str, float] = {}
    for _ in range(repeats):
        for workers in (1, 2):
            name = f"local, {workers} worker{'s' if workers > 1 else ''}"
            run = run_job(LocalEngine(workers))
            rates[name] = max(rates.get(name, 0.0), measure(name, rows, run, source))
            measure(f"start of {workers}", 2 * CHUNK_ROWS, run, start)
    one, two, start_one, start_two = (
        min(PROCESSOR_TIMES[name])
        for name in ("local, 1 worker", "local, 2 workers", "start of 1", "start of 2")
    )
    print(
        f"efficiency, 1 to 2 workers   {rates['local, 2 workers'] / (2 * rates['local, 1 worker']):.2f}, "
        f"by processor time {(one - start_one) / (two - start_two):.2f}"
    )
    return (two - start_two) / (rows - 2 * CHUNK_ROWS)


def measure_memory(rows: int) -> None:
    """Print the peak memory of a worker after a tenth of its rows and after all; all rows differ."""
    processor = ChunkProcessor(ProcessorConfig(operation=DiagnosisOperation(Policy()), fingerprint=""))
    chunk = Chunk(file=InputFile(url="rows.jsonl", name="rows.jsonl"))
    peaks = []
    for begin in range(0, rows, CHUNK_ROWS):
        records = tuple(range(begin, min(begin + CHUNK_ROWS, rows)))
        processor.process(replace(chunk, rows=tuple(map(dump_row, records)), records=records))
        if begin <= rows // 10 < begin + CHUNK_ROWS or begin + CHUNK_ROWS >= rows:
            peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    print(
        f"worker memory            {peaks[0]:.0f} MB after {rows // 10} rows, {peaks[-1]:.0f} MB after {rows}"
    )


def measure_comparison(rows: int, source: Path) -> None:
    """Print the time a row of the second pass, without reading and writing."""
    processor = ChunkProcessor(ProcessorConfig(operation=DiagnosisOperation(Policy()), fingerprint=""))
    options = InputOptions(limit=rows)
    chunks = iter_chunks(list_input_files([str(source)], options), options)
    table = [row for chunk in chunks for row in processor.process(chunk).rows]
    comparator = DiagnosisProcessor(Policy()).comparator
    assert comparator is not None
    begin = time.process_time()
    compared = sum(row["single_run"] is not None for row in compare_rows(table, comparator))
    seconds = time.process_time() - begin
    print(f"comparison               {1e6 * seconds / len(table):8.0f} µs/row, {compared} rows compared")


def write_verdict_table(folder: Path, rows: int) -> None:
    """Run a job over 1,000 runs and copy its rows until the table has ``rows`` rows."""
    import pyarrow
    import pyarrow.parquet

    source = folder / "rows.jsonl"
    write_rows(source, 1000)
    BatchJob(
        [str(source)], str(folder / "out"), DiagnosisOperation(Policy()), InputOptions(rows_per_chunk=1000)
    ).run(LocalEngine(1))
    (part,) = (folder / "out" / "verdicts").glob("*.parquet")
    table = pyarrow.parquet.read_table(part)
    task = table.schema.get_field_index("task")
    for number in range(1, rows // 1000):
        tasks = pyarrow.array([f"Task {number}-{record % 100}" for record in range(1000)])
        copied = table.set_column(task, table.schema.field(task), tasks)
        pyarrow.parquet.write_table(copied, part.with_name(f"copy-{number}.parquet"), compression="zstd")


def build_report(folder: str) -> tuple[float, float, int]:
    """Return seconds, peak memory in MB and the number of failed runs."""
    begin = time.perf_counter()
    report = build_batch_report(folder)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return time.perf_counter() - begin, peak, report.verdicts["failed"]


def measure_report(rows: int) -> None:
    for count in (rows // 10, rows):
        with tempfile.TemporaryDirectory() as folder:
            write_verdict_table(Path(folder), count)
            with multiprocessing.get_context("spawn").Pool(1) as pool:
                seconds, peak, failed = pool.apply(build_report, (f"{folder}/out",))
        print(f"report of {count} rows: {count / seconds:.0f} rows/s, {peak:.0f} MB, {failed} failed runs")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--repeats", type=int, default=2, help="Jobs with each number of workers.")
    parser.add_argument("--memory-rows", type=int, default=0, help="Rows of the memory test.")
    parser.add_argument("--report-rows", type=int, default=0, help="Rows of the table of the report.")
    parser.add_argument("--ray", action="store_true")
    arguments = parser.parse_args()
    if arguments.ray and find_spec("pandas") is None:
        parser.error(
            "--ray: Ray Data needs pandas, which the extra `ray` does not install: pip install pandas"
        )
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "rows.jsonl"
        write_rows(source, arguments.rows)
        print(f"{arguments.rows} runs of {STEPS} steps, load {os.getloadavg()[0]:.1f}")
        for name, run in [
            ("one process", diagnose_in_one_process),
            *(
                [("ray, 2 workers", run_job(RayEngine(2))), ("map_batches, 2 actors", map_batches)]
                if arguments.ray
                else []
            ),
        ]:
            measure(name, arguments.rows, run, source)
        row_s = measure_scaling(arguments.rows, arguments.repeats, source)
        measure_comparison(arguments.rows, source)
    for runs in (10**6, 10**9):
        print(f"estimate for {runs:.0e} runs: {runs * row_s / 3600:,.1f} core-hours, without a judge")
    if arguments.memory_rows:
        measure_memory(arguments.memory_rows)
    if arguments.report_rows:
        measure_report(arguments.report_rows)


if __name__ == "__main__":
    main()
