"""Killed workers and drivers of a batch job lose and double no row."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pyarrow.parquet
import pytest

from agentguard.batch import BatchJob, DiagnosisOperation, InputOptions, LocalEngine
from agentguard.config.policy import Policy
from tests.faults import batch_child
from tests.support.sampling import sample_cases

ROWS = 120
KILLS = [("driver" if seed % 2 else "worker", seed) for seed in range(50)]


def write_runs(path: Path, rows: int, poison: int | None = None) -> Path:
    lines = []
    for number in range(rows):
        answer = batch_child.POISON.decode() if number == poison else f"It is {number}."
        turns = [{"role": "user", "content": "How many?"}, {"role": "assistant", "content": answer}]
        lines.append(json.dumps({"id": f"run-{number}", "messages": turns}))
    path.write_text("\n".join(lines) + "\n")
    return path


def read_records(output: Path) -> list[int]:
    return sorted(pyarrow.parquet.read_table(output / "verdicts").column("record").to_pylist())


def read_parts(output: Path) -> dict[str, bytes]:
    return {part.name: part.read_bytes() for part in (output / "verdicts").glob("*.parquet")}


def run_driver(source: Path, output: Path) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tests.faults.batch_child", str(source), str(output)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def list_workers(driver: int) -> list[int]:
    """Return the process ids of the pool's workers; without the resource tracker."""
    workers = []
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            if parent == driver and b"spawn_main" in (entry / "cmdline").read_bytes():
                workers.append(int(entry.name))
    return workers


def wait_for_end(pids: list[int]) -> None:
    """Wait until the processes have ended; a zombie has ended."""
    until = time.monotonic() + 60
    for pid in pids:
        while (state := _read_state(pid)) not in ("", "Z"):
            assert time.monotonic() < until, f"a worker outlives its driver: {pid} is in state {state}"
            time.sleep(0.01)


def _read_state(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return ""


@pytest.mark.process
@pytest.mark.timeout(1800)
def test_kills_of_workers_and_drivers_lose_and_double_no_row(tmp_path: Path) -> None:
    source, output = write_runs(tmp_path / "runs.jsonl", ROWS), tmp_path / "out"
    for number, (victim, seed) in enumerate(sample_cases(KILLS, 2)):
        rng = random.Random(seed)
        write_runs(source, ROWS + 10 * (number + 1))  # new rows, so that each driver has work to do
        driver = run_driver(source, output)
        assert driver.stdout is not None
        for _ in range(rng.randint(0, 4)):
            driver.stdout.readline()
        workers = list_workers(driver.pid)
        os.kill(driver.pid if victim == "driver" or not workers else rng.choice(workers), signal.SIGKILL)
        rest, _ = driver.communicate(timeout=120)
        if victim == "worker" and workers:
            assert "done" in rest, f"the driver did not survive its worker (seed {seed})"
        wait_for_end(workers)
    driver = run_driver(source, output)
    rest, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0
    rows = len(source.read_text().splitlines())
    assert read_records(output) == list(range(rows))
    fresh = tmp_path / "fresh"
    BatchJob([str(source)], str(fresh), DiagnosisOperation(Policy()), InputOptions(rows_per_chunk=4)).run(
        LocalEngine(1)
    )
    assert read_parts(output) == read_parts(fresh)


@pytest.mark.process
def test_row_that_crashes_its_worker_gets_an_error_row(tmp_path: Path) -> None:
    source, output = write_runs(tmp_path / "runs.jsonl", 10, poison=5), tmp_path / "out"
    job = BatchJob([str(source)], str(output), DiagnosisOperation(Policy()), InputOptions(rows_per_chunk=4))
    summary = job.run(LocalEngine(2, batch_child.FragileProcessor))
    assert (summary.rows, summary.errors) == (10, 1)
    assert read_records(output) == list(range(10))
    (letters,) = (output / "dead_letters").iterdir()
    letter = json.loads(letters.read_text())
    assert (letter["record"], "the worker process ended 3 times" in letter["error"]) == (5, True)


@pytest.mark.process
def test_results_do_not_depend_on_the_number_of_workers(tmp_path: Path) -> None:
    source = write_runs(tmp_path / "runs.jsonl", 30)
    tables = []
    for workers in (1, 3):
        output = tmp_path / f"out{workers}"
        BatchJob(
            [str(source)], str(output), DiagnosisOperation(Policy()), InputOptions(rows_per_chunk=4)
        ).run(LocalEngine(workers))
        tables.append(read_parts(output))
    assert tables[0] == tables[1]
