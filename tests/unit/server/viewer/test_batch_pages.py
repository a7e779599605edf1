"""The pages of batch diagnoses, without a browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentguard_server.cmd_view import classify_sources
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.settings import ViewerSettings
from starlette.testclient import TestClient

from agentguard.batch import build_batch_report, render_batch_parts
from agentguard.store import Store
from tests.unit.batch.test_report import build_failed_row, build_row, write_table

EVIL = "<script>window.pwned=1</script>"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return the output folder of a job with a failed and a passed run."""
    folder = tmp_path / "verdicts"
    folder.mkdir()
    write_table(folder, [build_failed_row(0, reason=EVIL), build_row(1, "no_failure_found")])
    return folder


@pytest.fixture
def client(tmp_path: Path, folder: Path) -> Iterator[TestClient]:
    with Store.open(tmp_path / "store.db") as store:
        app = build_app(store, ViewerSettings(batches=(str(folder),)))
        with TestClient(app, base_url="http://127.0.0.1") as opened:
            yield opened


def find_path(client: TestClient) -> str:
    (found,) = client.get("/api/batches").json()["batches"]
    return f"/batches/{found['id']}"


def test_list_links_the_job_with_its_counts(client: TestClient, folder: Path) -> None:
    page = client.get("/batches").text
    assert f'<a href="{find_path(client)}">{folder}</a>' in page
    assert 'href="/batches"' in client.get("/").text


def test_page_has_the_parts_of_the_report_escaped(client: TestClient, folder: Path) -> None:
    page, report = client.get(find_path(client)), build_batch_report(str(folder))
    assert page.status_code == 200
    assert "".join(render_batch_parts(report)) in page.text
    assert EVIL not in page.text
    encoded = client.get(f"/api{find_path(client)}").json()["report"]
    assert encoded["clusters"] == report.to_dict()["clusters"]
    assert encoded["verdicts"] == {"failed": 1, "no_failure_found": 1, "undecided": 0}


def test_grown_table_is_read_again(client: TestClient, folder: Path) -> None:
    path = f"/api{find_path(client)}"
    (part,) = (folder / "verdicts").iterdir()
    part.with_name("more.parquet").write_bytes(part.read_bytes())
    assert client.get(path).json()["report"]["rows"] == 4


def test_damaged_table_is_named(client: TestClient, folder: Path) -> None:
    (folder / "verdicts" / "0.parquet").write_bytes(b"damaged")
    assert "cannot be read" in client.get("/batches").text
    assert "cannot be read" in client.get(find_path(client)).text


def test_unknown_job_is_not_found(client: TestClient) -> None:
    assert client.get("/batches/none").status_code == 404
    assert client.get("/api/batches/none").status_code == 404


def test_viewer_without_jobs_has_no_link(tmp_path: Path) -> None:
    with (
        Store.open(tmp_path / "empty.db") as store,
        TestClient(build_app(store, ViewerSettings()), base_url="http://127.0.0.1") as opened,
    ):
        assert 'href="/batches"' not in opened.get("/").text
        assert "There are no batch jobs" in opened.get("/batches").text


def test_argument_of_the_command_is_recognised_as_a_job(folder: Path, tmp_path: Path) -> None:
    assert classify_sources([str(folder)], None).batches == (str(folder),)
    assert classify_sources([str(tmp_path)], None).batches == ()


def test_url_of_an_object_store_is_recognised_as_a_job() -> None:
    import fsspec

    system = fsspec.filesystem("memory")
    system.pipe_file("/viewed/manifest.json", b"{}")
    system.pipe_file("/viewed/verdicts/0.parquet", b"")
    assert classify_sources(["memory://viewed"], None).batches == ("memory://viewed",)
