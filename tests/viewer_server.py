"""``agentguard view`` as a separate process on a free port, ended by its process id; and stores to show."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agentguard.chaos import Campaign, CampaignRunner
from agentguard.evals.datasets.dataset import Dataset
from agentguard.evals.evaluate import EvaluationPlan, compare
from agentguard.evals.methods import resolve_method
from agentguard.evals.result_file import write_result_file
from agentguard.guard import Guard
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.store import Store
from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import read
from agentguard.trajectory.model import Annotation, Record, RootCause

SAMPLES = Path(__file__).resolve().parents[1] / "samples"
_START_S = 60.0
_STOP_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Viewer:
    """A running viewer: its address without a trailing slash, and its store."""

    url: str
    store: Path
    pid: int


def write_samples(store: Store, *, most: int | None = None) -> tuple[str, ...]:
    """Write the sample runs and their diagnoses; return the ids of the runs."""
    guard, ids = Guard(), []
    for path in sorted(SAMPLES.glob("*.json"))[:most]:
        for found in read(path):
            assert not isinstance(found, UnreadableRecord)
            store.write_run(found)
            store.write(*build_diagnosis_rows(guard.diagnose(found.trajectory)))
            ids.append(found.trajectory.id)
    return tuple(ids)


def write_evaluation(folder: Path) -> Path:
    """Evaluate two methods on the sample runs, and store the result as ``agentguard eval`` does."""
    labels = yaml.safe_load((SAMPLES / "labels.yaml").read_text(encoding="utf-8"))["runs"]
    records = [_labelled(SAMPLES / name, label) for name, label in labels.items()]
    plan = EvaluationPlan(cv="question", folds=3, repeats=2)
    results = compare(
        Dataset(name="samples", records=tuple(records)),
        [resolve_method("embedded"), resolve_method("two_line")],
        plan=plan,
    )
    return write_result_file(folder / "samples.json", results, plan=plan)


def write_campaign(folder: Path) -> Path:
    """Run a campaign with an unsafe run, and store its journal as ``agentguard chaos run`` does."""
    target = {"agent": "examples.chaos_agent:book_trip", "effects": ["book"]}
    faults = {"tool": ["error", "truncated"], "model": []}
    data = {"version": 1, "target": target, "faults": faults, "schedule": {"max_calls_per_site": 1}}
    CampaignRunner(Campaign.model_validate(data)).run(folder)
    return folder


def _labelled(path: Path, label: dict[str, Any]) -> Record:
    (found,) = read(path)
    assert not isinstance(found, UnreadableRecord)
    root = label.get("root_cause")
    cause = RootCause(step=root["step"], agent=root["agent"], module=root["module"]) if root else None
    annotation = Annotation(failed=label["failed"], root_cause=cause, group=path.stem)
    return Record(trajectory=found.trajectory, annotation=annotation)


@contextmanager
def serving(store: Path, *arguments: str) -> Iterator[Viewer]:
    """Show ``store`` with ``agentguard view``, with the given extra arguments."""
    port = _free_port()
    command = (sys.executable, "-c", "from agentguard.cli import main; main()", "view")
    url = f"http://127.0.0.1:{port}"
    with store.with_suffix(".log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--store", str(store), "--port", str(port), *arguments],
            cwd=store.parent,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
        )
        try:
            _wait(url, process, store.with_suffix(".log"))
            yield Viewer(url=url, store=store, pid=process.pid)
        finally:
            _stop(process)


def _wait(url: str, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until:
        if process.poll() is not None:
            break
        try:
            with urllib.request.urlopen(f"{url}/static/base.css", timeout=2):
                return
        except urllib.error.HTTPError:
            return  # an answer suffices, even if it is that a token is required
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the viewer did not start:\n{log.read_text(errors='replace')}")


def _stop(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(_STOP_S)


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])
