"""One request on a connection, and its answer: as ASGI has them, and in plain calls, which cost less."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, MutableMapping
from http import HTTPStatus
from typing import Any, Final, Protocol

from agentguard_server.proxy import error_summary

logger = logging.getLogger("agentguard.proxy")

CONNECTION: Final = "agentguard.connection"
"""Where in a request's scope our own server puts its `Line`."""

_STATUS: Final = {one.value: b"HTTP/1.1 %d %b" % (one.value, one.phrase.encode()) for one in HTTPStatus}
_BODILESS: Final = frozenset({204, 304})
_CLOSE: Final = b"connection: close"
_FAILED: Final = b"the proxy failed; its log says more"

Pairs = Iterable[tuple[bytes, bytes]]


class ServerTransport(Protocol):
    """What a request needs of the connection it came on.

    Attributes:
        transport: of asyncio.
        lost: the request that wants to know if the client leaves.
        unread: set once the client has read enough of what it was sent; None if it has.
        tasks: of all connections, while they answer.
    """

    transport: asyncio.Transport
    lost: RequestCycle | None
    unread: asyncio.Event | None
    tasks: set[asyncio.Task[None]]

    def resume_reading(self) -> None:
        """Read on."""

    def answered(self, line: RequestCycle) -> None:
        """An answer is written."""

    def linger(self) -> None:
        """Say nothing more, and hear for a moment."""


