"""Traces of a real Phoenix server; needs ``arize-phoenix`` in any environment.

``AGENTGUARD_PHOENIX=/path/to/bin/phoenix pytest tests/integration/test_phoenix.py``
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from agentguard.errors import BackendError
from agentguard.otlp import ExportTarget, build_assessed_spans, send
from agentguard.trace_sources import TraceQuery, read_traces
from agentguard.trajectory.formats import UnreadableRecord, load_records
from agentguard.trajectory.model import Record
from tests.unit.trajectory.formats.samples import SAMPLES

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.fixture(scope="module")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    program = os.environ.get("AGENTGUARD_PHOENIX") or shutil.which("phoenix")
    if program is None:
        pytest.skip("needs Phoenix: pip install arize-phoenix, set AGENTGUARD_PHOENIX to bin/phoenix")
    ports = [_find_port() for _ in range(2)]
    environment = {
        **os.environ,
        "PHOENIX_WORKING_DIR": str(tmp_path_factory.mktemp("phoenix")),
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(ports[0]),
        "PHOENIX_GRPC_PORT": str(ports[1]),
        "PHOENIX_TELEMETRY_ENABLED": "false",
    }
    process = subprocess.Popen(
        [program, "serve"], env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    url = f"http://127.0.0.1:{ports[0]}"
    try:
        _wait_for(f"{url}/healthz", process)
        yield url
    finally:
        process.terminate()
        process.wait(30)


def _find_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def _wait_for(url: str, process: subprocess.Popen[bytes]) -> None:
    for _ in range(600):
        assert process.poll() is None, "Phoenix ended at its start"
        try:
            with urllib.request.urlopen(url, timeout=1):
                return
        except (urllib.error.URLError, OSError):
            time.sleep(0.2)
    pytest.fail("Phoenix did not start within two minutes")


def _read_now(query: TraceQuery, environment: dict[str, str]) -> list[Record | UnreadableRecord]:
    """Return the runs so far; Phoenix creates a project with its first span, some time after the export."""
    try:
        return list(read_traces(query, environment=environment))
    except BackendError as error:
        assert error.status == 404
        return []


def test_exported_runs_are_read_back_from_phoenix(phoenix: str, tmp_path: Path) -> None:
    (sample,) = load_records(SAMPLES / "langfuse.json")
    runs = [replace(sample.trajectory, id=f"ferry-{number}") for number in range(3)]
    for run in runs:
        send(ExportTarget(endpoint=phoenix), build_assessed_spans(run))
    environment = {"PHOENIX_COLLECTOR_ENDPOINT": phoenix}
    # Phoenix names the project after the service of the spans.
    query = TraceQuery(source="phoenix", project="agentguard", resume=tmp_path / "state.jsonl")
    found: dict[str, Record] = {}
    for _ in range(100):
        for one in _read_now(query, environment):
            assert isinstance(one, Record)
            found[one.trajectory.id] = one
        if len(found) == 3:
            break
        time.sleep(0.1)
    assert sorted(found) == ["ferry-0", "ferry-1", "ferry-2"]
    for run in runs:
        steps = found[run.id].trajectory.steps
        assert [(step.content, step.tool_calls) for step in steps] == [
            (step.content, step.tool_calls) for step in run.steps
        ]
    assert list(read_traces(query, environment=environment)) == []


def test_unknown_project_of_phoenix_names_address_and_remedy(phoenix: str) -> None:
    query = TraceQuery(source="phoenix", project="nope")
    with pytest.raises(BackendError, match="projects/nope/traces: status 404; check the name of the project"):
        list(read_traces(query, environment={"PHOENIX_COLLECTOR_ENDPOINT": phoenix}))
