"""WebSocket pass-through on real sockets: a real client and server, and attacks on the switch."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.process.bootstrap import Bootstrap
from websockets.asyncio.client import connect
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed, InvalidStatus

from tests.unit.server.proxy.harness import serving

KEY = {"name": "k", "hash": "sha256:" + hashlib.sha256(b"ag-k").hexdigest()}
SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nconnection: Upgrade\r\nupgrade: websocket\r\n"
    b"sec-websocket-accept: x\r\n\r\n"
)
WEBSOCKET = {
    "Host": "127.0.0.1",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": base64.b64encode(b"0" * 16).decode(),
}


@asynccontextmanager
async def proxy(upstream: int, **sections: Any) -> AsyncIterator[tuple[int, Any]]:
    replica = {"name": "a", "url": f"http://127.0.0.1:{upstream}/v1", **sections.pop("replica", {})}
    document = {
        "backends": {"replicas": [replica], "health": "off", "pipeline": {"retry": "off"}},
        **sections,
    }
    bootstrap = Bootstrap(ProxySettings.parse(document))
    await bootstrap.start()
    try:
        async with serving(bootstrap.app_state) as (port, _):
            yield port, bootstrap.app_state
    finally:
        await bootstrap.aclose()


@asynccontextmanager
async def echo() -> AsyncIterator[tuple[int, list[Any]]]:
    """Serve a WebSocket that sends each message back; yield the port and the requests."""
    requests: list[Any] = []

    async def respond(connection: ServerConnection) -> None:
        requests.append(connection.request)
        with contextlib.suppress(ConnectionClosed):
            async for message in connection:
                await connection.send(message)

    async with serve(respond, "127.0.0.1", 0, max_size=None) as server:
        yield server.sockets[0].getsockname()[1], requests


@asynccontextmanager
async def scripted(answer: bytes) -> AsyncIterator[tuple[int, list[bytes]]]:
    """Serve bytes after each head; yield the port and what the connections received."""
    received: list[bytes] = []

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        received.append(head)
        writer.write(answer)
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(65_536):
                received[-1] += data
        writer.close()

    async with await asyncio.start_server(respond, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1], received


def head(path: str = "/v1/realtime?model=m", **changes: str | None) -> bytes:
    headers = {**WEBSOCKET, **{name.replace("_", "-"): value for name, value in changes.items()}}
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items() if value)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


async def exchange(port: int, data: bytes) -> bytes:
    """Send bytes and return the response: up to the switch, the expected body or the close."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        got = b""
        async with asyncio.timeout(20):
            while part := await reader.read(65_536):
                got += part
                if got.startswith(b"HTTP/1.1 101") or got.endswith((b"\r\n\r\n{}", b"\r\n0\r\n\r\n")):
                    break
        return got
    finally:
        writer.close()


def rejected(data: bytes, answer: bytes = SWITCH, **sections: Any) -> tuple[bytes, list[bytes]]:
    """Return the answer to a raw request, and what the endpoint received."""

    async def main() -> tuple[bytes, list[bytes]]:
        async with scripted(answer) as (upstream, received), proxy(upstream, **sections) as (port, _):
            return await exchange(port, data), received

    return asyncio.run(main())


def test_messages_of_any_size_pass_in_both_directions() -> None:
    async def main() -> None:
        async with echo() as (upstream, requests), proxy(
            upstream, replica={"models": {"live": "served-live"}}
        ) as (port, app_state):  # fmt: skip
            uri = f"ws://127.0.0.1:{port}/v1/realtime?model=live&x=1"
            async with connect(uri, max_size=None, subprotocols=None) as client:
                for message in ("hi", b"\x00" * 3_000_000, "", "last"):
                    await client.send(message)
                    assert await client.recv() == message
                assert app_state.in_flight_count == 1
            assert requests[0].path == "/v1/realtime?x=1&model=served-live"
            async with asyncio.timeout(10):
                while app_state.in_flight_count:
                    await asyncio.sleep(0.01)

    asyncio.run(main())


