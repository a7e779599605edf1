"""Pages of issues: list, one issue, changes, links with runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.settings import ViewerSettings
from starlette.testclient import TestClient

from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow
from agentguard.store.issues import compute_issue_id, get_issue
from agentguard.trajectory.model import Source, Step, Trajectory

HERE = "http://127.0.0.1:7430"
AGENT = "<b>buyer</b>"
CODE = "mast:FM-1.3"
ISSUE = compute_issue_id(AGENT, CODE, "planning")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "s.db") as opened:
        for name in ("one", "two"):
            steps = tuple(Step(index=i, source=Source.AGENT, agent=AGENT, content="x") for i in range(4))
            opened.write_run(Trajectory(id=name, format="f", task=f"task {name}", steps=steps))
            opened.write(
                DiagnosisRow(
                    run_id=name,
                    method="m",
                    verdict="failed",
                    step=2,
                    agent=AGENT,
                    code=CODE,
                    module="planning",
                )
            )
        opened.write_run(Trajectory(id="fine", format="f", task="fine", steps=())).wait(10)
        yield opened


@pytest.fixture
def client(store: Store) -> TestClient:
    return TestClient(build_app(store), base_url=HERE, headers={"origin": HERE}, follow_redirects=False)


def test_list_shows_recurring_failures(client: TestClient) -> None:
    text = client.get("/issues").text
    assert f'href="/issues/{ISSUE}"' in text
    assert "&lt;b&gt;buyer&lt;/b&gt;" in text
    assert "<b>buyer" not in text
    assert f'href="/issues/{ISSUE}"' not in client.get("/issues?state=resolved").text
    assert f'href="/issues/{ISSUE}"' in client.get("/issues?state=nonsense").text


def test_issue_and_its_runs_link_to_each_other(client: TestClient) -> None:
    text = client.get(f"/issues/{ISSUE}").text
    assert 'href="/runs/one#step-2"' in text
    assert 'href="/runs/two#step-2"' in text
    assert f'href="/issues/{ISSUE}"' in client.get("/runs/one").text
    assert 'href="/issues/' not in client.get("/runs/fine").text


def test_form_changes_title_owner_and_state(store: Store, client: TestClient) -> None:
    fields = {"title": "Repeats", "owner": "ann", "state": "resolved"}
    answer = client.post(f"/issues/{ISSUE}", data=fields)
    assert (answer.status_code, answer.headers["location"]) == (303, f"/issues/{ISSUE}")
    issue = get_issue(store, ISSUE)
    assert issue is not None
    assert (issue.title, issue.owner, issue.state) == ("Repeats", "ann", "resolved")
    assert "<h1>Repeats</h1>" in client.get(f"/issues/{ISSUE}").text
    program = client.post(
        f"/issues/{ISSUE}", data={"state": "open"}, headers={"accept": "application/json"}
    ).json()
    assert (program["state"], program["owner"], program["title"]) == ("open", "ann", "Repeats")


@pytest.mark.parametrize("origin", ["null", "http://evil.example"])
def test_change_from_foreign_page_is_refused(store: Store, client: TestClient, origin: str) -> None:
    answer = client.post(f"/issues/{ISSUE}", data={"state": "resolved"}, headers={"origin": origin})
    assert answer.status_code == 403
    issue = get_issue(store, ISSUE)
    assert issue is not None
    assert issue.state == "open"


def test_invalid_changes_are_rejected(client: TestClient) -> None:
    assert client.post("/issues/unknown", data={"state": "open"}).status_code == 404
    assert client.get("/issues/unknown").status_code == 404
    assert client.get("/api/issues/unknown").status_code == 404
    answer = client.post(f"/issues/{ISSUE}", data={"state": "done"})
    assert answer.status_code >= 400
    assert "expected one of open, resolved, ignored" in answer.text


def test_temporary_store_shows_issues_without_form(store: Store) -> None:
    client = TestClient(
        build_app(store, ViewerSettings(allows_feedback=False)), base_url=HERE, headers={"origin": HERE}
    )
    assert "<form" not in client.get(f"/issues/{ISSUE}").text
    assert "give the viewer a store" in client.post(f"/issues/{ISSUE}", data={"state": "open"}).text


def test_api_returns_issues_as_json(client: TestClient) -> None:
    (issue,) = client.get("/api/issues").json()["issues"]
    assert (issue["id"], issue["runs"], issue["state"], issue["agent"]) == (ISSUE, 2, "open", AGENT)
    assert client.get("/api/issues?state=ignored").json() == {"issues": []}
    assert sorted(client.get(f"/api/issues/{ISSUE}").json()["latest"]) == ["one", "two"]
