"""The pages of evaluations and failures, without a browser."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.data.evaluation_files import EvaluationFiles
from agentguard_server.viewer.data.failure_clusters import build_trends
from agentguard_server.viewer.settings import ViewerSettings
from starlette.testclient import TestClient

from agentguard.evals.datasets.dataset import to_dataset
from agentguard.evals.evaluate import compare
from agentguard.evals.result_file import write_result_file
from agentguard.evals.runner import EvaluationPlan
from agentguard.schemata.model import ErrorSchema, Provenance
from agentguard.schemata.persistence import SqlSchemaStore
from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow, SchemaRow
from agentguard.store.read.failure_statistics import FailureFrequencies, FailureSeries
from tests.unit.evals.cases import Remembers, Says, records

PLAN = EvaluationPlan(cv="question", folds=3, repeats=2)
EVIL = "</td><script>window.pwned=1</script>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = tmp_path / "evals"
    write_result_file(found / "one.json", compare(records(), [Says(1), Remembers()], plan=PLAN), plan=PLAN)
    return found


@pytest.fixture
def client(tmp_path: Path, folder: Path) -> Iterator[TestClient]:
    with Store.open(tmp_path / "store.db") as store:
        for record in records(4):
            store.write_run(record)
            store.write(
                DiagnosisRow(
                    run_id=record.trajectory.id,
                    method="m",
                    verdict="failed",
                    step=1,
                    agent="agent1",
                    code="mast:step_repetition",
                )
            )
        store.flush(10)
        app = build_app(store, ViewerSettings(evals=(folder,)))
        with TestClient(app, base_url="http://127.0.0.1") as opened:
            yield opened


def only_id(client: TestClient) -> str:
    found = client.get("/api/evals").json()["evaluations"]
    assert len(found) == 1
    return str(found[0]["id"])


def test_list_names_methods_and_baselines(client: TestClient) -> None:
    page = client.get("/evals")
    assert page.status_code == 200
    assert "says" in page.text
    assert "last_step" in page.text
    methods = client.get("/api/evals").json()["evaluations"][0]["methods"]
    assert [one["method"] for one in methods[:2]] == ["says", "remembers"]
    assert methods[2]["baseline"] == "baseline"


def test_page_links_runs_in_store(client: TestClient) -> None:
    page = client.get(f"/evals/{only_id(client)}")
    assert page.status_code == 200
    assert 'href="/runs/r1#step-1"' in page.text
    assert "/runs/r5" not in page.text  # not in the store
    assert "Every run" in page.text
    assert "calibration" in page.text


@pytest.mark.parametrize(("show", "n"), [("all", 12), ("right", 8), ("wrong", 4), ("error", 0), ("x", 12)])
def test_runs_are_filtered(client: TestClient, show: str, n: int) -> None:
    page = client.get(f"/evals/{only_id(client)}", params={"show": show, "method": "says"})
    assert f"{n} runs</span>" in page.text


def test_two_evaluations_are_compared_by_run(client: TestClient) -> None:
    id = only_id(client)
    asked = {"a": f"{id}:says", "b": f"{id}:last_step"}
    page = client.get("/evals/compare", params=asked)
    assert page.status_code == 200
    assert "+66.7 points" in page.text
    assert "not the same files" not in page.text
    found = client.get("/api/evals/compare", params=asked).json()
    assert found["counts"] == {"both": 0, "only_a": 8, "only_b": 0, "neither": 4}
    assert found["difference"]["gained"] == 8
    shown = client.get("/evals/compare", params={**asked, "show": "neither"})
    assert shown.text.count("both wrong</span>") == 4


@pytest.mark.parametrize("asked", [{}, {"a": "x"}, {"a": "0123:says", "b": "0123:says"}])
def test_missing_evaluation_is_reported(client: TestClient, asked: dict[str, str]) -> None:
    assert client.get("/evals/compare", params=asked).status_code == 404
    assert client.get("/api/evals/compare", params=asked).status_code == 404
    assert client.get("/evals/0123456789abcdef").status_code == 404
    assert client.get("/api/evals/0123456789abcdef").status_code == 404


def test_incomparable_evaluations_are_reported(client: TestClient) -> None:
    id = only_id(client)
    asked = {"a": f"{id}:says", "b": f"{id}:says", "what": "outcome"}
    assert client.get("/evals/compare", params=asked).status_code == 200
    assert client.get(f"/evals/{id}", params={"page": "99", "method": "nobody"}).status_code == 200


def test_broken_file_is_named_and_others_are_shown(client: TestClient, folder: Path) -> None:
    data = json.loads((folder / "one.json").read_text())
    data["version"] = 9
    (folder / "two.json").write_bytes(json.dumps(data, separators=(",", ":")).encode())
    page = client.get("/evals").text
    assert "two.json" in page
    assert "cannot be opened" in page
    assert "says" in page


def test_names_are_escaped(client: TestClient, folder: Path) -> None:
    data = json.loads((folder / "one.json").read_text())
    data["dataset"] = data["methods"][0]["method"] = EVIL
    for case in data["cases"]:
        case["agent"] = case["part"] = EVIL
    (folder / "one.json").write_bytes(json.dumps(data, separators=(",", ":")).encode())
    id = only_id(client)
    for path in ("/evals", f"/evals/{id}", f"/evals/compare?a={id}&b={id}:remembers"):
        page = client.get(path)
        assert page.status_code == 200
        assert "<script>window" not in page.text
        assert "&lt;script&gt;" in page.text


def test_unchanged_file_is_not_read_again(folder: Path) -> None:
    held = EvaluationFiles((folder,))
    first = held.list_files()[0].result_file
    assert first is not None
    assert held.list_files()[0].result_file is first
    (folder / "copy.json").write_bytes((folder / "one.json").read_bytes())
    assert len(held.list_files()) == 1
    assert held.select_method(f"{first.id}:two_line") is not None
    assert held.select_method(f"{first.id}:nobody") is None


def test_failures_are_counted_and_grouped(client: TestClient) -> None:
    page = client.get("/failures")
    assert page.status_code == 200
    assert "<strong>4</strong> of 4 diagnosed runs failed" in page.text
    assert "Steps repeated" in page.text
    found = client.get("/api/failures", params={"by": "day"}).json()
    assert found["codes"][0]["name"] == "mast:step_repetition"
    assert found["without_schema"][0]["runs"] == 4
    assert found["clusters"] == []
    (row,) = found["agents_by_code"]
    assert row["runs"] == 4
    assert row["codes"] == {"mast:step_repetition": 4}
    link = f'href="/?verdict=failed&amp;agent={row["agent"]}&amp;code=mast%3Astep_repetition">4</a>'
    assert link in page.text


def test_runs_of_schema_form_one_cluster(tmp_path: Path, client: TestClient) -> None:
    schema = ErrorSchema(
        id="s1",
        signature=("It does the same again.",),
        codes=("mast:step_repetition",),
        correction="Look at what was done.",
        provenance=Provenance(method="embedded", runs=("r1", "r2", "gone")),
        support=3,
        created_at=1.0,
    )
    with Store.open(tmp_path / "store.db") as store:
        SqlSchemaStore(store).upsert([schema])
        store.write(SchemaRow(id="broken", data={"id": 7}))
        store.flush(10)
    found = client.get("/api/failures").json()
    assert [(one["schema"], sorted(one["runs"])) for one in found["clusters"]] == [("s1", ["r1", "r2"])]
    assert found["without_schema"][0]["runs"] == 2
    page = client.get("/failures").text
    assert "Suggested fix:" in page
    assert "1 schema could not be read" in page


def test_empty_store_shows_instructions(tmp_path: Path) -> None:
    with Store.open(tmp_path / "empty.db") as store:
        app = build_app(store, ViewerSettings(evals=(tmp_path / "none",)))
        with TestClient(app, base_url="http://127.0.0.1") as client:
            assert "agentguard diagnose" in client.get("/failures").text
            assert "agentguard eval" in client.get("/evals").text


def test_cases_without_name_have_generated_ids(tmp_path: Path) -> None:
    assert all(case.id for case in to_dataset(records()).build_cases())


def test_trends_show_the_change_of_the_last_week_and_new_kinds() -> None:
    weeks = (0, 7 * 86_400, 14 * 86_400)

    def series(name: str, *counts: int) -> FailureSeries:
        return FailureSeries(name=name, total=sum(counts), counts=dict(zip(weeks, counts, strict=True)))

    frequencies = FailureFrequencies(
        width_s=7 * 86_400,
        starts=weeks,
        runs=series("", 9, 9, 9),
        failed=series("", 4, 4, 4),
        agents=(series("a", 0, 3, 1), series("b", 0, 0, 2), series("c", 1, 0, 0)),
    )
    plots = build_trends(frequencies).agents
    assert [(plot.change, plot.is_new) for plot in plots] == [(-2, False), (2, True), (0, False)]
    first_week = replace(frequencies, starts=weeks[:1])
    assert build_trends(first_week).agents[0].change is None