class RequestCycle:
    """Stands in the request's scope under `CONNECTION`; its `receive` and `send` are those of ASGI.

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
        "_asks", "_bodiless", "_chunked", "_event", "_gently", "_left", "_news", "_old", "_parts",
        "_protocol", "begun", "callback", "complete", "disconnected", "keep_alive", "more_body", "size",
    )  # fmt: skip

    def __init__(
        self, protocol: ServerTransport, method: str, version: str, *, keep_alive: bool, asks: bool
    ) -> None:
        self._protocol, self.keep_alive, self._asks = protocol, keep_alive, asks
        self._old, self._bodiless = version == "1.0", method == "HEAD"
        self._parts: list[bytes] = []
        self._event: asyncio.Event | None = None
        self._left: int | None = 0
        self.size = 0
        self.more_body = True
        self._chunked = self._gently = self._news = False
        self.disconnected = self.begun = self.complete = False
        self.callback: Callable[[], None] | None = None

    # The request

    def feed_body(self, data: bytes) -> None:
        """More of the body has come."""
        self._parts.append(data)
        self.size += len(data)
        self.notify()

    def notify(self) -> None:
        """There is something to receive."""
        self._news = True
        if self._event is not None:
            self._event.set()

    def complete_body(self) -> bytes | None:
        """The body, if it is there; None if there is more to come, or the client waits to be asked for it."""
        if self.more_body or self._asks:
            return None
        parts = self._parts
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def resume_reading(self) -> None:
        """Read on, so that the client's leaving is noticed: reading may be paused at the body's end."""
        self._protocol.resume_reading()

    def on_disconnect(self, callback: Callable[[], None]) -> None:
        """Call back when the client leaves, at once if it has; a request has one callback."""
        if self.disconnected:
            callback()
        else:
            self.callback, self._protocol.lost = callback, self

    def body_pending(self) -> bool:
        """Whether there is more of the body to come; the connection then ends gently after the answer."""
        self._gently = self._gently or self.more_body
        return self.more_body

    async def receive(self) -> MutableMapping[str, Any]:
        """As ASGI has it."""
        if self._asks and not self._protocol.transport.is_closing():
            self._protocol.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._asks = False
        if not (self.disconnected or self.complete):
            self._protocol.resume_reading()
            if not self._news:
                self._event = self._event or asyncio.Event()
                await self._event.wait()
            self._news = False
            if self._event is not None:
                self._event.clear()
        if self.disconnected or self.complete:
            return {"type": "http.disconnect"}
        body, self._parts, self.size = b"".join(self._parts), [], 0
        return {"type": "http.request", "body": body, "more_body": self.more_body}

    # The answer

    def respond(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a whole answer at once; its length is among the headers.

        Returns:
            Whether it was written; if not, `send` does it: to a client that does not read, or that asked for
            no body.
        """
        if self._protocol.unread is not None or self.disconnected or self._bodiless:
            return False
        head = _block(status, headers, close=not self.keep_alive)
        self._protocol.transport.write(b"%b\r\n\r\n%b" % (head, body))
        self.begun = True
        self._end()
        return True

    def begin(self, status: int, headers: list[tuple[bytes, bytes]]) -> bool:
        """Write the head of an answer whose body follows; False if the client must be waited for."""
        if self._protocol.unread is not None or self.disconnected:
            return False
        self._head(status, headers)
        return True

    def push(self, data: bytes) -> bool:
        """Write a chunk of a body that comes in chunks; False if the client must be waited for."""
        if self._protocol.unread is not None or not self._chunked or self._bodiless:
            return False
        if not self.disconnected:
            self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def abort(self) -> None:
        """Cut the connection, so that an answer that is not whole does not look as if it were."""
        self.disconnected = True
        self._protocol.transport.abort()

    async def send(self, message: MutableMapping[str, Any]) -> None:
        """As ASGI has it; waits while the client does not read."""
        if self._protocol.unread is not None and not self.disconnected:
            await self._protocol.unread.wait()
        if self.disconnected:
            return
        if not self.begun:
            self._head(message["status"], message.get("headers", ()))
        elif not self.complete:
            self._body(message.get("body", b""))
            if not message.get("more_body", False):
                if self._left:
                    raise RuntimeError("an answer is shorter than it says")
                self._end()
        else:
            raise RuntimeError("a request is answered once")

    def finalize(self, task: asyncio.Task[None]) -> None:
        """The application is done with the request; one that it did not answer gets an error."""
        self._protocol.tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            logger.error("a request failed in the proxy: %s", error_summary.summarize_error(error))
        if self.complete or self.disconnected:
            return
        if self.begun:
            self._protocol.transport.close()
            return
        self.keep_alive = False
        length = b"%d" % len(_FAILED)
        self._head(500, [(b"content-type", b"text/plain; charset=utf-8"), (b"content-length", length)])
        self._body(_FAILED)
        self._end()

    def _head(self, status: int, headers: Pairs) -> None:
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
        self._left = length or 0
        if length is None and not self._bodiless and status not in _BODILESS:
            self._chunked, self._left = not self._old, None
            if self._chunked:
                kept.append((b"transfer-encoding", b"chunked"))
        head = _block(status, kept, close=not self.keep_alive)
        self.begun, self._asks = True, False
        self._protocol.transport.write(head + b"\r\n\r\n")

    def _body(self, data: bytes) -> None:
        """Write a part of the body."""
        if self._bodiless:
            self._left = 0
        elif self._chunked:
            if data:
                self._protocol.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        else:
            if self._left is not None:
                if len(data) > self._left:
                    raise RuntimeError("an answer is longer than it says")
                self._left -= len(data)
            if data:
                self._protocol.transport.write(data)

    def finish(self) -> bool:
        """Write the end of a body that comes in chunks; False if the client must be waited for."""
        if self._protocol.unread is not None or not self._chunked or self.disconnected:
            return False
        self._end()
        return True

    def _end(self) -> None:
        """The answer is written."""
        protocol = self._protocol
        if self._chunked:
            protocol.transport.write(b"0\r\n\r\n")
        self.complete, self.callback = True, None
        if self._event is not None:
            self._event.set()
        if not self.keep_alive:
            if self._gently:
                protocol.linger()
            else:
                protocol.transport.close()
        protocol.answered(self)


def _block(status: int, headers: list[tuple[bytes, bytes]], *, close: bool) -> bytes:
    """The head but for its blank line. Raises RuntimeError for a header that would break out of its line."""
    lines = [_STATUS.get(status) or b"HTTP/1.1 %d " % status]
    lines += [name + b": " + value for name, value in headers]
    if close:
        lines.append(_CLOSE)
    head = b"\r\n".join(lines)
    breaks = len(lines) - 1
    if head.count(b"\n") != breaks or head.count(b"\r") != breaks or b"\0" in head:
        raise RuntimeError("a header has characters that none may have")
    return head
