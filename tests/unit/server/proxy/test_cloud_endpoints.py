"""Paths of Azure's clients, and the endpoints of Azure, Vertex AI and Bedrock as replicas."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.process.bootstrap import Bootstrap
from agentguard_server.proxy.routes import match_route, normalize_target
from openai import AsyncAzureOpenAI

from agentguard.errors import ConfigError
from tests.unit.server.proxy.harness import asked, gateway, serving

ANSWER = {
    "id": "c",
    "object": "chat.completion",
    "created": 0,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
}


@asynccontextmanager
async def endpoint() -> AsyncIterator[tuple[int, list[tuple[str, dict[str, str], Any]]]]:
    """Serve an answer to every request; yield the port and the received requests."""
    seen: list[tuple[str, dict[str, str], Any]] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                first, *lines = (await reader.readuntil(b"\r\n\r\n"))[:-4].decode().split("\r\n")
                headers = dict(line.lower().split(": ", 1) for line in lines)
                body = await reader.readexactly(int(headers["content-length"]))
                seen.append((first.split()[1], headers, json.loads(body)))
                answer = json.dumps(ANSWER).encode()
                head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
                writer.write(head % len(answer) + answer)
        except asyncio.IncompleteReadError:
            writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], seen


@asynccontextmanager
async def proxy(*replicas: dict[str, Any]) -> AsyncIterator[int]:
    settings = ProxySettings.parse({"backends": {"replicas": list(replicas), "health": "off"}})
    bootstrap = Bootstrap(settings)
    await bootstrap.start()
    try:
        async with serving(bootstrap.app_state) as (port, _):
            yield port
    finally:
        await bootstrap.aclose()


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        ("/openai/v1/responses", "", ("/v1/responses", "")),
        ("/openai/v1/models", "api-version=preview", ("/v1/models", "")),
        ("/openai/deployments/gpt-4o/chat/completions", "api-version=1&x=2", ("/v1/chat/completions", "x=2")),
        ("/v1/deployments/a.b_c/embeddings", "api-version=1", ("/v1/embeddings", "")),
        ("/openai/deployments/a/../chat/completions", "", None),
        ("/openai/deployments/a/b/chat/completions", "", None),
        ("/openai/deployments//chat/completions", "", None),
        ("/openai/deployments/a/images/generations", "", None),
        ("/openai", "", None),
        ("/v1/chat/completions", "api-version=1", None),
    ],
)
def test_path_of_azure_client_is_normalized(path: str, query: str, expected: tuple[str, str] | None) -> None:
    found = normalize_target(path.encode(), query.encode())
    assert found == tuple(one.encode() for one in expected or (path, query))


@pytest.mark.parametrize("path", ["/openai/deployments/a/../chat/completions", "/openai/v1/../status"])
def test_dot_segments_reach_no_model(path: str) -> None:
    route = match_route("POST", normalize_target(path.encode(), b"")[0])
    assert route.kind in ("admin", "none")
    gate = gateway(keys=None)
    assert asyncio.run(asked(gate, path=path)).status == 404
    assert not gate.pool.asked


def test_azure_client_reaches_a_deployment(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> tuple[str, dict[str, str], Any]:
        async with endpoint() as (upstream, seen), proxy(
            {
                "name": "azure",
                "url": f"http://127.0.0.1:{upstream}/openai/deployments/prod-4o",
                "auth": "api-key",
                "api_key_env": "AZURE_KEY",
                "query": {"api-version": "2024-10-21"},
                "models": {"gpt-4o": "gpt-4o"},
            }
        ) as port:  # fmt: skip
            client = AsyncAzureOpenAI(
                azure_endpoint=f"http://127.0.0.1:{port}", api_key="client", api_version="2023-05-15"
            )
            async with client:
                made = await client.chat.completions.create(
                    model="gpt-4o", messages=[{"role": "user", "content": "hi"}]
                )
            assert made.choices[0].message.content == "hi"
            return seen[0]

    monkeypatch.setenv("AZURE_KEY", "of-azure")
    target, headers, body = asyncio.run(main())
    assert target == "/openai/deployments/prod-4o/chat/completions?api-version=2024-10-21"
    assert headers["api-key"] == "of-azure"
    assert "authorization" not in headers
    assert body["model"] == "gpt-4o"


def test_access_token_is_renewed_without_a_reload(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentguard.backends.http.api_key_file._CHECK_INTERVAL_S", 0.0)
    token = tmp_path / "token"
    token.write_text("first\n")
    base = "/v1/projects/p/locations/l/endpoints/openapi"

    async def main() -> list[tuple[str, dict[str, str], Any]]:
        async with endpoint() as (upstream, seen), proxy(
            {
                "name": "vertex",
                "url": f"http://127.0.0.1:{upstream}{base}",
                "api_key_file": str(token),
                "models": {"gemini": "google/gemini-2.5-flash"},
            }
        ) as port:  # fmt: skip
            for _ in range(2):
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
                body = b'{"model":"gemini","messages":[]}'
                head = "POST /v1/chat/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n"
                writer.write(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
                assert b"200 OK" in await reader.read()
                writer.close()
                token.write_text("second")
            return seen

    seen = asyncio.run(main())
    assert [headers["authorization"] for _, headers, _ in seen] == ["bearer first", "bearer second"]
    assert {target for target, _, _ in seen} == {f"{base}/chat/completions"}
    assert seen[0][2]["model"] == "google/gemini-2.5-flash"


def test_two_sources_of_a_key_are_a_configuration_error() -> None:
    replica = {"name": "a", "url": "http://h/v1", "api_key_env": "X", "api_key_file": "y"}
    with pytest.raises(ConfigError, match="exclude each other"):
        ProxySettings.parse({"backends": {"replicas": [replica]}})
