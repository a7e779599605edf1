"""One request on a connection, and its answer: as ASGI has them, and in plain calls, which cost less."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from agentguard_server.proxy import error_summary

logger = logging.getLogger("agentguard.proxy")

CYCLE_KEY: Final = "agentguard.connection"
"""Where in a request's scope our own server puts its `Line`."""

_STATUS_LINES: Final = {one.value: b"HTTP/1.1 %d %b" % (one.value, one.phrase.encode()) for one in HTTPStatus}
_BODILESS_STATUSES: Final = frozenset({204, 304})
_CONNECTION_CLOSE: Final = b"connection: close"
_FAILURE_TEXT: Final = b"the proxy failed; its log says more"

HeaderPairs = Iterable[tuple[bytes, bytes]]


class ServerTransport(Protocol):
    """What a request needs of the connection it came on.

    Attributes:
        transport: of asyncio.
        lost: the request that wants to know if the client leaves.
        unread: set once the client has read enough of what it was sent; None if it has.
        tasks: of all connections, while they answer.
    """

    transport: asyncio.Transport
    disconnect_listener: RequestCycle | None
    drained: asyncio.Event | None
    tasks: set[asyncio.Task[None]]

    def resume_reading(self) -> None:
        """Read on."""

    def on_response_complete(self, cycle: RequestCycle) -> None:
        """An answer is written."""

    def start_lingering(self) -> None:
        """Say nothing more, and hear for a moment."""


