"""The doctor: checks of every area, and a remedy for each fault."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from agentguard.cli import doctor_checks
from agentguard.cli.app import build_app
from agentguard.cli.doctor_checks import EXTRAS, CheckContext, CheckResult
from agentguard.store import Store


@contextmanager
def endpoint(status: int = 200, *, late_s: float = 0.0, models: tuple[str, ...] = ("m",)) -> Iterator[str]:
    """Start a server that lists models; yield its base URL."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"object": "list", "data": [{"id": one} for one in models]}).encode()
            self.send_response_only(status)
            import time

            self.send_header("date", formatdate(time.time() - late_s, usegmt=True))
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None: ...

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def config(folder: Path, url: str, **more: Any) -> Path:
    path = folder / "proxy.yaml"
    replica = {"name": "a", "url": url} | more.pop("replica", {})
    path.write_text(json.dumps({"listen": {"port": 0}, "backends": {"replicas": [replica]}} | more))
    return path


def lines(**asked: Any) -> list[CheckResult]:
    return list(doctor_checks.run_checks(CheckContext(timeout_s=30, **asked)))


def of(found: list[CheckResult], area: str) -> list[CheckResult]:
    return [line for line in found if line.area == area]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Hide the store of this checkout."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("AGENTGUARD_STORE", raising=False)


def test_sound_installation_has_no_fault() -> None:
    result = CliRunner().invoke(build_app(), ["doctor", "--json"])
    assert result.exit_code == 0
    data = json.loads(result.output)
    assert (data["ok"], data["wrong"]) == (True, 0)
    areas = {one["area"] for one in data["checks"]}
    assert areas == {"python", "extras", "model", "store"}
    assert {one["what"] for one in data["checks"] if one["area"] == "extras"} == set(EXTRAS)


def test_table_shows_the_remedy(tmp_path: Path) -> None:
    result = CliRunner().invoke(build_app(), ["doctor", "--store", "mysql://nowhere"])
    assert result.exit_code == 1
    assert "→" in result.output
    assert "problems: 1" in result.output


def test_every_fault_has_a_remedy(tmp_path: Path) -> None:
    path = config(
        tmp_path,
        "http://127.0.0.1:1/v1",
        guard={"policy": {"enabled_detectors": ["no such detector"]}},
        capture={"store": "mysql://x"},
    )
    found = lines(config=path, store=str(tmp_path / "none.db"))
    wrong = [line for line in found if line.condition == "wrong"]
    assert {line.area for line in wrong} == {"store", "proxy", "backends"}
    assert all(line.remedy for line in wrong)


def test_store_is_opened_and_unreachable_database_is_reported(tmp_path: Path) -> None:
    Store.open(tmp_path / "runs.db").close()
    (line,) = of(lines(store=str(tmp_path / "runs.db")), "store")
    assert (line.condition, line.found.split(",")[1]) == ("ok", " 0 runs")
    (line,) = of(lines(store="postgresql://u:secret-word@127.0.0.1:1/none"), "store")
    assert line.condition == "wrong"
    assert "secret-word" not in str(line)


def test_missing_store_is_not_created(tmp_path: Path) -> None:
    path = config(tmp_path, "http://127.0.0.1:1/v1", capture={"store": str(tmp_path / "new" / "runs.db")})
    found = lines(config=path, network=False)
    (line,) = [line for line in found if line.what.startswith("capture.store")]
    assert (line.condition, line.found) == ("note", "it does not exist yet")
    assert not (tmp_path / "new").exists()
    assert not list(tmp_path.glob("**/*.db"))


def test_older_store_needs_migration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from agentguard.store.db import migration

    Store.open(tmp_path / "runs.db").close()
    monkeypatch.setattr(migration, "REVISIONS", (*migration.REVISIONS, "9999"))
    (line,) = of(lines(store=str(tmp_path / "runs.db")), "store")
    assert "agentguard store migrate" in line.remedy


def test_invalid_config_names_the_field(tmp_path: Path) -> None:
    path = tmp_path / "proxy.yaml"
    path.write_text("listen: {prot: 1}\nbackends: {replicas: [{name: a, url: 'http://x/v1'}]}\n")
    (line,) = of(lines(config=path), "proxy")
    assert line.condition == "wrong"
    assert "listen.prot" in line.found
    (line,) = of(lines(config=tmp_path / "none.yaml"), "proxy")
    assert "none.yaml" in line.found


def test_answering_backend_passes(tmp_path: Path) -> None:
    with endpoint() as url:
        (line,) = of(lines(config=config(tmp_path, url)), "backends")
    assert line.condition == "ok"
    assert line.found.startswith("1 model,")


@pytest.mark.parametrize(
    ("served", "expected"),
    [
        ({"status": 401}, "rejects the key"),
        ({"status": 500}, "status 500"),
        ({"late_s": 600.0}, "behind the clock of this machine"),
        ({"models": ("other",)}, "does not serve m"),
    ],
)
def test_backend_fault_is_reported(tmp_path: Path, served: dict[str, Any], expected: str) -> None:
    with endpoint(**served) as url:
        found = of(lines(config=config(tmp_path, url, replica={"models": {"m": "m"}})), "backends")
    wrong = [line for line in found if line.condition == "wrong"]
    assert len(wrong) == 1
    assert expected in wrong[0].found


def test_offline_check_sends_no_request(tmp_path: Path) -> None:
    found = lines(config=config(tmp_path, "http://127.0.0.1:1/v1"), network=False)
    (line,) = of(found, "backends")
    assert line.condition == "note"
    assert not [line for line in found if line.condition == "wrong"]


def test_used_port_is_reported(tmp_path: Path) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        path = config(tmp_path, "http://127.0.0.1:1/v1", listen={"port": taken.getsockname()[1]})
        found = lines(config=path, network=False)
    assert [line.what for line in found if line.condition == "wrong" and "in use" in line.found]


def test_failing_check_does_not_hide_others(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: CheckContext) -> Iterator[CheckResult]:
        raise RuntimeError("secret")

    registry = doctor_checks.check_registry()
    monkeypatch.setitem(registry._plugins, "2-extras", broken)
    found = lines()
    (line,) = of(found, "extras")
    assert line.found == "the check raised RuntimeError"
    assert of(found, "model")


def test_missing_certificate_names_field_and_file(tmp_path: Path) -> None:
    tls = {"cert_file": str(tmp_path / "none.pem"), "key_file": str(tmp_path / "none.key")}
    found = lines(
        config=config(tmp_path, "http://127.0.0.1:1/v1", listen={"port": 0, "tls": tls}), network=False
    )
    (line,) = [one for one in of(found, "proxy") if one.what == "listen.tls"]
    assert line.condition == "wrong"
    assert "listen.tls.cert_file" in line.found
    assert "none.pem" in line.found
