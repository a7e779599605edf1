"""Diagnosis from the page of a run, comparison of two runs, and the list as CSV."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.pages.run_diff import diff_runs
from starlette.testclient import TestClient

from agentguard.store import Store
from agentguard.store.db.rows import RunRow
from agentguard.trajectory.formats.reader import load_trajectory

HERE = "http://127.0.0.1:7430"
WINE = "04-wine-bottle"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "s.db") as opened:
        run = load_trajectory(f"samples/{WINE}.json")
        opened.write_run(run)
        changed = replace(run.steps[6], tool_calls=(), content="I stop here.")
        opened.write_run(replace(run, id="shorter/é", steps=(*run.steps[:6], changed)))
        opened.flush(10)
        yield opened


@pytest.fixture
def client(store: Store) -> TestClient:
    return TestClient(build_app(store), base_url=HERE, headers={"origin": HERE}, follow_redirects=False)


def test_button_diagnoses_a_run_and_stores_the_result(store: Store, client: TestClient) -> None:
    assert ">Diagnose</button>" in client.get(f"/runs/{WINE}").text
    answer = client.post(f"/runs/{WINE}/diagnose")
    assert (answer.status_code, answer.headers["location"]) == (303, f"/runs/{WINE}")
    (row,) = store.list_diagnoses(WINE)
    assert (row.verdict, row.step) == ("failed", 7)
    page = client.get(f"/runs/{WINE}").text
    assert ">Diagnose again</button>" in page
    assert "Root cause:" in page
    assert "· by rules</span>" in page


def test_diagnosis_of_unknown_run_is_not_found(client: TestClient) -> None:
    assert client.post("/runs/nobody/diagnose").status_code == 404


def test_diagnosis_from_another_origin_is_refused(store: Store, client: TestClient) -> None:
    answer = client.post(f"/runs/{WINE}/diagnose", headers={"origin": "http://evil.example"})
    assert answer.status_code == 403
    assert store.list_diagnoses(WINE) == ()


def test_comparison_offers_runs_of_the_same_task(client: TestClient) -> None:
    page = client.get(f"/diff?a={WINE}").text
    assert f'href="/diff?a={WINE}&amp;b=shorter/%C3%A9"' in page


def test_comparison_marks_the_first_divergence(client: TestClient) -> None:
    page = client.get("/diff", params={"a": WINE, "b": "shorter/é"}).text
    assert page.count("first divergence") == 1
    before, after = page.split('id="divergence"')
    assert before.count('class="pair same"') == 6
    assert "I stop here." in after


def test_equal_runs_have_no_divergence() -> None:
    run = load_trajectory(f"samples/{WINE}.json")
    assert diff_runs(run, replace(run, id="other")).divergence is None


def test_comparison_with_unknown_run_is_not_found(client: TestClient) -> None:
    answer = client.get("/diff", params={"a": WINE, "b": "<b>"})
    assert answer.status_code == 404
    assert "<b>" not in answer.text


def test_csv_has_the_recorded_start_and_no_time_of_import(store: Store, client: TestClient) -> None:
    run = load_trajectory(f"samples/{WINE}.json")
    untimed = tuple(replace(step, started_at=None, ended_at=None) for step in run.steps)
    store.write_run(replace(run, id="untimed", steps=untimed, branches=()))
    timed = tuple(replace(step, started_at=1e9 + 60 * step.index, ended_at=None) for step in run.steps)
    store.write_run(replace(run, id="timed", steps=timed, branches=()))
    store.flush(10)
    rows = csv.DictReader(client.get("/api/runs.csv").text.splitlines())
    starts = {row["run_id"]: row["started_at"] for row in rows}
    assert (starts["untimed"], starts["timed"]) == ("", "2001-09-09T01:46:40Z")


def test_csv_has_all_runs_that_match_and_no_formulas(store: Store, client: TestClient) -> None:
    for number in range(300):
        store.write(RunRow(id=f"r{number}", task="=HYPERLINK(1)", created_at=1e9 + number))
    store.flush(10)
    answer = client.get("/api/runs.csv?q=r")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    rows = list(csv.DictReader(answer.text.splitlines()))
    assert len({row["run_id"] for row in rows}) == len(rows) >= 300
    assert {row["task"] for row in rows if re.fullmatch(r"r\d+", row["run_id"])} == {"'=HYPERLINK(1)"}
