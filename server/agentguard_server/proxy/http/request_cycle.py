"""Request cycle of a connection: request and response by direct method calls, which are fast, and by ASGI."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, MutableMapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from agentguard_server.proxy.errors import summarize_error
from agentguard_server.proxy.http.headers import HeaderPairs

if TYPE_CHECKING:
    from agentguard_server.proxy.http.server_protocol import HttpServerProtocol

logger = logging.getLogger("agentguard.proxy")

_STATUS_LINES: Final = {one.value: b"HTTP/1.1 %d %b" % (one.value, one.phrase.encode()) for one in HTTPStatus}
_BODILESS_STATUSES: Final = frozenset({204, 304})
_CONNECTION_CLOSE: Final = b"connection: close"
_MAX_EARLY_BYTES: Final = 65_536
_FAILURE_TEXT: Final = b"the proxy failed; see its log"


class RequestCycle:
    """One request and its response; `receive` and `send` are those of ASGI.

    Args:
        protocol: the connection.
        method: HTTP method.
        http_version: version of the client. A client with 1.0 gets no transfer coding, so a body of unknown
            length ends with the connection (RFC 9112, 6.1 and 6.3).
        raw_path: path as the client sent it.
        query_string: query as the client sent it.
        headers: headers in order, with names in lower case.
        keep_alive: True if the client can reuse the connection.
        expects_continue: True if the client waits for a status 100 before the body
            (``Expect: 100-continue``).

    Attributes:
        more_body: True while the body is incomplete.
        is_disconnected: True if the client has disconnected.
        is_response_started: True if the head of the response is written.
        is_complete: True if the whole response is written.
        keep_alive: as the argument, until the response closes the connection.
        is_websocket: True if the client asks for a switch to WebSocket.
        early_data: bytes that the client sent after the head of such a request.
        body_size: bytes of the body that `receive_part` has not returned.
        disconnect_callback: see `on_disconnect`.
    """

    __slots__ = (
        "_body_parts",
        "_expects_continue",
        "_has_input",
        "_http_version",
        "_is_bodiless",
        "_is_chunked",
        "_lingers_on_close",
        "_protocol",
        "_receive_event",
        "_remaining_bytes",
        "body_size",
        "disconnect_callback",
        "early_data",
        "headers",
        "is_complete",
        "is_disconnected",
        "is_response_started",
        "is_websocket",
        "keep_alive",
        "method",
        "more_body",
        "query_string",
        "raw_path",
    )  # fmt: skip

    def __init__(
        self,
        protocol: HttpServerProtocol,
        method: str,
        http_version: str,
        *,
        raw_path: bytes,
        query_string: bytes,
        headers: list[tuple[bytes, bytes]],
        keep_alive: bool,
        expects_continue: bool,
    ) -> None:
        self._protocol, self.keep_alive, self._expects_continue = protocol, keep_alive, expects_continue
        self.method, self.raw_path, self.query_string, self.headers = method, raw_path, query_string, headers
        self._http_version, self._is_bodiless = http_version, method == "HEAD"
        self._body_parts: list[bytes] = []
        self._receive_event: asyncio.Event | None = None
        self._remaining_bytes: int | None = 0
        self.body_size = 0
        self.more_body = True
        self.is_websocket, self.early_data = False, b""
        self._is_chunked = self._lingers_on_close = self._has_input = False
        self.is_disconnected = self.is_response_started = self.is_complete = False
        self.disconnect_callback: Callable[[], None] | None = None

    # The request

    def feed_body(self, data: bytes) -> None:
        """Add a part of the body."""
        self._body_parts.append(data)
        self.body_size += len(data)
        self._has_input = True
        if self._receive_event is not None:
            self._receive_event.set()

    def end_body(self) -> None:
        """Mark the body as complete."""
        self.more_body, self._has_input = False, True
        if self._receive_event is not None:
            self._receive_event.set()

    def notify(self) -> None:
        """Wake the receiver."""
        self._has_input = True
        if self._receive_event is not None:
            self._receive_event.set()

    def complete_body(self) -> bytes | None:
        """Return the body; None if it is incomplete or the client waits for a status 100."""
        if self.more_body or self._expects_continue:
            return None
        parts = self._body_parts
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def resume_reading(self) -> None:
        """Read again, since reading may be paused at the end of the body and then misses a disconnect."""
        self._protocol.resume_reading()

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Set the callback for a disconnect; call it at once if the client has already disconnected."""
        if self.is_disconnected:
            callback()
        else:
            self.disconnect_callback, self._protocol.disconnect_listener = callback, self

    def linger_for_body(self) -> bool:
        """Return whether the body is incomplete; if so, the connection lingers after the response."""
        self._lingers_on_close = self._lingers_on_close or self.more_body
        return self.more_body

    async def receive_part(self) -> bytes | None:
        """Wait for a part of the body; `more_body` is False after the last. None after a disconnect."""
        if self._expects_continue and not self._protocol.transport.is_closing():
            self._protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._expects_continue = False
        if not (self.is_disconnected or self.is_complete):
            self._protocol.resume_reading()
            if not self._has_input:
                self._receive_event = self._receive_event or asyncio.Event()
                await self._receive_event.wait()
            self._has_input = False
            if self._receive_event is not None:
                self._receive_event.clear()
        if self.is_disconnected or self.is_complete:
            return None
        body, self._body_parts, self.body_size = b"".join(self._body_parts), [], 0
        return body

    # The response

    def write_response(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a whole response at once; the headers must have its length.

        Returns:
            True if the response was written. False if the client does not read or sent a HEAD request;
            then use `send_head` and `send_body`.
        """
        if self._protocol.drained is not None or self.is_disconnected or self._is_bodiless:
            return False
        head = _build_head(status, headers, close=not self.keep_alive)
        self._protocol.transport.write(b"%b\r\n\r\n%b" % (head, body))
        self.is_response_started = True
        self._complete_response()
        return True

    def start_response(self, status: int, headers: list[tuple[bytes, bytes]]) -> bool:
        """Write the head of a response whose body follows; return False if a wait is necessary."""
        if self._protocol.drained is not None or self.is_disconnected:
            return False
        self._write_head(status, headers)
        return True

    def write_chunk(self, data: bytes) -> bool:
        """Write a chunk of a chunked body; return False if a wait is necessary."""
        if self._protocol.drained is not None or not self._is_chunked or self._is_bodiless:
            return False
        if not self.is_disconnected:
            self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def abort(self) -> None:
        """Abort the connection, so that an incomplete response does not look complete."""
        self.is_disconnected = True
        self._protocol.transport.abort()

    async def send_head(self, status: int, headers: HeaderPairs) -> None:
        """Write the head of a response; wait while the client does not read."""
        await self._wait_until_drained()
        if self.is_disconnected:
            return
        if self.is_response_started:
            raise RuntimeError("the response was already started")
        self._write_head(status, headers)

    async def send_body(self, data: bytes, *, more_body: bool = False) -> None:
        """Write a part of the body, or the last one; wait while the client does not read."""
        await self._wait_until_drained()
        if self.is_disconnected:
            return
        if self.is_complete or not self.is_response_started:
            raise RuntimeError("the body was sent before the head, or after its end")
        self._write_body(data)
        if not more_body:
            if self._remaining_bytes:
                raise RuntimeError("the response is shorter than its Content-Length")
            self._complete_response()

    async def _wait_until_drained(self) -> None:
        if self._protocol.drained is not None and not self.is_disconnected:
            await self._protocol.drained.wait()

    def buffer_early_data(self, data: bytes) -> None:
        """Buffer bytes that arrive before the switch; stop reading above a limit."""
        self.early_data += data
        if len(self.early_data) > _MAX_EARLY_BYTES:
            self._protocol.pause_reading()

    def start_tunnel(self, headers: list[tuple[bytes, bytes]], sink: Callable[[bytes], None]) -> bool:
        """Switch to WebSocket: write the head, and pass all bytes of the client to ``sink`` from now on.

        Returns:
            False if the client has disconnected.
        """
        if self.is_disconnected:
            return False
        switch = [*headers, (b"connection", b"Upgrade"), (b"upgrade", b"websocket")]
        self._protocol.transport.write(_build_head(101, switch, close=False) + b"\r\n\r\n")
        self.is_response_started = True
        self._protocol.tunnel_sink = sink
        early, self.early_data = self.early_data, b""
        if early:
            sink(early)
        self._protocol.resume_reading()
        return True

    async def send_tunnel_data(self, data: bytes) -> None:
        """Send bytes after the switch; wait while the client does not read."""
        await self._wait_until_drained()
        if not self.is_disconnected:
            self._protocol.transport.write(data)

    def pause_reading(self) -> None:
        """Stop reading, so that TCP flow control slows the client down."""
        self._protocol.pause_reading()

    def end_tunnel(self) -> None:
        """Close the connection after the switch."""
        self.is_complete, self.disconnect_callback = True, None
        self._protocol.transport.close()
        self._protocol.on_response_complete(self)

    # The ASGI interface of applications behind the proxy: administration and viewer

    def build_scope(self) -> dict[str, Any]:
        """Return the scope of the request."""
        path = self.raw_path.decode("ascii")
        return {
            **self._protocol.base_scope,
            "http_version": self._http_version,
            "method": self.method,
            "path": unquote(path) if "%" in path else path,
            "raw_path": self.raw_path,
            "query_string": self.query_string,
            "headers": self.headers,
        }

    async def receive(self) -> MutableMapping[str, Any]:
        """Wait for the next event of the request."""
        part = await self.receive_part()
        if part is None:
            return {"type": "http.disconnect"}
        return {"type": "http.request", "body": part, "more_body": self.more_body}

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """Send an event of the response; wait while the client does not read."""
        if message["type"] == "http.response.start":
            await self.send_head(message["status"], message.get("headers", ()))
        else:
            await self.send_body(message.get("body", b""), more_body=message.get("more_body", False))

    def finalize(self, task: asyncio.Task[None]) -> None:
        """Process the end of the application; send an error if it sent no response."""
        self._protocol.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a request failed in the proxy: %s", summarize_error(error))
        if self.is_complete or self.is_disconnected:
            return
        if self.is_response_started:
            self._protocol.transport.close()
            return
        self.keep_alive = False
        length = b"%d" % len(_FAILURE_TEXT)
        self._write_head(500, [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", length)])
        self._write_body(_FAILURE_TEXT)
        self._complete_response()

    def _write_head(self, status: int, headers: HeaderPairs) -> None:
        """Write the head and determine the framing of the body."""
        kept, length = [], None
        for name, value in headers:
            name = name.lower()
            if name == b"transfer-encoding":
                continue  # this method determines the framing
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                self.keep_alive = self.keep_alive and b"close" not in value.lower()
                continue
            kept.append((name, value))
        self._remaining_bytes = length or 0
        if length is None and not self._is_bodiless and status not in _BODILESS_STATUSES:
            self._is_chunked, self._remaining_bytes = self._http_version != "1.0", None
            if self._is_chunked:
                kept.append((b"transfer-encoding", b"chunked"))
        head = _build_head(status, kept, close=not self.keep_alive)
        self.is_response_started, self._expects_continue = True, False
        self._protocol.transport.write(head + b"\r\n\r\n")

    def _write_body(self, data: bytes) -> None:
        """Write a part of the body."""
        if self._is_bodiless:
            self._remaining_bytes = 0
        elif self._is_chunked:
            if data:
                self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            if self._remaining_bytes is not None:
                if len(data) > self._remaining_bytes:
                    raise RuntimeError("the response is longer than its Content-Length")
                self._remaining_bytes -= len(data)
            if data:
                self._protocol.transport.write(data)

    def end_response(self) -> bool:
        """Write the end of a chunked body; return False if a wait is necessary."""
        if self._protocol.drained is not None or not self._is_chunked or self.is_disconnected:
            return False
        self._complete_response()
        return True

    def _complete_response(self) -> None:
        """Complete the response; close the connection or prepare it for the next request."""
        protocol = self._protocol
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
    """Build the head without its blank line. Raises RuntimeError if a header contains a line break or NUL."""
    lines = [_STATUS_LINES.get(status) or b"HTTP/1.1 %d " % status]
    lines += map(b": ".join, headers)
    if close:
        lines.append(_CONNECTION_CLOSE)
    head = b"\r\n".join(lines)
    breaks = len(lines) - 1
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
        raise RuntimeError("a header contains forbidden characters")
    return head
