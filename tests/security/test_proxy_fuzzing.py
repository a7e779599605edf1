"""Fuzzing of the proxy by its own description: accepted and rejected requests, and the answers.

Schemathesis reads the OpenAPI document of the proxy, extended by the model APIs with bodies of any shape. It
sends requests to a real proxy with a real backend. No request may cause a server error or an undocumented
answer, or succeed without a key.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.auth.authorization import generate_key

from agentguard.testing.fake_backend import FakeBackend
from tests.faults.proxy_client import PATHS
from tests.proxy_server import Proxy, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

KEY, HASH = generate_key()
CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,"
    "ignored_auth"
)
EXAMPLES = 4
ANY = ("string", "number", "boolean", "null", "array", "object")
GUARD = {"recover": {"on_fail": ["rollback"]}, "localizer": {"name": "first_finding"}}


def model_apis() -> dict[str, Any]:
    """Return the model APIs: an object with any values in its fields, valid or not."""
    fields = ("model", "messages", "input", "prompt", "tools", "previous_response_id")
    loose = {"type": list(ANY)}
    items = {"type": "array", "maxItems": 3, "items": {"type": "object", "properties": {
        "role": {"enum": ["user", "assistant", "tool", "system", 1, None]}, "content": loose,
        "tool_calls": loose, "tool_call_id": loose, "type": loose, "output": loose, "call_id": loose,
    }}}  # fmt: skip
    properties = {name: {"anyOf": [loose, items]} for name in fields}
    body = {"type": "object", "properties": properties}
    answers = {str(status): {"description": "as it is"} for status in (200, 400, 401, 403, 404, 413, 415)}
    for answer in answers.values():
        answer["content"] = {"application/json": {}, "text/event-stream": {}}  # type: ignore[assignment]
    operation = {
        "requestBody": {"required": True, "content": {"application/json": {"schema": body}}},
        "responses": answers,
        "security": [{"key": []}],
    }
    return {path: {"post": operation} for path in PATHS.values()}


def described(proxy: Proxy, folder: Path) -> Path:
    """Return the proxy's own document, with the model APIs."""
    status, _, said = proxy.ask(
        method="GET", path="/agentguard/v1/openapi.json", Authorization=f"Bearer {KEY}"
    )
    assert status == 200
    document = json.loads(said)
    document["paths"] |= model_apis()
    path = folder / "openapi.json"
    path.write_text(json.dumps(document))
    return path


def test_fuzzed_requests_cause_no_server_error(tmp_path: Path) -> None:
    keys = [{"name": "k", "hash": HASH, "scopes": ["call", "read", "admin"], "tenant": "t"}]
    with FakeBackend() as backend, FakeBackend() as other:
        replicas = [{"name": f"r{n}", "url": one.url} for n, one in enumerate((backend, other))]
        settings = {
            "backends": {"replicas": replicas, "health": "off"},
            "keys": keys,
            "guard": {"policy": GUARD},
            "capture": {"store": str(tmp_path / "runs.db")},
        }
        with serving(tmp_path, settings) as proxy:
            done = subprocess.run(
                [
                    sys.executable, "-m", "schemathesis.cli", "run", str(described(proxy, tmp_path)),
                    "--url", f"http://127.0.0.1:{proxy.port}", "-H", f"Authorization: Bearer {KEY}",
                    "--checks", CHECKS, "--phases", "coverage,fuzzing", "--max-examples", str(EXAMPLES),
                    "--seed", "7", "--no-shrink", "--generation-database", "none", "--no-color",
                    "--request-timeout", "20", "--warnings", "off",
                ],
                cwd=tmp_path, capture_output=True, text=True, timeout=500, check=False,
            )  # fmt: skip
            assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
            for path in ("/agentguard/v1/sessions", "/status", *PATHS.values()):
                code, headers, _ = proxy.ask(method="TRACE", path=path, Authorization=f"Bearer {KEY}")
                assert (code, "GET" in headers["allow"]) == (405, True), "RFC 9110, 15.5.6"
            assert proxy.ask(method="GET", path="/healthz")[0] == 200
            status = json.loads(proxy.ask(method="GET", path="/status", Authorization=f"Bearer {KEY}")[2])
            log = proxy.errors()
    assert status["workers"][0]["inflight"] == 0
    assert "failed in the proxy" not in log, log[-4000:]
    assert "administrative request failed" not in log
    assert KEY not in log
    assert backend.requests or other.requests
