"""Faults of the proxy's limits, certificates and WebSockets: kills, reloads and clients that misbehave."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import signal
import socket
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentguard.testing.fake_backend import FakeBackend, Hang, Ok
from tests.faults.proxy_process import Proxy, serving, until

KEY, READ = "ag-limited", "ag-read"
CHAT = "/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}
WEBSOCKET = (
    "GET /v1/realtime HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: MDAwMDAwMDAwMDAwMDAwMA==\r\n"
    f"Authorization: Bearer {READ}\r\n\r\n"
)


def key(secret: str, *scopes: str, tenant: str = "t", **limits: Any) -> dict[str, Any]:
    digest = hashlib.sha256(secret.encode()).hexdigest()
    scoped = {"scopes": list(scopes)} if scopes else {}
    return {"name": secret, "hash": f"sha256:{digest}", "tenant": tenant, "limits": limits, **scoped}


def document(url: str, *, workers: int = 1, **sections: Any) -> dict[str, Any]:
    return {
        "listen": {"workers": workers, "shutdown_timeout_s": 1},
        "backends": {"replicas": [{"name": "a", "url": url}], "health": "off"},
        "keys": [key(KEY), key(READ, "call", "read", "admin", tenant="")],
        **sections,
    }


def ask(proxy: Proxy, secret: str = KEY, *, timeout: float = 30.0) -> int:
    """Return the status of one request on a new connection; 0 if the connection breaks."""
    connection = http.client.HTTPConnection("127.0.0.1", proxy.port, timeout=timeout)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("POST", CHAT, json.dumps(BODY), {"Authorization": f"Bearer {secret}"})
        answer = connection.getresponse()
        answer.read()
        return answer.status
    return 0


def rewrite(proxy: Proxy, content: str) -> None:
    beside = proxy.config.with_suffix(".new")
    beside.write_text(content, encoding="utf-8")
    beside.replace(proxy.config)
    proxy.hang_up()


@pytest.fixture
def backend() -> Iterator[FakeBackend]:
    with FakeBackend() as found:
        yield found


def test_killed_worker_keeps_the_used_rate_and_frees_its_slots(tmp_path: Path, backend: FakeBackend) -> None:
    limits = {"requests_per_minute": 4, "max_concurrent": 2}
    with serving(tmp_path, document(backend.url, workers=2, tenants={"t": limits})) as proxy:
        assert [ask(proxy) for _ in range(3)] == [200] * 3
        killed = proxy.pids()
        for pid in killed:
            os.kill(pid, signal.SIGKILL)
        until(lambda: len(proxy.pids()) == 2 and not set(proxy.pids()) & set(killed))
        until(lambda: ask(proxy, READ) == 200)
        assert sorted(ask(proxy) for _ in range(3)) == [200, 429, 429]


def test_killed_worker_loses_no_synchronized_spending(tmp_path: Path, backend: FakeBackend) -> None:
    store = tmp_path / "store.db"
    sections = {
        "tenants": {"t": {"budget": {"max_usd": 0.02, "period": "total"}}},
        "prices": {"*": {"input": 1000, "output": 1000}},
        "cluster": {"store": str(store), "sessions": False, "health_hints": False},
    }
    with serving(tmp_path, document(backend.url, workers=2, **sections)) as proxy:
        until(lambda: ask(proxy) == 429)

        def spent() -> float:
            with contextlib.closing(sqlite3.connect(store)) as database, contextlib.suppress(sqlite3.Error):
                return float(database.execute("SELECT sum(usd) FROM agentguard_spending").fetchone()[0] or 0)
            return 0.0

        until(lambda: spent() >= 0.02)
        for pid in proxy.pids():
            os.kill(pid, signal.SIGKILL)
        until(lambda: ask(proxy, READ) == 200)
        until(lambda: ask(proxy) == 429)


def test_two_proxies_share_a_budget_through_one_store(tmp_path: Path, backend: FakeBackend) -> None:
    sections = {
        "tenants": {"t": {"budget": {"max_usd": 0.02, "period": "month"}}},
        "prices": {"*": {"input": 1000, "output": 1000}},
        "cluster": {"store": str(tmp_path / "store.db"), "sessions": False, "health_hints": False},
    }
    made = document(backend.url, **sections)
    with serving(tmp_path / "one", made) as one, serving(tmp_path / "two", made) as two:
        assert ask(two) == 200
        until(lambda: ask(one) == 429)
        until(lambda: ask(two) == 429, 10)
        one.kill()
        assert ask(two) == 429


def test_proxy_serves_while_the_budget_store_is_unwritable(tmp_path: Path, backend: FakeBackend) -> None:
    store = tmp_path / "store.db"
    sections = {
        "tenants": {"t": {"budget": {"max_usd": 0.05, "period": "total"}}},
        "prices": {"*": {"input": 1000, "output": 1000}},
        "cluster": {"store": str(store), "sessions": False, "health_hints": False},
    }
    with serving(tmp_path, document(backend.url, **sections)) as proxy:
        until(store.exists)
        with contextlib.closing(sqlite3.connect(store, timeout=30)) as blocker:
            blocker.execute("BEGIN IMMEDIATE")  # as a writer that holds the lock, or a disk that is full
            began = time.monotonic()
            assert ask(proxy) == 200
            assert time.monotonic() - began < 4, "no request waits for the database"
            until(lambda: ask(proxy) == 429)
            blocker.execute("ROLLBACK")


BROKEN_FILES = (
    "keys: [",
    "version: 2\n",
    "tenants: {nobody: {requests_per_minute: 1}}\n",
    "prices: {m: {input: -1, output: 1}}\n",
    "keys: []\n",
    "",
    "\x00\x01",
    "[1, 2]",
)


def test_broken_files_keep_limits_and_keys(tmp_path: Path, backend: FakeBackend) -> None:
    made = document(backend.url, tenants={"t": {"requests_per_minute": 2}})
    with serving(tmp_path, made) as proxy:
        assert ask(proxy) == 200
        for count, broken in enumerate(BROKEN_FILES, 1):
            kept = yaml.safe_dump({name: value for name, value in made.items() if f"{name}:" not in broken})
            rewrite(proxy, kept + broken if broken.endswith("\n") else broken)
            until(lambda count=count: proxy.printed().count("the configuration was not reloaded") == count)
        assert [ask(proxy), ask(proxy), ask(proxy, "unknown")] == [200, 429, 401]


def test_reload_lowers_a_limit_and_revokes_a_key_at_once(tmp_path: Path, backend: FakeBackend) -> None:
    made = document(backend.url)
    with serving(tmp_path, made) as proxy:
        assert [ask(proxy) for _ in range(3)] == [200] * 3
        made["tenants"] = {"t": {"requests_per_minute": 1}}
        rewrite(proxy, yaml.safe_dump(made))
        until(lambda: proxy.printed().count("the configuration was reloaded") == 1)
        assert [ask(proxy), ask(proxy)] == [200, 429]
        del made["tenants"]
        made["keys"] = made["keys"][1:]
        rewrite(proxy, yaml.safe_dump(made))
        until(lambda: proxy.printed().count("the configuration was reloaded") == 2)
        assert ask(proxy) == 401


def test_half_closed_client_frees_its_slot(tmp_path: Path) -> None:
    with FakeBackend([Hang(), Ok()]) as backend:
        made = document(backend.url, tenants={"t": {"max_concurrent": 1}})
        with serving(tmp_path, made) as proxy:
            client = socket.create_connection(("127.0.0.1", proxy.port), 30)
            data = json.dumps(BODY).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\n"
            client.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
            until(lambda: backend.requests)
            assert ask(proxy) == 429
            client.shutdown(socket.SHUT_WR)
            until(lambda: ask(proxy) == 200, 20)
            client.close()


def test_open_websocket_does_not_delay_the_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        port = upstream.getsockname()[1]
        with serving(tmp_path, document(f"http://127.0.0.1:{port}/v1")) as proxy:
            client = socket.create_connection(("127.0.0.1", proxy.port), 30)
            client.sendall(WEBSOCKET.encode())
            endpoint, _ = upstream.accept()
            endpoint.recv(65_536)
            endpoint.sendall(
                b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
            )
            assert client.recv(65_536).startswith(b"HTTP/1.1 101")
            proxy.process.terminate()
            proxy.process.wait(20)
            with contextlib.suppress(ConnectionResetError):
                assert client.recv(65_536) == b""
            client.close()
            endpoint.close()


def test_websocket_to_a_silent_endpoint_ends_with_one_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as upstream:
        made = document(f"http://127.0.0.1:{upstream.getsockname()[1]}/v1")
        made["backends"]["pipeline"] = {"timeout": {"total_s": 1.0}, "retry": "off"}
        with serving(tmp_path, made) as proxy:
            client = socket.create_connection(("127.0.0.1", proxy.port), 30)
            client.sendall(WEBSOCKET.encode())
            assert client.recv(65_536).split()[1] in (b"502", b"504")
            client.close()
            assert ask(proxy, "unknown") == 401, "the worker serves on"
