"""An endpoint that is spoken to over HTTP/1.1, with the seam of a backend."""

from __future__ import annotations

import time
import zlib
from typing import Final, Literal

import msgspec

from agentguard.backends.base import BackendRequest, Headers, Response, UpstreamError
from agentguard.backends.http.connection import HttpConnection
from agentguard.backends.http.connection_pool import ConnectionPool
from agentguard.backends.http.egress_policy import EgressPolicy, check_origin, parse_origin
from agentguard.backends.http.limits import HttpLimits
from agentguard.backends.http.request_head import RequestHeadBuilder
from agentguard.backends.http.response_stream import HttpStream
from agentguard.errors import BackendError, DeadlineExceeded
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.retry_after import parse_pushback

_ZLIB_WINDOW_BITS = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


def decompress(body: bytes, coding: bytes, *, max_bytes: int) -> bytes | None:
    """Take off a coding that was not asked for; None if it is another, broken, or hides more than ``most``.

    The bound is on what comes out, and it holds while decoding (CVE-2025-48956 and its like).
    """
    window = _ZLIB_WINDOW_BITS.get(coding)
    if window is None:
        return None
    decoder = zlib.decompressobj(window)
    try:
        data = decoder.decompress(body, max_bytes + 1)
    except zlib.error:
        return None
    return data if decoder.eof and len(data) <= max_bytes and not decoder.unused_data else None


def remove_header(headers: Headers, name: bytes) -> Headers:
    """Headers without those of a name."""
    return tuple(field for field in headers if field[0] != name)


def is_complete_json(body: bytes) -> bool:
    """Whether a body shows by itself that nothing is missing: it is one JSON object or array."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True


Auth = Literal["bearer", "x-api-key", "api-key"]
"""Where the key stands: ``Authorization: Bearer``, Anthropic's field, or Azure's."""

_CLOCK_TOLERANCE_S: Final = 1e-6
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_RETRY_FIELDS: Final = frozenset({b"retry-after", b"retry-after-ms", b"x-should-retry", b"date"})


class HttpBackend:
    """One endpoint. Made anywhere, used in one event loop; its connections are its own.

    Args:
        url: base URL that targets are joined to, e.g. ``http://127.0.0.1:8000/v1``.
        name: what answers are said to be from; the URL's host and port if empty.
        key: the endpoint's key; None if it wants none. The caller's own keys are not sent then.
        headers: sent with every request, in place of the caller's of the same name.
        auth: the field that the key stands in.
        egress: what the URL's name may stand for, and whose certificates are trusted.
        limits: bounds of sizes, times and connections.

    Raises:
        ConfigError: the URL, the key or a header can't be used, or the address is refused.
        MissingExtra: the extra ``serve`` is not installed.
    """

    def __init__(
        self,
        url: str,
        *,
        name: str = "",
        key: str | None = None,
        headers: Headers = (),
        auth: Auth = "bearer",
        egress: EgressPolicy | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        egress = egress or EgressPolicy()
        origin = check_origin(parse_origin(url), egress)
        self.name = name or origin.authority
        self._limits = limits or HttpLimits()
        self._head_builder = RequestHeadBuilder(origin, key=key, auth=auth, headers=headers)
        self._connection_pool = ConnectionPool(origin, egress, self._limits)

    @property
    def connection_count(self) -> int:
        """How many connections there are now."""
        return self._connection_pool.count

    async def send(self, request: BackendRequest, deadline: Deadline) -> Response | HttpStream:
        """Send a request; a stream of events is handed out as it comes, anything else whole.

        A request without an API that asks for a stream gets any successful answer as it comes. One that may
        not be sent twice goes out on a connection of its own, if one more may be opened: the endpoint may
        close a kept one in the same instant, and then nobody knows what it has seen (RFC 9112, 9.3.1).

        Raises:
            Refused: the endpoint answered with a status of 400 or more.
            BackendError: it was not reached (``unsent``), or did not answer with what is valid and whole
                (``sent``).
            DeadlineExceeded: the time is up.
        """
        head = self._head_builder.build(request)
        left = deadline.at - deadline.clock.now()
        if left <= _CLOCK_TOLERANCE_S:
            raise DeadlineExceeded("no time was left for the call", stage="unsent")
        kept = request.idempotent or not self._connection_pool.has_capacity
        connection, now = self._connection_pool.acquire_idle() if kept else None, time.monotonic()
        if connection is None:
            connection = await self._connection_pool.acquire(deadline)
            left, now = deadline.remaining(), time.monotonic()
        try:
            self._connection_pool.start_request(connection, now + left)
            raw = request.stream and request.api is None
            await connection.send_request(head, request.body, bodiless=request.method == "HEAD", raw=raw)
        except BaseException:
            connection.abort()
            raise
        if connection.parser.is_streaming:
            return self._build_stream(request, connection)
        return self._build_response(request, connection)

    async def aclose(self) -> None:
        """Close all connections. Requests that are under way fail."""
        await self._connection_pool.aclose()

    def _build_stream(self, request: BackendRequest, connection: HttpConnection) -> HttpStream:
        reader = connection.parser
        if reader.encoding and request.api is not None:
            connection.abort()
            raise BackendError("the endpoint's stream is encoded, which was not asked for", stage="sent")
        release = self._connection_pool.release
        return HttpStream(connection, release, self._limits, replica=self.name).start(request.api)

    def _build_response(self, request: BackendRequest, connection: HttpConnection) -> Response:
        reader = connection.parser
        status, headers, body = reader.status, reader.headers, reader.take_body()
        encoding, until_close = reader.encoding, reader.ends_at_close
        self._connection_pool.release(connection)
        if status == 200 and not encoding and not until_close:
            return Response(status=status, headers=headers, body=body, replica=self.name)
        if status >= 300:
            self._raise_for_status(status, headers, body)
        if until_close and not is_complete_json(body):
            raise BackendError("the endpoint's answer has no length, and may be cut off", stage="sent")
        if encoding and request.api is not None:
            plain = decompress(body, encoding, max_bytes=self._limits.max_body_bytes)
            if plain is None:
                raise BackendError("the endpoint's answer is encoded, which was not asked for", stage="sent")
            headers, body = remove_header(headers, b"content-encoding"), plain
        return Response(status=status, headers=headers, body=body, replica=self.name)

    def _raise_for_status(self, status: int, headers: Headers, body: bytes) -> None:
        """Raise for a status that is no success; 304 and its like pass."""
        if status in _REDIRECTS:
            raise BackendError(
                "the endpoint answered with a redirect, which is not followed", status=status, stage="sent"
            )
        if status < 400:
            return
        if len(body) > self._limits.max_error_bytes:
            raise BackendError(
                f"{self.name} answered with status {status}, and more than is handed on",
                status=status,
                stage="sent",
            )
        answer = Response(status=status, headers=headers, body=body, replica=self.name)
        told = {name.decode(): value.decode("latin-1") for name, value in headers if name in _RETRY_FIELDS}
        raise UpstreamError(answer, retry_after_s=parse_pushback(told) if told else None)
