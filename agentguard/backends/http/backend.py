"""An endpoint that is spoken to over HTTP/1.1, with the seam of a backend."""

from __future__ import annotations

import time
from typing import Final, Literal

from agentguard.backends.base import BackendRequest, Headers, Response, UpstreamError
from agentguard.backends.http.connection import HttpConnection
from agentguard.backends.http.connection_pool import Connections
from agentguard.backends.http.decoding import decoded, self_contained, without
from agentguard.backends.http.egress_policy import Egress, checked, origin_of
from agentguard.backends.http.limits import HttpLimits
from agentguard.backends.http.request_head import Heads
from agentguard.backends.http.response_stream import HttpStream
from agentguard.errors import BackendError, DeadlineExceeded
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.retry_after import pushback

Auth = Literal["bearer", "x-api-key", "api-key"]
"""Where the key stands: ``Authorization: Bearer``, Anthropic's field, or Azure's."""

_EARLY: Final = 1e-6
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_AGAIN: Final = frozenset({b"retry-after", b"retry-after-ms", b"x-should-retry", b"date"})


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
        egress: Egress | None = None,
        limits: HttpLimits | None = None,
    ) -> None:
        egress = egress or Egress()
        origin = checked(origin_of(url), egress)
        self.name = name or origin.authority
        self._limits = limits or HttpLimits()
        self._heads = Heads(origin, key=key, auth=auth, headers=headers)
        self._connections = Connections(origin, egress, self._limits)

    @property
    def connections(self) -> int:
        """How many connections there are now."""
        return self._connections.count

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
        head = self._heads.make(request)
        left = deadline.at - deadline.clock.now()
        if left <= _EARLY:
            raise DeadlineExceeded("no time was left for the call", stage="unsent")
        kept = request.idempotent or not self._connections.room
        connection, now = self._connections.take() if kept else None, time.monotonic()
        if connection is None:
            connection = await self._connections.get(deadline)
            left, now = deadline.remaining(), time.monotonic()
        try:
            self._connections.begin(connection, now + left)
            raw = request.stream and request.api is None
            await connection.ask(head, request.body, bodiless=request.method == "HEAD", raw=raw)
        except BaseException:
            connection.drop()
            raise
        if connection.reader.streaming:
            return self._streamed(request, connection)
        return self._whole(request, connection)

    async def aclose(self) -> None:
        """Close all connections. Requests that are under way fail."""
        await self._connections.aclose()

    def _streamed(self, request: BackendRequest, connection: HttpConnection) -> HttpStream:
        reader = connection.reader
        if reader.encoding and request.api is not None:
            connection.drop()
            raise BackendError("the endpoint's stream is encoded, which was not asked for", stage="sent")
        release = self._connections.release
        return HttpStream(connection, release, self._limits, replica=self.name).start(request.api)

    def _whole(self, request: BackendRequest, connection: HttpConnection) -> Response:
        reader = connection.reader
        status, headers, body = reader.status, reader.headers, reader.take()
        encoding, until_close = reader.encoding, reader.until_close
        self._connections.release(connection)
        if status == 200 and not encoding and not until_close:
            return Response(status=status, headers=headers, body=body, replica=self.name)
        if status >= 300:
            self._refuse(status, headers, body)
        if until_close and not self_contained(body):
            raise BackendError("the endpoint's answer has no length, and may be cut off", stage="sent")
        if encoding and request.api is not None:
            plain = decoded(body, encoding, most=self._limits.body_bytes)
            if plain is None:
                raise BackendError("the endpoint's answer is encoded, which was not asked for", stage="sent")
            headers, body = without(headers, b"content-encoding"), plain
        return Response(status=status, headers=headers, body=body, replica=self.name)

    def _refuse(self, status: int, headers: Headers, body: bytes) -> None:
        """Raise for a status that is no success; 304 and its like pass."""
        if status in _REDIRECTS:
            raise BackendError(
                "the endpoint answered with a redirect, which is not followed", status=status, stage="sent"
            )
        if status < 400:
            return
        if len(body) > self._limits.error_bytes:
            raise BackendError(
                f"{self.name} answered with status {status}, and more than is handed on",
                status=status,
                stage="sent",
            )
        answer = Response(status=status, headers=headers, body=body, replica=self.name)
        told = {name.decode(): value.decode("latin-1") for name, value in headers if name in _AGAIN}
        raise UpstreamError(answer, retry_after_s=pushback(told) if told else None)
