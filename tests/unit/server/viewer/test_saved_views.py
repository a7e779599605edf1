"""Saved views of the list of runs: save, use, delete, and the errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.settings import ViewerSettings
from starlette.testclient import TestClient

from agentguard.errors import StoreError
from agentguard.store import Store
from agentguard.store.db.rows import RunRow
from agentguard.store.saved_views import MAX_SAVED_VIEWS, list_saved_views, save_view
from tests.postgres import postgres, postgres_url  # noqa: F401

HERE = "http://127.0.0.1:7430"


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    url = tmp_path / "s.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Store.open(url) as opened:
        opened.write(RunRow(id="one", task="book"), RunRow(id="other", task="write")).wait(10)
        yield opened


@pytest.fixture
def client(store: Store) -> TestClient:
    return TestClient(build_app(store), base_url=HERE, headers={"origin": HERE}, follow_redirects=False)


def test_saved_view_is_shown_used_and_deleted(client: TestClient, store: Store) -> None:
    assert "Save view" not in client.get("/").text, "a list without a filter is no view"
    assert "Save view" in client.get("/?q=book").text
    form = {"action": "save", "name": " My <b>books</b> ", "query": "q=book&sort=steps&after=x&nonsense=1"}
    saved = client.post("/views", data=form)
    assert (saved.status_code, saved.headers["location"]) == (303, "/?q=book&sort=steps")
    page = client.get(saved.headers["location"]).text
    assert "My &lt;b&gt;books&lt;/b&gt;</a>" in page
    assert 'aria-current="true">My' in page
    assert "Save view" not in page
    expected = {"name": "My <b>books</b>", "query": "q=book&sort=steps"}
    assert client.get("/api/views").json() == {"views": [expected]}
    client.post("/views", data={"action": "delete", "name": "My <b>books</b>"})
    assert list_saved_views(store) == ()


@pytest.mark.parametrize(
    ("name", "words"), [("  ", "is empty"), ("n" * 61, "61 characters"), ("used", "already: choose another")]
)
def test_unusable_name_is_rejected(name: str, words: str, client: TestClient, store: Store) -> None:
    save_view(store, "used", "q=book")
    answer = client.post("/views", data={"action": "save", "name": name, "query": "q=write"})
    assert answer.status_code == 400
    assert words in answer.text
    assert [(view.name, view.query) for view in list_saved_views(store)] == [("used", "q=book")]


def test_views_of_tenants_are_separate(store: Store) -> None:
    save_view(store, "mine", "q=a", tenant="a")
    save_view(store, "mine", "q=b", tenant="b")
    assert [view.query for view in list_saved_views(store, tenant="a")] == ["q=a"]
    assert not store.delete_saved_view("mine", tenant="c")
    assert store.delete_saved_view("mine", tenant="a")
    assert [view.query for view in list_saved_views(store, tenant="b")] == ["q=b"]


def test_number_of_views_is_bounded(store: Store) -> None:
    for number in range(MAX_SAVED_VIEWS):
        save_view(store, f"view {number}", "q=a")
    with pytest.raises(StoreError, match="delete one first"):
        save_view(store, "another", "q=a")


def test_viewer_without_changes_saves_no_view(store: Store) -> None:
    app = build_app(store, ViewerSettings(allows_feedback=False))
    client = TestClient(app, base_url=HERE, headers={"origin": HERE})
    assert "Save view" not in client.get("/?q=book").text
    assert client.post("/views", data={"action": "save", "name": "x", "query": "q=a"}).status_code == 400
    assert list_saved_views(store) == ()
