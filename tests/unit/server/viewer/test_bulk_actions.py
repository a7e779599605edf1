"""Actions on the selected runs of the list, and the queue that diagnoses them."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.data import diagnosis_queue
from agentguard_server.viewer.data.diagnosis_queue import DiagnosisQueue
from agentguard_server.viewer.settings import ViewerSettings
from starlette.testclient import TestClient

from agentguard.schemata.persistence import SqlSchemaStore
from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow
from agentguard.trajectory.formats.reader import load_trajectory
from tests.unit.localize.runs import chat
from tests.unit.test_guard_judge import matching_schema

HERE = "http://127.0.0.1:7430"
EVIL = "a/<b>é"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "s.db") as opened:
        run = load_trajectory("samples/04-wine-bottle.json")
        for name in ("one", EVIL, "three"):
            opened.write_run(replace(run, id=name))
        opened.write(DiagnosisRow(run_id="three", method="m", verdict="failed", step=1, agent="a"))
        opened.flush(10)
        yield opened


@pytest.fixture
def client(store: Store) -> Iterator[TestClient]:
    app = build_app(store)
    yield TestClient(app, base_url=HERE, headers={"origin": HERE}, follow_redirects=False)
    app.state.diagnosis_queue.stop()


@pytest.fixture
def queue(store: Store) -> Iterator[DiagnosisQueue]:
    created = DiagnosisQueue(store)
    yield created
    created.stop()


def post(client: TestClient, action: str, *ids: str, **more: str) -> tuple[int, str]:
    answer = client.post("/bulk", data={"run": list(ids), "action": action, **more})
    return answer.status_code, answer.text


def test_selected_runs_are_diagnosed_in_the_background(store: Store, client: TestClient) -> None:
    assert post(client, "diagnose", "one", EVIL)[0] == 303
    queue: DiagnosisQueue = client.app.state.diagnosis_queue  # type: ignore[attr-defined]
    assert queue.wait_until_idle(60)
    assert (queue.progress.total, queue.progress.done, queue.progress.failed) == (2, 2, 0)
    assert [len(store.list_diagnoses(id)) for id in ("one", EVIL, "three")] == [1, 1, 1]


def test_selected_diagnoses_are_labelled(store: Store, client: TestClient) -> None:
    assert post(client, "wrong", "three")[0] == 303
    (label,) = store.list_judgements("three")
    assert (label.subject, label.right) == ("diagnosis", False)
    assert post(client, "right", "three")[0] == 303
    summary = store.get_run_summary("three")
    assert summary is not None
    assert summary.judged == "right"


def test_undecided_runs_are_labelled_by_their_outcome(store: Store, client: TestClient) -> None:
    store.write(DiagnosisRow(run_id="one", method="m", verdict="undecided")).wait(10)
    status, text = post(client, "right", "three", "one")
    assert status == 400
    assert "1 of 2 are undecided" in text
    assert store.list_judgements("three") == ()
    assert post(client, "passed", "three", "one")[0] == 303
    assert [store.list_judgements(id)[0].outcome for id in ("three", "one")] == ["passed", "passed"]


def test_runs_without_a_diagnosis_prevent_all_labels(store: Store, client: TestClient) -> None:
    status, text = post(client, "wrong", "three", "one")
    assert status == 400
    assert "1 of 2 have no diagnosis" in text
    assert store.list_judgements("three") == ()


def test_selected_runs_are_deleted_after_confirmation_only(store: Store, client: TestClient) -> None:
    status, text = post(client, "delete", "one", EVIL)
    assert status == 200
    assert "Delete 2 runs?" in text
    assert "a/&lt;b&gt;é" in text
    assert store.get_run("one") is not None
    assert post(client, "delete", "one", EVIL, confirmed="yes")[0] == 303
    assert [store.get_run(id) is None for id in ("one", EVIL, "three")] == [True, True, False]


def test_csv_has_the_selected_runs_only(client: TestClient) -> None:
    status, text = post(client, "csv", "three", EVIL, "unknown")
    assert status == 200
    assert [row["run_id"] for row in csv.DictReader(text.splitlines())] == ["three", EVIL]


def test_invalid_requests_are_rejected(store: Store, client: TestClient) -> None:
    assert "no run is selected" in post(client, "delete")[1]
    assert "expected one of diagnose" in post(client, "explode", "one")[1]
    foreign = client.post(
        "/bulk",
        data={"run": "one", "action": "delete", "confirmed": "yes"},
        headers={"origin": "http://evil.example"},
    )
    assert foreign.status_code == 403
    assert store.get_run("one") is not None


def test_temporary_store_offers_csv_only(store: Store) -> None:
    app = build_app(store, ViewerSettings(allows_feedback=False))
    client = TestClient(app, base_url=HERE, headers={"origin": HERE})
    page = client.get("/").text
    assert 'name="action" value="csv"' in page
    assert 'name="action" value="delete"' not in page
    assert "give the viewer a store" in post(client, "delete", "one", confirmed="yes")[1]
    assert store.get_run("one") is not None


def test_queue_takes_undiagnosed_runs_once(store: Store, queue: DiagnosisQueue) -> None:
    assert queue.add_undiagnosed() == 2
    assert queue.wait_until_idle(60)
    assert queue.add_undiagnosed() == 0
    assert len(store.list_diagnoses("three")) == 1


def test_queue_cites_the_schemata_of_its_store(store: Store, queue: DiagnosisQueue) -> None:
    SqlSchemaStore(store).upsert([matching_schema(chat(), "Read the answer first.")])
    store.write_run(replace(chat(), id="four"))
    store.flush(10)
    assert queue.diagnose("four")
    (row,) = store.list_diagnoses("four")
    assert [one["schemata"] for one in row.data["hypotheses"] if one.get("schemata")]


def test_queue_reports_runs_that_cannot_be_diagnosed(store: Store, queue: DiagnosisQueue) -> None:
    assert queue.add(["gone", "one", "one"]) == 2
    assert queue.wait_until_idle(60)
    assert (queue.progress.total, queue.progress.done, queue.progress.failed) == (2, 2, 1)
    assert queue.progress.problem == "gone: the run was deleted"
    assert len(store.list_diagnoses("one")) == 1


def test_queue_is_bounded_and_accepts_nothing_after_stop(
    queue: DiagnosisQueue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagnosis_queue, "MAX_QUEUED_RUNS", 3)
    assert queue.add(f"gone-{number}" for number in range(5)) == 3
    queue.stop()
    assert queue.add(["one"]) == 0
