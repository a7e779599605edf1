from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from agentguard_server.viewer.app import build_app
from agentguard_server.viewer.settings import ViewerSettings
from starlette.testclient import TestClient

from agentguard.otlp.exporter import ExportTarget
from agentguard.store import Store
from tests.otlp_receiver import receiving
from tests.viewer_runs import lost

OURS = {"sec-fetch-site": "same-origin", "origin": "http://127.0.0.1"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.open(tmp_path / "s.db") as opened:
        opened.write_run(lost()[0])
        opened.flush(10)
        yield opened


def client(store: Store, target: ExportTarget | None) -> TestClient:
    return TestClient(build_app(store, ViewerSettings(collector=target)), base_url="http://127.0.0.1")


def test_run_is_sent_to_configured_collector(store: Store, tmp_path: Path) -> None:
    with receiving(tmp_path, "--reject", "1") as one:
        asked = client(store, ExportTarget(endpoint=one.url, headers={"authorization": "s3cret"}))
        page = asked.get("/runs/unrecovered-total").text
        assert f"Send to {one.url.removeprefix('http://')}" in page
        assert "s3cret" not in page
        answer = asked.post("/runs/unrecovered-total/send?endpoint=http://evil.example", headers=OURS)
        assert answer.status_code == 200
        assert "too old" in answer.text
        assert len(one.checked()) == 1
        assert asked.post("/runs/nobody/send", headers=OURS).status_code == 404
        assert asked.get("/runs/unrecovered-total/send").status_code in (404, 405)


def test_cross_site_request_sends_nothing(store: Store, tmp_path: Path) -> None:
    with receiving(tmp_path) as one:
        asked = client(store, ExportTarget(endpoint=one.url))
        headers = {"sec-fetch-site": "cross-site", "origin": "http://evil.example"}
        assert asked.post("/runs/unrecovered-total/send", headers=headers).status_code == 403
        assert not one.noted()


def test_collector_rejection_is_reported(store: Store, tmp_path: Path) -> None:
    with receiving(tmp_path, "--answers", "401") as one:
        answer = client(store, ExportTarget(endpoint=one.url)).post(
            "/runs/unrecovered-total/send", headers=OURS
        )
    assert answer.status_code == 502
    assert "rejects the credentials" in answer.text


def test_missing_collector_hides_button_and_address(store: Store) -> None:
    asked = client(store, None)
    assert "Send to" not in asked.get("/runs/unrecovered-total").text
    assert asked.post("/runs/unrecovered-total/send", headers=OURS).status_code == 404
