"""Requests that are too large, or that two servers would parse differently: raw bytes to the proxy.

Known cases: a head, a body or an event without a limit (CVE-2025-48956); request smuggling between a proxy
and
its backend, which needs only two different readings of a request's end.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
import urllib.request
from collections.abc import Iterator

import pytest

from agentguard.testing.fake_backend import FakeBackend, Huge, Ok
from tests.faults.proxy_client import PATHS, ask, body_for, outcome, send
from tests.faults.proxy_process import Proxy, replicas, serving, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MB = 1 << 20
GROWTH = 32 * MB
CHAT = PATHS["chat"].encode()
SMUGGLED = b"GET /v1/smuggled HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, FakeBackend]]:
    with FakeBackend(name="a") as a:
        settings = {
            "backends": {"replicas": replicas(a), "health": "off", "http": {"max_body_bytes": 8 * MB}},
            "limits": {"max_body_bytes": 8 * MB, "body_timeout_s": 20.0, "header_timeout_s": 3.0},
            "capture": {"store": str(tmp_path_factory.mktemp("store") / "runs.db")},
        }
        with serving(tmp_path_factory.mktemp("wire"), settings) as proxy:
            for stream in (False, True):
                asked = ask(proxy.port, PATHS["chat"], body_for("chat", stream=stream))
                assert asyncio.run(asked).status == 200
            until(lambda: written(proxy) > 0, 30)  # lazy imports must precede the memory measurement
            yield proxy, a


def written(proxy: Proxy) -> int:
    """Return the rows that the collector has written."""
    with urllib.request.urlopen(f"http://127.0.0.1:{proxy.port}/status", timeout=20) as answer:
        told = json.load(answer)["workers"]
    return sum(one["capture"]["collector"]["written"] for one in told)


def stuff(proxy: Proxy, head: bytes, piece: bytes, count: int, *, seconds: float = 20.0) -> bytes:
    """Send a head and then a piece repeatedly until the server stops reading; return its answer."""
    with contextlib.closing(socket.create_connection(("127.0.0.1", proxy.port), timeout=seconds)) as client:
        with contextlib.suppress(OSError):
            client.sendall(head)
            for _ in range(count):
                client.sendall(piece)
        got = bytearray()
        end = time.monotonic() + seconds
        with contextlib.suppress(OSError):
            while time.monotonic() < end and (part := client.recv(65_536)):
                got += part
        return bytes(got)


@pytest.mark.parametrize("framing", ["length", "chunked", "chunked-small", "length-lied"])
def test_body_of_150_mb_is_rejected_without_buffering(scene: tuple[Proxy, FakeBackend], framing: str) -> None:
    proxy, a = scene
    seen, before = len(a.requests), proxy.rss()
    head = b"POST " + CHAT + b" HTTP/1.1\r\nhost: 127.0.0.1\r\n"
    piece = b"x" * MB
    if framing == "length":
        got = stuff(proxy, head + b"content-length: %d\r\n\r\n" % (150 * MB), piece, 150)
    elif framing == "length-lied":
        got = stuff(proxy, head + b"content-length: 9999999999999999999\r\n\r\n", piece, 150)
    else:
        size = MB if framing == "chunked" else 1000
        chunk = b"%x\r\n%s\r\n" % (size, b"x" * size)
        got = stuff(proxy, head + b"transfer-encoding: chunked\r\n\r\n", chunk, 150 * MB // size)
    assert got[:12] in (b"HTTP/1.1 413", b"") or (framing == "length-lied" and got[:12] == b"HTTP/1.1 400")
    assert proxy.rss() - before < GROWTH
    assert len(a.requests) == seen
    assert asyncio.run(proxy.get("/healthz")).status == 200


def test_memory_of_concurrent_large_bodies_is_bounded(tmp_path: object) -> None:
    with FakeBackend(name="a") as a:
        settings = {"backends": {"replicas": replicas(a), "health": "off"}}
        settings["limits"] = {"max_body_bytes": 8 * MB, "max_buffered_bytes": 16 * MB, "body_timeout_s": 3.0}
        with serving(tmp_path, settings) as proxy:  # type: ignore[arg-type]
            before = proxy.peak()

            async def one() -> int:
                head = (
                    b"POST " + CHAT + b" HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: %d\r\n\r\n" % (8 * MB)
                )
                return (await send(proxy.port, head + b"x" * (7 * MB), seconds=15)).status

            async def main() -> list[int]:
                return list(await asyncio.gather(*(one() for _ in range(20))))

            statuses = asyncio.run(main())
            assert set(statuses) <= {503, 408, 0}
            assert 503 in statuses
            # Content of two of them, plus the socket buffers of twenty connections.
            assert proxy.peak() - before < 96 * MB
            assert asyncio.run(proxy.get("/healthz")).status == 200


@pytest.mark.parametrize(
    "head",
    [
        b"GET /healthz HTTP/1.1\r\nhost: x\r\nx-long: " + b"a" * 200_000 + b"\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"x-many: 1\r\n" * 20_000 + b"\r\n",
        b"GET /" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /healthz?" + b"a" * 200_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n",
        b"GET /healthz HTTP/1.1\r\nhost: x\r\n" + b"".join(b"x-%d: y\r\n" % n for n in range(500)) + b"\r\n",
        b"A" * 200_000,
        b"\r\n" * 100_000,
    ],
    ids=["long value", "many", "long path", "long query", "500 names", "no end", "blank lines"],
)
def test_huge_head_is_rejected(scene: tuple[Proxy, FakeBackend], head: bytes) -> None:
    proxy, _ = scene
    before = proxy.rss()
    got = asyncio.run(send(proxy.port, head, seconds=10))
    assert got.status in (0, 400, 431), got
    assert proxy.rss() - before < GROWTH


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("part", ["head", "body", "event"])
def test_huge_answer_is_rejected_without_buffering(
    scene: tuple[Proxy, FakeBackend], part: str, stream: bool
) -> None:
    proxy, a = scene
    if part == "event" and not stream:
        pytest.skip("an answer that is no stream has no events")
    before = proxy.rss()
    a.set_script(Huge(part=part, size=(20 if part == "head" or stream else 150) * MB))  # type: ignore[arg-type]
    try:
        got = asyncio.run(ask(proxy.port, PATHS["chat"], body_for("chat", stream=stream), seconds=60))
    finally:
        a.set_script(Ok())
    if part == "body" and stream:
        assert outcome("chat", got, stream=True).error is None  # many small events pass
    else:
        assert outcome("chat", got, stream=stream).error is not None
    assert proxy.rss() - before < GROWTH


def post(*lines: bytes, body: bytes = b"") -> bytes:
    return b"\r\n".join((b"POST " + CHAT + b" HTTP/1.1", b"host: 127.0.0.1", *lines, b"", b"")) + body


CHUNKED = b"0\r\n\r\n" + SMUGGLED
CORPUS = {
    "length and chunks": post(b"content-length: 4", b"transfer-encoding: chunked", body=CHUNKED),
    "chunks and length": post(b"transfer-encoding: chunked", b"content-length: 4", body=CHUNKED),
    "two lengths": post(b"content-length: 0", b"content-length: 53", body=SMUGGLED),
    "a list of lengths": post(b"content-length: 0, 53", body=SMUGGLED),
    "a signed length": post(b"content-length: +0", body=SMUGGLED),
    "a negative length": post(b"content-length: -1", body=SMUGGLED),
    "a hexadecimal length": post(b"content-length: 0x0", body=SMUGGLED),
    "a length with a blank": post(b"content-length: 5 3", body=SMUGGLED),
    "a length in words": post(b"content-length: none", body=SMUGGLED),
    "an empty length": post(b"content-length:", body=SMUGGLED),
    "xchunked": post(b"transfer-encoding: xchunked", body=CHUNKED),
    "chunked twice": post(b"transfer-encoding: chunked", b"transfer-encoding: identity", body=CHUNKED),
    "chunked, then another": post(b"transfer-encoding: chunked, identity", body=CHUNKED),
    "chunked by tab": post(b"transfer-encoding:\tchunked", b"content-length: 4", body=CHUNKED),
    "a blank before the colon": post(b"transfer-encoding : chunked", b"content-length: 4", body=CHUNKED),
    "a folded line": post(b"transfer-encoding:", b" chunked", b"content-length: 4", body=CHUNKED),
    "a NUL in a name": post(b"transfer\x00-encoding: chunked", b"content-length: 0", body=SMUGGLED),
    "a CR in a value": post(b"x: a\rtransfer-encoding: chunked", b"content-length: 0", body=SMUGGLED),
    "a LF in a value": post(b"x: a\ntransfer-encoding: chunked", b"content-length: 0", body=CHUNKED),
    "a quoted coding": post(b'transfer-encoding: "chunked"', b"content-length: 4", body=CHUNKED),
    "http/1.0 with chunks": post(b"transfer-encoding: chunked", body=CHUNKED).replace(
        b"HTTP/1.1", b"HTTP/1.0"
    ),
    "http/1.2": post(b"content-length: 0", body=SMUGGLED).replace(b"HTTP/1.1", b"HTTP/1.2"),
    "a chunk that overflows": post(b"transfer-encoding: chunked", body=b"FFFFFFFFFFFFFFFFF\r\n" + SMUGGLED),
    "a negative chunk": post(b"transfer-encoding: chunked", body=b"-1\r\n\r\n" + SMUGGLED),
    "a chunk in 0x": post(b"transfer-encoding: chunked", body=b"0x0\r\n\r\n" + SMUGGLED),
    "a chunk ended by LF": post(b"transfer-encoding: chunked", body=b"0\n\n" + SMUGGLED),
    "a chunk's wrong end": post(b"transfer-encoding: chunked", body=b"2\r\n{}XX0\r\n\r\n" + SMUGGLED),
    "an extension with LF": post(b"transfer-encoding: chunked", body=b"2;a\nb\r\n{}\r\n0\r\n\r\n" + SMUGGLED),
    "no version": b"GET /v1/smuggled\r\n\r\n",
    "a second request line": b"GET /healthz HTTP/1.1 GET /v1/smuggled HTTP/1.1\r\nhost: x\r\n\r\n",
    "http/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + SMUGGLED,
    "two hosts": b"GET /v1/smuggled HTTP/1.1\r\nhost: 127.0.0.1\r\nhost: localhost\r\n\r\n",
    "no host": b"GET /v1/smuggled HTTP/1.1\r\n\r\n",
    "TLS": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + SMUGGLED,
}


@pytest.mark.parametrize("name", CORPUS)
def test_ambiguous_request_is_rejected(scene: tuple[Proxy, FakeBackend], name: str) -> None:
    proxy, a = scene
    before = len(a.requests)
    got = stuff(proxy, CORPUS[name], b"", 0, seconds=4.0)
    new = a.requests[before:]
    assert not any("smuggled" in one.target for one in new), name
    assert got.count(b"HTTP/1.1 2") == 0, got[:500]
    assert got == b"" or got.startswith((b"HTTP/1.1 4", b"HTTP/1.1 5")), got[:200]


def test_forwarded_bytes_are_exactly_one_request(scene: tuple[Proxy, FakeBackend]) -> None:
    """Headers are rebuilt: connection headers, our headers and the client's proxy key are removed."""
    proxy, a = scene
    before = len(a.requests)
    target = b"/v1/x%0d%0aGET%20/v1/smuggled?a=%0d%0a"
    lines = [
        b"GET " + target + b" HTTP/1.1", b"host: 127.0.0.1", b"connection: close, x-hop", b"x-hop: 1",
        b"te: trailers", b"agentguard-run: r", b"agentguard-quorum: 1", b"proxy-authorization: Basic x",
        b"x-stays: 1", b"keep-alive: timeout=5", b"accept-encoding: gzip", b"expect: 200-ok", b"", b"",
    ]  # fmt: skip
    stuff(proxy, b"\r\n".join(lines), b"", 0)
    (seen,) = a.requests[before:]
    names = [name for name, _ in seen.headers]
    assert seen.target == target.decode()
    assert names.count(b"host") == 1
    assert seen.get_header("host") == f"127.0.0.1:{a.port}"
    assert seen.get_header("x-stays") == "1"
    assert seen.get_header("accept-encoding") in (None, "identity")
    gone = {
        b"x-hop",
        b"te",
        b"keep-alive",
        b"proxy-authorization",
        b"agentguard-run",
        b"agentguard-quorum",
        b"expect",
    }
    assert not gone.intersection(names)
