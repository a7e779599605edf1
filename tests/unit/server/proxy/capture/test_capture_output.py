"""Capture stores the rows of the snapshot, and the verdicts that the guard gives for the stored runs.

``python -m tests.support.capture_traffic --digests`` generates the snapshot; without the option it prints
the rows themselves, so that two versions can be compared.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.capture import diagnosis_worker, run_writer
from agentguard_server.proxy.capture.collector import CaptureCollector, open_store
from agentguard_server.proxy.capture.protocol import CollectorConfig, RunEvent
from agentguard_server.proxy.capture.recorder import _BATCH_INTERVAL_S
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions

from agentguard.config.policy import Policy
from agentguard.detect.detection import detect
from agentguard.detect.finding_rows import build_finding_rows
from agentguard.guard import Guard
from agentguard.localize.base import Diagnosis
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow, FindingRow
from agentguard.trajectory.event_log.recorder import build_events
from agentguard.trajectory.model import Branch, Observation, Record, Source, Step, ToolCall, Trajectory
from agentguard.trajectory.safe_json import dumps
from tests.support.capture_traffic import (
    FRAME_MESSAGES,
    POLICY,
    build_digests,
    build_traffic,
    play_conversation,
    read_output,
    record_traffic,
)
from tests.unit.server.proxy.guard.scripted_model import CHAT, calls

SNAPSHOT = Path(__file__).parent / "capture_output.json"


@pytest.fixture(
    scope="module",
    params=[
        (diagnosis_worker._MAX_RESIDENT_CHARS, FRAME_MESSAGES),
        (diagnosis_worker._MAX_RESIDENT_CHARS, 1),
        (diagnosis_worker._MAX_RESIDENT_CHARS, 1000),
        (0, FRAME_MESSAGES),
    ],
)
def url(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return a store with the recorded traffic.

    The runs were diagnosed from memory or from the store, and the messages came in small or large frames.
    """
    max_resident_chars, frame_messages = request.param
    path = str(tmp_path_factory.mktemp("capture") / "runs.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(diagnosis_worker, "_MAX_RESIDENT_CHARS", max_resident_chars)
        record_traffic(path, build_traffic(), frame_messages=frame_messages)
    return path


def test_capture_rows_of_recorded_traffic_equal_snapshot(url: str) -> None:
    assert build_digests(read_output(url)) == json.loads(SNAPSHOT.read_text())


def test_capture_verdicts_equal_offline_diagnosis(url: str) -> None:
    guard = Guard.from_policy(Policy.parse(POLICY))
    verdicts = 0
    with Store.open(url) as store:
        for name in json.loads(SNAPSHOT.read_text()):
            tenant, _, run_id = name.partition("/")
            run = store.get_trajectory(run_id, tenant=tenant)
            assert run is not None
            if any(step.tool_calls for step in run.steps):
                expected = build_diagnosis_rows(guard.diagnose(run), tenant=tenant)
            else:
                found = detect(run, guard.detectors, deadline_s=60.0).findings
                expected = build_finding_rows(run_id, found, tenant=tenant)
            findings = store.list_findings(run_id, tenant=tenant)
            diagnoses = store.list_diagnoses(run_id, tenant=tenant)
            assert _describe_rows([*diagnoses, *findings]) == _describe_rows(expected), name
            verdicts += len(diagnoses)
    assert verdicts > 10


def test_failed_and_excess_diagnoses_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def diagnose(guard: Guard, run: Trajectory) -> Diagnosis:
        if run.id == "chat":
            raise RuntimeError("plug-in")
        return original(guard, run)

    original = Guard.diagnose
    monkeypatch.setattr(Guard, "diagnose", diagnose)
    monkeypatch.setattr("agentguard_server.proxy.capture.diagnosis_worker._MAX_PENDING_RUNS", 3)
    status = record_traffic(str(tmp_path / "runs.db"), build_traffic()).build_status(0)
    diagnosed = len(build_digests(read_output(str(tmp_path / "runs.db"), ["diagnoses"])))
    assert status.diagnosed == diagnosed
    assert status.undiagnosed >= 1
    assert status.diagnosed + status.undiagnosed == 19


@pytest.mark.parametrize("limit", [1 << 20, 0])
def test_guarded_run_is_diagnosed_from_its_events_or_from_the_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: int
) -> None:
    def get_trajectory(store: Store, run_id: str, *, tenant: str = "") -> Trajectory | None:
        reads.append(run_id)
        return original(store, run_id, tenant=tenant)

    def build_step(index: int, result: str) -> Step:
        call = ToolCall(name="find", arguments={"place": index}, id=f"c{index}")
        found = Observation(content=result, call_id=call.id, tool="find")
        return Step(
            index=index, source=Source.AGENT, agent="assistant", tool_calls=(call,), observations=(found,)
        )

    reads: list[str] = []
    original = Store.get_trajectory
    monkeypatch.setattr(run_writer, "_MAX_BUFFERED_BYTES", limit)
    prompt = Step(index=0, source=Source.USER, agent="user", content="Find a train.")
    abandoned = Branch(id="b1", fork_step=2, steps=(build_step(2, "Error: 503"),), reason="rolled back")
    steps = (prompt, build_step(1, "Error: 503"), build_step(2, "nothing found"))
    run = Trajectory(id="g", format="event_log", task="Find a train.", steps=steps, branches=(abandoned,))
    events = [dumps(event) for event in build_events(Record(trajectory=run))]
    traffic = [RunEvent("team", "g", number == 0, event) for number, event in enumerate(events)]
    url = str(tmp_path / "runs.db")
    with monkeypatch.context() as patch:
        patch.setattr(Store, "get_trajectory", get_trajectory)
        status = record_traffic(url, traffic).build_status(0)
    assert (status.diagnosed, status.undiagnosed, status.failed) == (1, 0, 0)
    assert reads == ([] if limit else ["g"])
    with Store.open(url) as store:
        assert store.get_trajectory("g", tenant="team") == run
        expected = build_diagnosis_rows(Guard.from_policy(Policy.parse(POLICY)).diagnose(run), tenant="team")
        stored = [*store.list_diagnoses("g", tenant="team"), *store.list_findings("g", tenant="team")]
    assert _describe_rows(stored) == _describe_rows(expected)


