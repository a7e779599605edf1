"""No access without a key, for any spelling of a path, and each key allows only its scopes.

Known cases: BadHost (CVE-2026-48710), a Host header that changed the checked route; a timing side channel in
the comparison of keys (CVE-2025-59425): the proxy looks up hashes, see `keys.py`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import pytest
from agentguard_server.proxy.auth.authorization import generate_key

from agentguard.testing.fake_backend import FakeBackend
from tests.faults.proxy_client import PATHS, Got, ask, body_for, request_bytes, send
from tests.faults.proxy_process import Proxy, replicas, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MADE = {name: generate_key() for name in ("caller", "reader", "admin", "other")}
KEY = {name: key for name, (key, _) in MADE.items()}
SCOPES = {"caller": ["call"], "reader": ["read"], "admin": ["call", "read", "admin"], "other": ["call"]}
OPEN = ("/healthz", "/readyz")
SECRET = b"usable"
"""Part of /status, and of no page that is visible without a key."""


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, FakeBackend]]:
    keys = [
        {"name": name, "hash": hashed, "scopes": SCOPES[name], "tenant": name}
        for name, (_, hashed) in MADE.items()
    ]
    with FakeBackend(name="a") as a:
        settings: dict[str, Any] = {
            "backends": {"replicas": replicas(a), "health": "off"},
            "keys": keys,
            "ui": {"store": str(tmp_path_factory.mktemp("ui") / "runs.db")},
        }
        with serving(tmp_path_factory.mktemp("doors"), settings) as proxy:
            yield proxy, a


def bearer(name: str) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {KEY[name]}"),)


def get(proxy: Proxy, path: str, *, method: str = "GET", **options: Any) -> Got:
    return asyncio.run(ask(proxy.port, path, method=method, **options))


def routes(proxy: Proxy) -> list[tuple[str, str]]:
    """Return all routes: our own from their description, the model APIs, and pass-through."""
    told = json.loads(get(proxy, "/agentguard/v1/openapi.json", headers=bearer("reader")).body)
    ours = [
        (method.upper(), path.replace("{name}", "a").replace("{id}", "x"))
        for path, methods in told["paths"].items()
        for method in methods
    ]
    assert len(ours) >= 12
    models = [("POST", path) for path in PATHS.values()]
    more = [("GET", "/v1/models"), ("POST", "/v1/anything"), ("DELETE", "/v1/files/x"), ("GET", "/ui/")]
    return [*ours, *models, *more, ("GET", "/ui/runs"), ("GET", "/"), ("GET", "/nothing")]


def test_every_route_requires_a_key(scene: tuple[Proxy, FakeBackend]) -> None:
    proxy, a = scene
    before = len(a.requests)
    wrong = {
        "none": (),
        "empty": (("authorization", ""),),
        "another": (("authorization", "Bearer ag-" + "x" * 43),),
        "a hash": (("authorization", f"Bearer {MADE['admin'][1]}"),),
        "basic": (("authorization", f"Basic {KEY['admin']}"),),
        "two": (*bearer("admin"), ("authorization", "Bearer x")),
        "cut": (("authorization", f"Bearer {KEY['admin'][:-1]}"),),
        "longer": (("authorization", f"Bearer {KEY['admin']}x"),),
        "in a cookie": (("cookie", f"authorization=Bearer {KEY['admin']}; agentguard_view={KEY['admin']}"),),
        "in another header": (("x-agentguard-key", KEY["admin"]),),
    }
    for method, path in routes(proxy):
        for name, headers in wrong.items():
            got = get(proxy, path, method=method, headers=headers)
            assert (got.status == 200) == (path in OPEN), f"{method} {path} with {name}: {got.status}"
            if path not in OPEN:
                assert got.status == 401, f"{method} {path} with {name}: {got.status}"
                told = b"needs a key" if path.startswith("/ui") else b'"error"'
                assert told in got.body, f"{method} {path}: {got}"
    for path in ("/status", "/v1/models"):
        assert get(proxy, f"{path}?key={KEY['admin']}&api_key={KEY['admin']}").status == 401
    assert len(a.requests) == before


TRICKS = [
    "//status", "///status", "/./status", "/healthz/../status", "/healthz/..//status",
    "/readyz/%2e%2e/status", "/healthz%2f..%2fstatus", "/healthz%2F..%2Fstatus", "/%73tatus", "/status/",
    "/STATUS", "/Status", "/status%20", "/status%00", "/status%00/healthz", "/status?/healthz",
    "/status;/healthz", "/status;jsessionid=1", "/healthz;/../status", "/healthz/status",
    "/healthz\\..\\status", "\\status", "/status#/healthz", "/.;/status", "/..;/status", "/v1/../status",
    "/v1/%2e%2e/status", "/v1/..%2fstatus", "/v1/chat/completions/../../../status",
    "/v1/healthz/../../status", "http://127.0.0.1/status", "http://127.0.0.1/healthz/../status",
    "//healthz/status", "/status?x=/healthz", "*", "/%2e/status", "/%252e%252e/status",
    "/%c0%ae%c0%ae/status", "/agentguard/v1/../../status", "/agentguard//v1/replicas",
    "/AGENTGUARD/v1/replicas", "/agentguard/v1/replicas/", "/agentguard/v1/openapi.json/", "/metrics/",
    "/metrics%2f", "/ui/../status", "/ui/%2e%2e/status", "/ui//runs", "/ui/static/../runs",
    "/ui/static/..%2fruns", "/ui/static/%2e%2e/%2e%2e/status", "/healthz/%2e%2e/metrics",
]  # fmt: skip


@pytest.mark.parametrize("host", ["127.0.0.1", "x/healthz?", "healthz", "127.0.0.1/healthz#", "[::1]", ""])
def test_no_spelling_of_a_path_bypasses_the_key(scene: tuple[Proxy, FakeBackend], host: str) -> None:
    proxy, a = scene
    before = len(a.requests)

    async def main() -> list[Got]:
        data = [request_bytes(path, method="GET", headers=(("host", host),)) for path in (*TRICKS, "/status")]
        return list(await asyncio.gather(*(send(proxy.port, one) for one in data)))

    for path, got in zip((*TRICKS, "/status"), asyncio.run(main()), strict=True):
        assert got.status in (400, 401, 404), f"{path}: {got.status}"
        assert SECRET not in got.body
    assert len(a.requests) == before


def test_other_methods_require_a_key(scene: tuple[Proxy, FakeBackend]) -> None:
    proxy, a = scene
    before = len(a.requests)
    for method in ("HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "PROPFIND", "get", "X"):
        for path in ("/status", "/v1/models", "/agentguard/v1/replicas"):
            data = request_bytes(path, method=method)
            got = asyncio.run(send(proxy.port, data))
            assert got.status in (400, 401, 405, 501), f"{method} {path}: {got}"
    for named in ("x-http-method-override", "x-original-url", "x-rewrite-url", "x-forwarded-prefix"):
        got = get(proxy, "/healthz", headers=((named, "/status"),))
        assert SECRET not in got.body
        assert get(proxy, "/status", headers=((named, "/healthz"),)).status == 401
    assert len(a.requests) == before


def test_key_is_limited_to_its_scopes(scene: tuple[Proxy, FakeBackend]) -> None:
    proxy, a = scene
    may = {
        ("GET", "/status"): {"reader", "admin"},
        ("GET", "/metrics"): {"reader", "admin"},
        ("GET", "/agentguard/v1/replicas"): {"reader", "admin"},
        ("GET", "/agentguard/v1/sessions"): {"reader", "admin"},
        ("POST", "/agentguard/v1/replicas/a/undrain"): {"admin"},
        ("POST", PATHS["chat"]): {"caller", "admin", "other"},
        ("POST", PATHS["messages"]): {"caller", "admin", "other"},
        ("GET", "/v1/models"): {"caller", "admin", "other"},
    }
    for (method, path), allowed in may.items():
        for name in KEY:
            body = body_for("messages" if "messages" in path else "chat") if path.startswith("/v1/") else b""
            got = get(
                proxy, path, method=method, headers=bearer(name), body=body if method == "POST" else b""
            )
            assert (got.status < 300) == (name in allowed), f"{method} {path} as {name}: {got.status}"
            if name not in allowed:
                assert got.status == 403
    for kind in ("x-api-key", "api-key"):
        assert get(proxy, "/status", headers=((kind, KEY["reader"]),)).status == 200
    sent = b"".join(b"".join(name + value for name, value in one.headers) for one in a.requests)
    for key in KEY.values():
        assert key.encode() not in sent  # our key must not reach the upstream


def test_key_after_body_is_ignored(scene: tuple[Proxy, FakeBackend]) -> None:
    proxy, _ = scene
    data = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n"
        b"trailer: authorization\r\n\r\n2\r\n{}\r\n0\r\nauthorization: Bearer "
        + KEY["caller"].encode()
        + b"\r\n\r\n"
    )
    assert asyncio.run(send(proxy.port, data)).status == 401


def test_proxy_without_keys_rejects_web_origins_and_foreign_hosts(tmp_path: Any) -> None:
    with FakeBackend(name="a") as a:
        settings = {"backends": {"replicas": replicas(a), "health": "off"}}
        with serving(tmp_path, settings) as proxy:
            for headers in (
                (("host", "evil.example"),),
                (("host", "127.0.0.1.evil.example"),),
                (("host", "evil@127.0.0.1"),),
                (("origin", "https://evil.example"),),
                (("origin", "null"),),
                (("sec-fetch-site", "cross-site"),),
            ):
                for path in ("/status", "/v1/models", "/metrics"):
                    assert get(proxy, path, headers=headers).status in (400, 403), (headers, path)
            assert a.requests == []
            assert get(proxy, "/status").status == 200


def test_public_address_without_keys_prevents_start(tmp_path: Any) -> None:
    settings = {"backends": {"replicas": [{"name": "a", "url": "http://127.0.0.1:9/v1"}]}}
    settings["listen"] = {"host": "0.0.0.0"}  # type: ignore[assignment]
    with pytest.raises(AssertionError, match="needs API keys"), serving(tmp_path, settings):
        pass
