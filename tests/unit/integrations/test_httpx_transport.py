"""Guarded transport of httpx 0.28: what differs from the transport of httpx2 that it uses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import httpx2
import pytest

from agentguard.errors import ConfigError
from agentguard.guard import Guard
from tests.unit.integrations.openai_server import Raw, chunks, completion, serving

MESSAGE = {"role": "assistant", "content": "Seat 4 is booked."}
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Book seat 4."}],
    "tools": [{"type": "function", "function": {"name": "book", "parameters": {"type": "object"}}}],
}


def test_clean_exchange_is_unchanged() -> None:
    with serving(lambda body: completion(MESSAGE)) as server:
        url = f"{server.url}/chat/completions"
        with httpx.Client() as plain, httpx.Client(transport=Guard().httpx_transport()) as guarded:
            answers = [client.post(url, json=BODY) for client in (plain, guarded)]
    assert answers[0].json()["choices"] == answers[1].json()["choices"]
    assert server.raw[0] == server.raw[1]
    assert server.headers[0] == server.headers[1]


def test_run_header_is_not_forwarded() -> None:
    with (
        serving(lambda body: completion(MESSAGE)) as server,
        httpx.Client(transport=Guard().httpx_transport()) as client,
    ):
        client.post(f"{server.url}/chat/completions", json=BODY, headers={"agentguard-run": "nightly"})
    assert "agentguard-run" not in server.headers[0]


def test_other_requests_pass() -> None:
    with (
        serving(lambda body: {}) as server,
        httpx.Client(transport=Guard().httpx_transport()) as client,
    ):
        assert client.get(f"{server.url}/models").json()["object"] == "list"


@pytest.mark.parametrize("compressed", [False, True])
def test_response_is_decoded_once(compressed: bool) -> None:
    with (
        serving(lambda body: completion(MESSAGE), compressed=compressed) as server,
        httpx.Client(transport=Guard().httpx_transport()) as client,
    ):
        answer = client.post(f"{server.url}/chat/completions", json=BODY).json()
    assert answer["choices"][0]["message"]["content"] == "Seat 4 is booked."


def test_stream_is_forwarded() -> None:
    with (
        serving(lambda body: chunks(MESSAGE)) as server,
        httpx.Client(transport=Guard().httpx_transport()) as client,
        client.stream("POST", f"{server.url}/chat/completions", json={**BODY, "stream": True}) as response,
    ):
        events = [line for line in response.iter_lines() if line.startswith("data: {")]
    text = "".join(json.loads(line[6:])["choices"][0]["delta"].get("content") or "" for line in events)
    assert text.strip() == "Seat 4 is booked."


def test_truncated_stream_raises_error_of_httpx() -> None:
    with (
        serving(lambda body: chunks(MESSAGE)[:1]) as server,
        httpx.Client(transport=Guard().httpx_transport()) as client,
        client.stream("POST", f"{server.url}/chat/completions", json={**BODY, "stream": True}) as response,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        response.read()


def test_asynchronous_stream_is_forwarded() -> None:
    async def read(url: str) -> bytes:
        transport = Guard().ahttpx_transport()
        async with (
            httpx.AsyncClient(transport=transport) as client,
            client.stream("POST", url, json={**BODY, "stream": True}) as response,
        ):
            return await response.aread()

    with serving(lambda body: chunks(MESSAGE)) as server:
        assert b"[DONE]" in asyncio.run(read(f"{server.url}/chat/completions"))


def test_error_of_connection_is_that_of_httpx() -> None:
    with httpx.Client(transport=Guard().httpx_transport()) as client, pytest.raises(httpx.ConnectError):
        client.post("http://127.0.0.1:1/v1/chat/completions", json=BODY)


def test_error_status_is_returned() -> None:
    with (
        serving(lambda body: Raw(status=429, content=b'{"error": {"message": "slow down"}}')) as server,
        httpx.Client(transport=Guard().httpx_transport()) as client,
    ):
        response = client.post(f"{server.url}/chat/completions", json=BODY)
    assert (response.status_code, response.json()["error"]["message"]) == (429, "slow down")


@pytest.mark.parametrize(
    ("transport", "client", "library", "remedy"),
    [
        ("httpx_transport", httpx2.Client, "httpx2", "guard.transport()"),
        ("transport", httpx.Client, "httpx", "guard.httpx_transport()"),
    ],
)
def test_client_of_the_other_library_is_rejected_with_the_transport_to_use(
    transport: str, client: Any, library: str, remedy: str
) -> None:
    with client(transport=getattr(Guard(), transport)()) as http, pytest.raises(ConfigError) as caught:
        http.post("http://127.0.0.1:1/v1/chat/completions", json={})
    assert f"the client uses {library}: use {remedy}" in str(caught.value)