def test_running_run_is_stored_without_waiting_for_its_end(tmp_path: Path) -> None:
    url = str(tmp_path / "runs.db")
    guard = GuardOptions(policy=Policy.parse(POLICY))
    task = {"role": "user", "content": "Find a train."}
    requests = play_conversation(CHAT, [task], calls("find", 3), run_id="running")
    with open_store(CaptureOptions(store=url)) as store, Store.open(url) as viewer:
        collector = CaptureCollector(
            CollectorConfig(socket_path="", capture=CaptureOptions(store=url), guard=guard), store
        )
        for count, request in enumerate(requests, start=1):
            collector.handle_frame([request])
            deadline = time.monotonic() + 30.0
            while (run := viewer.get_trajectory("running")) is None or len(run.steps) < count:
                assert time.monotonic() < deadline, f"request {count} is not visible"
        assert not collector.run_writer.ended_runs
        collector.close()
    delay_field = CaptureOptions.model_fields["max_commit_delay_s"]
    longest_delay_s = max(getattr(bound, "le", 0.0) for bound in delay_field.metadata)
    assert 0.0 < _BATCH_INTERVAL_S + longest_delay_s < 1.0, "delays before a viewer can see a request"


def _describe_rows(rows: Any) -> list[str]:
    """Return the contents of findings and diagnoses without times and random ids."""
    described = []
    for row in rows:
        if isinstance(row, DiagnosisRow):
            data = {key: value for key, value in row.data.items() if key != "timing"}
            described.append(json.dumps(["diagnosis", row.verdict, row.method, row.step, row.code, data]))
        elif isinstance(row, FindingRow):
            described.append(json.dumps(["finding", row.id, row.detector, row.step, dict(row.data)]))
    return sorted(described)