def test_keys_are_checked_and_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        async with echo() as (upstream, requests), proxy(
            upstream, replica={"api_key_env": "UPSTREAM_KEY"}, keys=[KEY]
        ) as (port, _):  # fmt: skip
            uri = f"ws://127.0.0.1:{port}/v1/realtime"
            with pytest.raises(InvalidStatus) as refused:
                await connect(uri)
            assert refused.value.response.status_code == 401
            with pytest.raises(InvalidStatus):
                await connect(uri, subprotocols=["realtime", "openai-insecure-api-key.ag-k"])  # type: ignore[list-item]
            async with connect(uri, additional_headers={"Authorization": "Bearer ag-k"}) as client:
                await client.send("hi")
                assert await client.recv() == "hi"
            assert len(requests) == 1
            assert requests[0].headers["Authorization"] == "Bearer of-the-endpoint"

    monkeypatch.setenv("UPSTREAM_KEY", "of-the-endpoint")
    asyncio.run(main())


def test_key_in_a_subprotocol_does_not_reach_the_endpoint() -> None:
    data = head(
        Authorization="Bearer ag-k", Sec_WebSocket_Protocol="realtime, openai-insecure-api-key.ag-k, beta"
    )
    got, received = rejected(data, keys=[KEY])
    assert got.startswith(b"HTTP/1.1 101")
    assert b"ag-k" not in received[0]
    assert b"sec-websocket-protocol: realtime, beta\r\n" in received[0]


def test_page_of_another_site_cannot_open_a_websocket() -> None:
    got, received = rejected(head(Origin="https://evil.example"))
    assert got.startswith(b"HTTP/1.1 403")
    assert not received


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (head(Sec_WebSocket_Version="8"), 400),
        (head(Sec_WebSocket_Version=None), 400),
        (head(Sec_WebSocket_Key=None), 400),
        (head().replace(b"\r\n\r\n", b"\r\nSec-WebSocket-Key: b\r\n\r\n"), 400),
        (head(Host=None), 400),
        (head().replace(b"\r\n\r\n", b"\r\nHost: b\r\n\r\n"), 400),
        (head("/v1/realtime?model=a&model=b"), 400),
        (head("/v1/realtime?x={|}\x5c"), 400),
        (head("/v1/../admin"), 404),
        (head("/v1/%2e%2e/admin"), 404),
        (head("/v1//realtime"), 404),
        (head(X_Pad="x" * 70_000), 431),
        (head("/metrics/none"), 404),
    ],
)
def test_invalid_switch_is_rejected_before_the_endpoint_sees_it(data: bytes, status: int) -> None:
    got, received = rejected(data)
    assert got.startswith(b"HTTP/1.1 %d" % status), got[:200]
    assert not received


@pytest.mark.parametrize(
    "data",
    [
        head().replace(b"GET", b"POST", 1).replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n") + b"{}",
        head(Upgrade="h2c", path="/v1/files"),
        head(Upgrade="websocket, h2c", path="/v1/files"),
        head(Connection="keep-alive", path="/v1/files"),
    ],
)
def test_other_upgrades_stay_plain_http(data: bytes) -> None:
    answer = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
    got, received = rejected(data, answer)
    assert got.startswith(b"HTTP/1.1 200")
    assert b"upgrade" not in received[0].lower()


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}",
        b"HTTP/1.1 302 Found\r\nlocation: http://169.254.169.254/\r\n\r\n",
        b"HTTP/1.1 101\r\n bad: folded\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nbad header\r\n\r\n",
        b"HTTP/2 101\r\n\r\n",
        b"\x00" * 200 + b"\r\n\r\n",
        b"HTTP/1.1 101 Switching\r\nx: " + b"y" * 200_000 + b"\r\n\r\n",
    ],
)
def test_endpoint_that_does_not_switch_is_an_error(answer: bytes) -> None:
    got, _ = rejected(head(), answer)
    assert got.startswith(b"HTTP/1.1 502"), got[:200]
    assert b"169.254" not in got