class RequestCycle:
    """Stands in the request's scope under `CYCLE_KEY`; its `receive` and `send` are those of ASGI.

    Args:
        protocol: the connection.
        method: of HTTP.
        version: of HTTP that the client speaks; no transfer coding goes to one that speaks 1.0, and a body
            whose length is not known beforehand ends with the connection then (RFC 9112, 6.1 and 6.3).
        keep_alive: whether the connection can be used after this request.
        asks: whether the client waits to be asked for the body (``Expect: 100-continue``).

    Attributes:
        more_body: whether there is more of the request to come.
        disconnected: whether the client has left.
        begun: whether the answer's head was written.
        complete: whether all of the answer was.
        keep_alive: as given, until the answer says otherwise.
    """

    __slots__ = (
        "_body_parts",
        "_expects_continue",
        "_has_news",
        "_is_bodiless",
        "_is_chunked",
        "_is_http_1_0",
        "_lingers_on_close",
        "_receive_event",
        "_remaining_bytes",
        "_transport",
        "body_size",
        "disconnect_callback",
        "is_complete",
        "is_disconnected",
        "is_response_started",
        "keep_alive",
        "more_body",
    )  # fmt: skip

    def __init__(
        self,
        transport: ServerTransport,
        method: str,
        version: str,
        *,
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self._transport, self.keep_alive, self._expects_continue = transport, keep_alive, expects_continue
        self._is_http_1_0, self._is_bodiless = version == "1.0", method == "HEAD"
        self._body_parts: list[bytes] = []
        self._receive_event: asyncio.Event | None = None
        self._remaining_bytes: int | None = 0
        self.body_size = 0
        self.more_body = True
        self._is_chunked = self._lingers_on_close = self._has_news = False
        self.is_disconnected = self.is_response_started = self.is_complete = False
        self.disconnect_callback: Callable[[], None] | None = None

    # The request

    def feed_body(self, data: bytes) -> None:
        """More of the body has come."""
        self._body_parts.append(data)
        self.body_size += len(data)
        self.notify()

    def notify(self) -> None:
        """There is something to receive."""
        self._has_news = True
        if self._receive_event is not None:
            self._receive_event.set()

    def complete_body(self) -> bytes | None:
        """The body, if it is there; None if there is more to come, or the client waits to be asked for it."""
        if self.more_body or self._expects_continue:
            return None
        parts = self._body_parts
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def resume_reading(self) -> None:
        """Read on, so that the client's leaving is noticed: reading may be paused at the body's end."""
        self._transport.resume_reading()

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call back when the client leaves, at once if it has; a request has one callback."""
        if self.is_disconnected:
            callback()
        else:
            self.disconnect_callback, self._transport.disconnect_listener = callback, self

    def body_pending(self) -> bool:
        """Whether there is more of the body to come; the connection then ends gently after the answer."""
        self._lingers_on_close = self._lingers_on_close or self.more_body
        return self.more_body

    async def receive(self) -> MutableMapping[str, Any]:
        """As ASGI has it."""
        if self._expects_continue and not self._transport.transport.is_closing():
            self._transport.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects_continue = False
        if not (self.is_disconnected or self.is_complete):
            self._transport.resume_reading()
            if not self._has_news:
                self._receive_event = self._receive_event or asyncio.Event()
                await self._receive_event.wait()
            self._has_news = False
            if self._receive_event is not None:
                self._receive_event.clear()
        if self.is_disconnected or self.is_complete:
            return {"type": "http.disconnect"}
        body, self._body_parts, self.body_size = b"".join(self._body_parts), [], 0
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    # The answer

    def write_response(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a whole answer at once; its length is among the headers.

        Returns:
            Whether it was written; if not, `send` does it: to a client that does not read, or that asked for
            no body.
        """
        if self._transport.drained is not None or self.is_disconnected or self._is_bodiless:
            return False
        head = _build_head(status, headers, close=not self.keep_alive)
        self._transport.transport.write(b"%b\r\n\r\n%b" % (head, body))
        self.is_response_started = True
        self._complete_response()
        return True

    def start_response(self, status: int, headers: list[tuple[bytes, bytes]]) -> bool:
        """Write the head of an answer whose body follows; False if the client must be waited for."""
        if self._transport.drained is not None or self.is_disconnected:
            return False
        self._write_head(status, headers)
        return True

    def write_chunk(self, data: bytes) -> bool:
        """Write a chunk of a body that comes in chunks; False if the client must be waited for."""
        if self._transport.drained is not None or not self._is_chunked or self._is_bodiless:
            return False
        if not self.is_disconnected:
            self._transport.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def abort(self) -> None:
        """Cut the connection, so that an answer that is not whole does not look as if it were."""
        self.is_disconnected = True
        self._transport.transport.abort()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """As ASGI has it; waits while the client does not read."""
        if self._transport.drained is not None and not self.is_disconnected:
            await self._transport.drained.wait()
        if self.is_disconnected:
            return
        if not self.is_response_started:
            self._write_head(message["status"], message.get("headers", ()))
        elif not self.is_complete:
            self._write_body(message.get("body", b""))
            if not message.get("more_body", False):
                if self._remaining_bytes:
                    raise RuntimeError("an answer is shorter than it says")
                self._complete_response()
        else:
            raise RuntimeError("a request is answered once")

    def finalize(self, task: asyncio.Task[None]) -> None:
        """The application is done with the request; one that it did not answer gets an error."""
        self._transport.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a request failed in the proxy: %s", error_summary.summarize_error(error))
        if self.is_complete or self.is_disconnected:
            return
        if self.is_response_started:
            self._transport.transport.close()
            return
        self.keep_alive = False
        length = b"%d" % len(_FAILURE_TEXT)
        self._write_head(500, [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", length)])
        self._write_body(_FAILURE_TEXT)
        self._complete_response()

    def _write_head(self, status: int, headers: HeaderPairs) -> None:
        """Write the head, and settle how the body ends."""
        kept, length = [], None
        for name, value in headers:
            name = name.lower()
            if name == b"transfer-encoding":
                continue  # what frames the body is decided here
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
                continue
            kept.append((name, value))
        self._remaining_bytes = length or 0
        if length is None and not self._is_bodiless and status not in _BODILESS_STATUSES:
            self._is_chunked, self._remaining_bytes = not self._is_http_1_0, None
            if self._is_chunked:
                kept.append((b"transfer-encoding", b"chunked"))
        head = _build_head(status, kept, close=not self.keep_alive)
        self.is_response_started, self._expects_continue = True, False
        self._transport.transport.write(head + b"\r\n\r\n")

    def _write_body(self, data: bytes) -> None:
        """Write a part of the body."""
        if self._is_bodiless:
            self._remaining_bytes = 0
        elif self._is_chunked:
            if data:
                self._transport.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            if self._remaining_bytes is not None:
                if len(data) > self._remaining_bytes:
                    raise RuntimeError("an answer is longer than it says")
                self._remaining_bytes -= len(data)
            if data:
                self._transport.transport.write(data)

    def end_response(self) -> bool:
        """Write the end of a body that comes in chunks; False if the client must be waited for."""
        if self._transport.drained is not None or not self._is_chunked or self.is_disconnected:
            return False
        self._complete_response()
        return True

    def _complete_response(self) -> None:
        """The answer is written."""
        protocol = self._transport
        if self._is_chunked:
            protocol.transport.write(b"0\r\n\r\n")
        self.is_complete, self.disconnect_callback = True, None
        if self._receive_event is not None:
            self._receive_event.set()
        if not self.keep_alive:
            if self._lingers_on_close:
                protocol.start_lingering()
            else:
                protocol.transport.close()
        protocol.on_response_complete(self)


def _build_head(status: int, headers: list[tuple[bytes, bytes]], *, close: bool) -> bytes:
    """The head but for its blank line. Raises RuntimeError for a header that would break out of its line."""
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status]
    lines += [name + b": " + value for name, value in headers]
    if close:
        lines.append(_CONNECTION_CLOSE)
    head = b"\r\n".join(lines)
    breaks = len(lines) - 1
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
        raise RuntimeError("a header has characters that none may have")
    return head
