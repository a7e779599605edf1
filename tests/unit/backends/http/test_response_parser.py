"""Whole answers over real sockets: forwarded, rejected, and never reported as a success."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from agentguard.backends.base import Response, UpstreamError
from agentguard.backends.http import HttpLimits
from agentguard.errors import BackendError
from agentguard.model_api import API_FORMATS
from tests.unit.backends.http.scripted_server import OK, Heard, backend, request, run, serving, soon

HEAD = b"HTTP/1.1 200 OK\r\n"
JSON = HEAD + b"content-type: application/json\r\n"


def sized(body: bytes, *fields: bytes, status: bytes = b"200 OK") -> bytes:
    lines = b"".join(field + b"\r\n" for field in fields)
    return b"HTTP/1.1 %b\r\n%bcontent-length: %d\r\n\r\n%b" % (status, lines, len(body), body)


async def closing(heard: Heard, data: bytes) -> None:
    await heard.say(data)
    heard.writer.close()


def ask(scene: Any, *, close: bool = False, **more: Any) -> Any:
    """Return the answer to one request, or its error."""
    found: list[Any] = []
    limits = more.pop("limits", None)

    async def closed(heard: Heard) -> None:
        await closing(heard, scene)

    async def main() -> None:
        async with serving(closed if close else scene) as server, backend(server, limits=limits) as client:
            try:
                found.append(await client.send(request(**more), soon()))
            except BackendError as error:
                found.append(error)

    run(main())
    return found[0]


def test_answer_is_unchanged_except_connection_headers() -> None:
    answer = ask(
        sized(
            b'{"a": 1}',
            b"Content-Type: application/json",
            b"Connection: keep-alive, X-Private",
            b"X-Private: 1",
            b"Keep-Alive: timeout=9",
            b"Set-Cookie: a=1",
            b"Set-Cookie: b=2",
            b"X-Unknown: caf\xe9",
            b"Proxy-Connection: keep-alive",
        )
    )
    assert isinstance(answer, Response)
    assert (answer.status, answer.body) == (200, b'{"a": 1}')
    assert answer.headers == (
        (b"content-type", b"application/json"),
        (b"set-cookie", b"a=1"),
        (b"set-cookie", b"b=2"),
        (b"x-unknown", b"caf\xe9"),
    )


@pytest.mark.parametrize(
    ("scene", "body"),
    [
        (
            JSON + b"transfer-encoding: chunked\r\n\r\n1\r\n{\r\n1;ext=x\r\n}\r\n0\r\nTrailer: x\r\n\r\n",
            b"{}",
        ),
        (JSON + b"Transfer-Encoding: Chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n", b"{}"),
        (b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + OK, b"{}"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 9\r\n\r\n", b""),
        (sized(b""), b""),
    ],
)
def test_complete_answer_is_returned(scene: bytes, body: bytes) -> None:
    answer = ask(scene)
    assert isinstance(answer, Response)
    assert answer.body == body
    assert not any(name in (b"link", b"trailer") for name, _ in answer.headers)


def test_head_answer_has_length_and_no_body() -> None:
    answer = ask(b"HTTP/1.1 200 OK\r\ncontent-length: 5000\r\n\r\n", method="HEAD", body=b"")
    assert answer.headers == ((b"content-length", b"5000"),)
    assert answer.body == b""


@pytest.mark.parametrize(
    "scene",
    [
        b"",
        b"HTTP/1.1 200",
        HEAD,
        JSON + b"content-length: 10\r\n\r\n{}",
        JSON + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n",
        JSON + b"transfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n",
        JSON + b"transfer-encoding: chunked\r\n\r\n5\r\n{}",
        JSON + b"\r\n",
        JSON + b'\r\n{"a": ',
        HEAD + b"\r\n{}{}",
        HEAD + b"\r\nplain text that may go on",
        b"HTTP/1.1 100 Continue\r\n\r\n",
    ],
)
def test_interrupted_answer_is_never_a_success(scene: bytes) -> None:
    error = ask(scene, close=True)
    assert isinstance(error, BackendError)
    assert (error.stage, error.status) == ("sent", None)


def test_complete_json_without_length_is_accepted() -> None:
    answer = ask(JSON + b'\r\n {"choices": [1, 2]} ', close=True)
    assert answer.body == b' {"choices": [1, 2]} '


SMUGGLED = OK
STRANGE = [
    HEAD + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: chunked\r\ncontent-length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n",
    HEAD + b"content-length: 2\r\ncontent-length: 3\r\n\r\n{} ",
    HEAD + b"content-length: 2\r\ncontent-length: 2\r\n\r\n{}",
    HEAD + b"content-length: 2, 2\r\n\r\n{}",
    HEAD + b"content-length: +2\r\n\r\n{}",
    HEAD + b"content-length: -2\r\n\r\n{}",
    HEAD + b"content-length: 0x2\r\n\r\n{}",
    HEAD + b"content-length: 2 2\r\n\r\n{}",
    HEAD + b"content-length:\r\n\r\n{}",
    HEAD + b"content-length : 2\r\n\r\n{}",
    HEAD + b"content-length: 99999999999999999999\r\n\r\n{}",
    HEAD + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    b"HTTP/2.0 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/0.9 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"ICY 200 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 20 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 2000 OK\r\ncontent-length: 2\r\n\r\n{}",
    b"HTTP/1.1 101 Switching\r\nconnection: upgrade\r\nupgrade: h2c\r\n\r\n",
    b"HTTP/1.1 200 OK\ncontent-length: 2\n\n{}",
    HEAD + b"a: b\r\n folded\r\ncontent-length: 2\r\n\r\n{}",
    HEAD + b" a: b\r\ncontent-length: 2\r\n\r\n{}",
    HEAD + b"a: b\x00c\r\ncontent-length: 2\r\n\r\n{}",
    HEAD + b"a: b\rc: d\r\ncontent-length: 2\r\n\r\n{}",
    HEAD + b": b\r\ncontent-length: 2\r\n\r\n{}",
    HEAD + b"a b: c\r\ncontent-length: 2\r\n\r\n{}",
    HEAD + b"transfer-encoding: chunked\r\n\r\n2\n{}\n0\n\n",
    HEAD + b"transfer-encoding: chunked\r\n\r\n0x2\r\n{}\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: chunked\r\n\r\n-2\r\n{}\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: chunked\r\n\r\n2 \r\n{}\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: chunked\r\n\r\n2;a\nb\r\n{}\r\n0\r\n\r\n",
    HEAD + b"transfer-encoding: chunked\r\n\r\nfffffffffffffffff\r\n{}\r\n",
    HEAD + b"transfer-encoding: chunked\r\n\r\n2\r\n{}XX0\r\n\r\n",
    b"GET / HTTP/1.1\r\nhost: x\r\n\r\n",
    b"<html>502 Bad Gateway</html>",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"\x00" * 100,
]


@pytest.mark.parametrize("scene", STRANGE)
def test_ambiguous_answer_is_rejected(scene: bytes) -> None:
    error = ask(scene, close=True)
    assert isinstance(error, BackendError)
    assert not isinstance(error, UpstreamError)
    assert error.stage == "sent"


def test_extra_bytes_do_not_answer_the_next_request() -> None:
    async def main() -> None:
        forged = sized(b'{"forged": 1}')
        async with serving(OK + forged, OK + b"junk", OK) as server, backend(server) as client:
            for _ in range(3):
                answer = await client.send(request(), soon())
                assert isinstance(answer, Response)
                assert answer.body == b"{}"
            assert [one.connection for one in server.heard] == [1, 2, 3]

    run(main())


SMALL = HttpLimits(max_header_bytes=2048, max_headers=20, max_body_bytes=4096, max_error_bytes=1024)


@pytest.mark.parametrize(
    "scene",
    [
        sized(b"{}", b"x: " + b"y" * 3000),
        sized(b"{}", *(b"x: y" for _ in range(30))),
        HEAD + b"x: " + b"y" * 5000,
        HEAD + b"x" * 5000,
        sized(b" " * 5000),
        HEAD + b"content-length: 5000\r\n\r\n",
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"100\r\n" + b" " * 256 + b"\r\n" * 1,
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + (b"100\r\n" + b" " * 256 + b"\r\n") * 20,
        HEAD + b"transfer-encoding: chunked\r\n\r\n" + b"1;" + b"x" * 9000 + b"\r\n \r\n",
        b"HTTP/1.1 100 Continue\r\n\r\n" * 20 + OK,
        HEAD + b"transfer-encoding: chunked\r\n\r\n0\r\n" + b"x: " + b"y" * 3000 + b"\r\n\r\n",
    ],
)
def test_every_part_has_a_size_limit(scene: bytes) -> None:
    error = ask(scene, close=True, limits=SMALL)
    assert isinstance(error, BackendError)
    assert error.stage == "sent"


def test_rejection_keeps_body_and_retry_after() -> None:
    body = b'{"error": {"message": "slow down"}}'
    error = ask(sized(body, b"Retry-After: 7", b"X-Request-Id: r", status=b"429 Too Many"))
    assert isinstance(error, UpstreamError)
    assert (error.status, error.stage, error.retry_after_s) == (429, "sent", 7.0)
    assert error.response.body == body
    assert (b"x-request-id", b"r") in error.response.headers
    assert "slow down" not in str(error)


@pytest.mark.parametrize(
    ("fields", "seconds"),
    [
        ((b"Retry-After: -1",), -1.0),
        ((b"X-Should-Retry: false",), -1.0),
        ((b"Retry-After: nan",), None),
        ((b"retry-after-ms: 250", b"retry-after: 9"), 0.25),
        ((b"Date: Wed, 01 Jan 2025 00:00:00 GMT", b"Retry-After: Wed, 01 Jan 2025 00:01:00 GMT"), 60.0),
        ((), None),
    ],
)
def test_retry_after_is_parsed(fields: tuple[bytes, ...], seconds: float | None) -> None:
    error = ask(sized(b"", *fields, status=b"503 Unavailable"))
    assert isinstance(error, UpstreamError)
    assert error.retry_after_s == seconds


def test_oversized_or_cut_rejection_keeps_its_status() -> None:
    error = ask(sized(b"x" * 2000, status=b"500 Error"), limits=SMALL)
    assert not isinstance(error, UpstreamError)
    assert error.status == 500


def test_streamed_error_is_read_completely() -> None:
    error = ask(sized(b"data: no\n\n", b"content-type: text/event-stream", status=b"400 Bad"), stream=True)
    assert isinstance(error, UpstreamError)
    assert error.response.body == b"data: no\n\n"


@pytest.mark.parametrize(
    "status", [b"301 Moved", b"302 Found", b"303 See", b"307 Temporary", b"308 Permanent"]
)
def test_redirect_is_not_followed(status: bytes) -> None:
    error = ask(sized(b"", b"Location: http://169.254.169.254/", status=status))
    assert isinstance(error, BackendError)
    assert error.status == int(status[:3])
    assert "169.254" not in str(error)


def packed(body: bytes, coding: bytes) -> bytes:
    return sized(body, b"content-encoding: " + coding)


@pytest.mark.parametrize(
    ("coding", "body"),
    [(b"gzip", gzip.compress(b"{}", mtime=0)), (b"deflate", zlib.compress(b"{}")), (b"identity", b"{}")],
    ids=["gzip", "deflate", "identity"],
)
def test_unrequested_content_encoding_is_decoded(coding: bytes, body: bytes) -> None:
    answer = ask(packed(body, coding), api=API_FORMATS["chat"])
    assert answer.body == b"{}"
    assert coding == b"identity" or not any(name == b"content-encoding" for name, _ in answer.headers)


@pytest.mark.parametrize(
    "scene",
    [
        packed(gzip.compress(b" " * 10_000_000), b"gzip"),
        packed(gzip.compress(b"{}")[:-3], b"gzip"),
        packed(gzip.compress(b"{}") + b"more", b"gzip"),
        packed(b"{}", b"gzip"),
        packed(b"{}", b"br"),
        packed(gzip.compress(gzip.compress(b"{}")), b"gzip, gzip"),
    ],
    ids=["bomb", "cut short", "more after it", "not packed", "unknown coding", "packed twice"],
)
def test_compression_bombs_and_unknown_encodings_are_rejected(scene: bytes) -> None:
    error = ask(scene, api=API_FORMATS["chat"], limits=HttpLimits(max_body_bytes=100_000))
    assert isinstance(error, BackendError)


def test_pass_through_keeps_content_encoding() -> None:
    body = gzip.compress(b"{}")
    answer = ask(packed(body, b"gzip"))
    assert answer.body == body
    assert (b"content-encoding", b"gzip") in answer.headers
