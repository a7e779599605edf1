"""Requests go only to configured endpoints, independent of clients and endpoints.

Known cases: a base URL in the request (LiteLLM CVE-2024-6587), a URL that two parsers read differently (vLLM
CVE-2026-24779).
"""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from agentguard.backends.http import HttpBackend
from agentguard.errors import AgentGuardError
from agentguard.testing.fake_backend import FakeBackend, Ok, StatusFault
from tests.faults.proxy_client import PATHS, body_for, outcome, request_bytes, send
from tests.faults.proxy_process import COMMAND, replicas, serving

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]


def test_request_cannot_choose_its_destination(tmp_path: Path) -> None:
    with FakeBackend(name="a") as a, FakeBackend(name="internal") as internal:
        there, host = internal.url, f"127.0.0.1:{internal.port}"
        fields = ("base_url", "api_base", "api_url", "url", "host", "endpoint", "proxy", "callback_url")
        bodies = [body_for("chat", **{name: there}) for name in (*fields, "model")] + [
            body_for("chat", extra_body={"api_base": there}, metadata={"url": there}, user=there)
        ]
        targets = [
            f"http://{host}/v1/chat/completions", f"//{host}/v1/chat/completions", f"/v1/@{host}/chat",
            f"/v1//{host}/x", f"/v1/http://{host}/x", f"/v1/chat/completions?api_base={there}",
            f"/v1/x?url={there}", f"/v1/..;@{host}/x", f"/v1/%40{host}/x", f"/v1/x#@{host}",
            f"/v1\\@{host}/x", f"/v1/\\\\{host}\\x",
        ]  # fmt: skip
        names = ("x-forwarded-host", "x-host", "forwarded", "x-api-base", "x-base-url", "location", "referer")
        data = [request_bytes(PATHS["chat"], body) for body in bodies]
        data += [request_bytes(target, body_for("chat")) for target in targets]
        data += [request_bytes(PATHS["chat"], body_for("chat"), headers=((name, there),)) for name in names]
        data += [request_bytes(PATHS["chat"], body_for("chat"), headers=(("host", host),))]
        with serving(tmp_path, {"backends": {"replicas": replicas(a), "health": "off"}}) as proxy:

            async def main() -> list[Any]:
                return [await send(proxy.port, one) for one in data]

            answers = asyncio.run(main())
        assert internal.connection_count == 0
        assert len(a.requests) > len(bodies)
        assert all(one.get_header("host") == f"127.0.0.1:{a.port}" for one in a.requests)
        assert all(one.status != 500 for one in answers)


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirect_is_not_followed(tmp_path: Path, status: int) -> None:
    with FakeBackend(name="internal") as internal:
        to = (("location", f"{internal.url}/chat/completions"),)
        with FakeBackend([StatusFault(status=status, headers=to), Ok()], name="a") as a:
            settings = {"backends": {"replicas": replicas(a), "health": "off"}}
            with serving(tmp_path, settings) as proxy:
                got = asyncio.run(send(proxy.port, request_bytes(PATHS["chat"], body_for("chat"))))
        assert outcome("chat", got, stream=False).error is not None
        assert got.header("location") is None
        assert internal.connection_count == 0


METADATA = [
    "http://169.254.169.254/v1",
    "http://[::ffff:169.254.169.254]/v1",
    "http://[::ffff:a9fe:a9fe]/v1",
    "http://2852039166/v1",
    "http://0xa9fea9fe/v1",
    "http://0251.0376.0251.0376/v1",
    "http://169.254.169.254./v1",
    "http://169.254.43518/v1",
    "http://[fd00:ec2::254]/v1",
    "http://[64:ff9b::169.254.169.254]/v1",
    "http://metadata.google.internal/v1",
    "http://100.100.100.200/v1",
]
CROOKED = [
    "http://127.0.0.1:80\\@evil.example/v1",
    "http://127.0.0.1\\.evil.example/v1",
    "http://user:hunter2@127.0.0.1/v1",
    "http://127.0.0.1 .evil.example/v1",
    "http://127.0.0.1\t/v1",
    "http://127.0.0.1\r\nx: y/v1",
    "http://127.0.0.1%00.evil.example/v1",
    "http://127.0.0.1/v1#x",
    "http://127.0.0.1:99999/v1",
    "http:///v1",
    "http:127.0.0.1/v1",
    "file:///etc/passwd",
    "gopher://127.0.0.1/v1",
    "unix:///var/run/docker.sock",
    "//127.0.0.1/v1",
    "",
]


@pytest.mark.parametrize("url", [*METADATA, *CROOKED])
def test_forbidden_address_is_rejected_in_config(tmp_path: Path, url: str) -> None:
    file = tmp_path / "proxy.yaml"
    file.write_text(yaml.safe_dump({"backends": {"replicas": [{"name": "a", "url": url}]}}))
    if url in METADATA:
        # A name is resolved only at the connection; the configuration check knows numeric addresses before.
        try:
            backend = HttpBackend(url)
        except AgentGuardError:
            return
        refused = asyncio.run(_refused(backend))
        assert refused, f"{url} was connected to"
        return
    with pytest.raises(AgentGuardError) as caught:
        HttpBackend(url)
    assert "hunter2" not in str(caught.value)


async def _refused(backend: HttpBackend) -> bool:
    from agentguard.backends.base import BackendRequest
    from agentguard.resilience.deadline import Deadline

    try:
        await backend.send(BackendRequest(target="/models", method="GET"), Deadline.after(3.0))
    except AgentGuardError as error:
        return getattr(error, "stage", "") == "unsent"
    finally:
        await backend.aclose()
    return False


def test_command_reports_forbidden_address_without_secret(tmp_path: Path) -> None:
    file = tmp_path / "proxy.yaml"
    url = "http://user:hunter2@127.0.0.1/v1"
    file.write_text(yaml.safe_dump({"backends": {"replicas": [{"name": "a", "url": url}]}}))
    done = subprocess.run(
        [*COMMAND, "--config", str(file), "--check"], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert "hunter2" not in done.stderr + done.stdout


def test_key_in_configured_header_is_rejected() -> None:
    from agentguard.backends.config import BackendsOptions

    replica = {"name": "a", "url": "http://127.0.0.1:9/v1", "headers": {"Authorization": "Bearer hunter2"}}
    with pytest.raises(AgentGuardError) as caught:
        BackendsOptions.parse(json.loads(json.dumps({"replicas": [replica]})))
    assert "hunter2" not in str(caught.value)