def test_error_of_the_endpoint_reaches_the_client() -> None:
    got, _ = rejected(head(), b"HTTP/1.1 403 Forbidden\r\ncontent-length: 6\r\n\r\ndenied")
    assert got.startswith(b"HTTP/1.1 403")
    assert got.endswith(b"denied")


def test_bytes_before_the_switch_are_not_a_second_request() -> None:
    smuggled = b"POST /agentguard/v1/replicas/a/drain HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"

    async def main() -> None:
        async with scripted(SWITCH) as (upstream, received), proxy(upstream) as (port, app_state):
            got = await exchange(port, head() + smuggled)
            assert got.startswith(b"HTTP/1.1 101")
            async with asyncio.timeout(10):
                while not received[0].endswith(smuggled):
                    await asyncio.sleep(0.01)
            assert received[0].count(b"HTTP/1.1") == 2, "they follow the switch as opaque bytes"
            assert not app_state.is_draining

    asyncio.run(main())


def test_bytes_before_a_refusal_do_not_reach_the_endpoint() -> None:
    smuggled = b"GET /v1/files HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    got, received = rejected(head() + smuggled, b"HTTP/1.1 426 Upgrade Required\r\ncontent-length: 0\r\n\r\n")
    assert got.count(b"HTTP/1.1") == 1
    assert received[0].count(b"HTTP/1.1") == 1


def test_idle_websocket_is_closed() -> None:
    async def main() -> None:
        limits = {"websocket_idle_timeout_s": 0.2}
        async with echo() as (upstream, _), proxy(upstream, limits=limits) as (port, app_state):
            async with connect(f"ws://127.0.0.1:{port}/v1/realtime", ping_interval=None) as client:
                with pytest.raises(ConnectionClosed):
                    async with asyncio.timeout(10):
                        await client.recv()
            assert app_state.in_flight_count == 0

    asyncio.run(main())


def test_client_that_never_reads_stops_the_endpoint_and_is_cut() -> None:
    async def main() -> None:
        limits = {"write_timeout_s": 0.3}
        flood = SWITCH + b"x" * 20_000_000
        async with scripted(flood) as (upstream, _), proxy(upstream, limits=limits) as (port, app_state):
            _reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1024)
            writer.write(head())
            async with asyncio.timeout(20):
                while not app_state.in_flight_count:
                    await asyncio.sleep(0.01)
                while app_state.in_flight_count:
                    await asyncio.sleep(0.01)
            writer.close()

    asyncio.run(main())


def test_endpoint_that_dies_closes_the_client() -> None:
    async def main() -> None:
        async with echo() as (upstream, _), proxy(upstream) as (port, app_state):
            client = await connect(f"ws://127.0.0.1:{port}/v1/realtime")
            await client.send("hi")
            await client.recv()
            for request in list(app_state.in_flight):
                request.cancel()
            with pytest.raises(ConnectionClosed):
                async with asyncio.timeout(10):
                    await client.recv()

    asyncio.run(main())


def test_metered_key_cannot_avoid_its_limit_by_websocket() -> None:
    got, received = rejected(
        head(Authorization="Bearer ag-k"), keys=[{**KEY, "limits": {"tokens_per_minute": 10}}]
    )
    assert got.startswith(b"HTTP/1.1 403")
    assert b"not_metered" in got
    assert not received


def test_open_websockets_count_against_concurrency() -> None:
    async def main() -> None:
        keys = [{**KEY, "limits": {"max_concurrent": 1}}]
        async with echo() as (upstream, _), proxy(upstream, keys=keys) as (port, _state):
            uri, headers = f"ws://127.0.0.1:{port}/v1/realtime", {"Authorization": "Bearer ag-k"}
            async with connect(uri, additional_headers=headers):
                with pytest.raises(InvalidStatus) as refused:
                    await connect(uri, additional_headers=headers)
                assert refused.value.response.status_code == 429

    asyncio.run(main())
