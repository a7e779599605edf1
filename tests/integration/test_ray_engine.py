"""Batch jobs on a real Ray cluster with two logical nodes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest

from agentguard.batch import BatchJob, DiagnosisOperation, InputOptions, LocalEngine, RayEngine
from agentguard.config.policy import Policy
from tests.faults import batch_child
from tests.faults.test_batch_kill import read_records, write_runs

ROOT = Path(__file__).parents[2]
OPTIONS = InputOptions(rows_per_chunk=4)

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("default"),  # Ray warns about its own deprecations.
    pytest.mark.xdist_group("ray"),
    pytest.mark.timeout(120),
]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    path = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{path}" if path else str(ROOT)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray
        from ray.cluster_utils import Cluster

        nodes = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        nodes.add_node(num_cpus=1)
        try:
            yield nodes
        finally:
            ray.shutdown()
            nodes.shutdown()
            os.environ["PYTHONPATH"] = path


def start(source: Path, output: Path) -> BatchJob:
    return BatchJob([str(source)], str(output), DiagnosisOperation(Policy()), OPTIONS)


def read_parts(output: Path) -> dict[str, bytes]:
    return {part.name: part.read_bytes() for part in (output / "verdicts").iterdir()}


def test_ray_and_local_engine_write_the_same_parts(cluster: Any, tmp_path: Path) -> None:
    source = write_runs(tmp_path / "runs.jsonl", 24)
    start(source, tmp_path / "local").run(LocalEngine(1))
    summary = start(source, tmp_path / "ray").run(RayEngine(2, cluster.address))
    assert summary.rows == 24
    assert read_parts(tmp_path / "ray") == read_parts(tmp_path / "local")


def test_row_that_crashes_its_actor_gets_an_error_row(cluster: Any, tmp_path: Path) -> None:
    source = write_runs(tmp_path / "runs.jsonl", 6, poison=2)
    engine = RayEngine(2, cluster.address, batch_child.FragileProcessor)
    summary = start(source, tmp_path / "out").run(engine)
    assert (summary.rows, summary.errors) == (6, 1)
    (letters,) = (tmp_path / "out" / "dead_letters").iterdir()
    assert json.loads(letters.read_text())["record"] == 2


def test_lost_node_loses_and_doubles_no_row(cluster: Any, tmp_path: Path) -> None:
    source, output = write_runs(tmp_path / "runs.jsonl", 60), tmp_path / "out"
    node = cluster.add_node(num_cpus=1)
    removed = []

    def remove_node(summary: Any) -> None:
        if summary.rows >= 12 and not removed:
            removed.append(node)
            cluster.remove_node(node, allow_graceful=False)

    start(source, output).run(RayEngine(3, cluster.address), on_progress=remove_node)
    assert removed
    assert read_records(output) == list(range(60))
    assert pyarrow.parquet.read_table(output / "verdicts").column("error").null_count == 60


def test_local_cluster_starts_and_ends_with_the_job(tmp_path: Path) -> None:
    source = write_runs(tmp_path / "runs.jsonl", 4)
    arguments = [
        "diagnose",
        str(source),
        "--batch-output",
        str(tmp_path / "out"),
        "--engine",
        "ray",
        "--jobs",
        "2",
    ]
    code = f"""
import sys
from agentguard.cli import main
import ray
sys.argv[1:] = {arguments!r}
try:
    main()
finally:
    assert not ray.is_initialized()
"""
    # In its own process: Ray keeps state of the cluster of the other tests.
    environment = {key: value for key, value in os.environ.items() if key != "RAY_ADDRESS"}
    result = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=100
    )
    assert result.returncode == 0, result.stderr
    assert "4 rows:" in result.stdout
    assert read_records(tmp_path / "out") == list(range(4))
