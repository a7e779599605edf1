"""What the application may know of, and do to, the connection that a request came on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, cast

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

if TYPE_CHECKING:
    from agentguard_server.proxy.connection import Protocol


class Line:
    """The connection of one request, which stands in its scope under `CONNECTION`."""

    __slots__ = ("_cycle", "_protocol")

    def __init__(self, protocol: Protocol, cycle: RequestResponseCycle) -> None:
        self._protocol, self._cycle = protocol, cycle

    def whole(self) -> bytearray | None:
        """The body, if it is there; None if there is more to come, or the client waits to be asked for it."""
        cycle = self._cycle
        return None if cycle.more_body or cycle.waiting_for_100_continue else cycle.body

    def listen(self) -> None:
        """Read on, so that the client's leaving is noticed: uvicorn may have paused at the body's end."""
        self._protocol.flow.resume_reading()

    def on_lost(self, callback: Callable[[], None]) -> None:
        """Call back when the client leaves, at once if it has; a request has one callback."""
        if self._cycle.disconnected:
            callback()
        else:
            self._protocol.lost = (self._cycle, callback)

    def refusing(self) -> bool:
        """Whether there is more of the body to come; the connection then ends gently after the answer."""
        if self._cycle.more_body:
            self._cycle.transport = cast(asyncio.Transport, _Gently(self._protocol))
        return self._cycle.more_body

    def respond(self, status: int, headers: Iterable[tuple[bytes, bytes]], body: bytes) -> bool:
        """Write a whole answer at once; uvicorn's way looks at each header and writes twice.

        Returns:
            Whether it was written; if not, it goes uvicorn's way: to a client that does not read, or to one
            that asked for no body.
        """
        cycle = self._cycle
        if cycle.flow.write_paused or cycle.disconnected or cycle.scope["method"] == "HEAD":
            return False
        lines = [STATUS_LINE[status]]
        for name, value in headers:
            lines.append(b"%b: %b\r\n" % (name, value))
        head = b"".join(lines)
        if head.count(b"\n") != len(lines) or b"\0" in head:
            return False  # uvicorn refuses it
        end = b"\r\n" if cycle.keep_alive else b"connection: close\r\n\r\n"
        cycle.transport.write(b"%b%b%b" % (head, end, body))
        cycle.response_started = cycle.response_complete = True
        if not cycle.keep_alive:
            cycle.transport.close()
        cycle.on_response()
        return True

    def push(self, data: bytes) -> bool:
        """Write a chunk of a body that comes in chunks; False if the client must be waited for."""
        cycle = self._cycle
        if cycle.flow.write_paused or not cycle.chunked_encoding or cycle.scope["method"] == "HEAD":
            return False
        if not cycle.disconnected:
            cycle.transport.write(b"%x\r\n%b\r\n" % (len(data), data))
        return True

    def abort(self) -> None:
        """Cut the connection, so that an answer that is not whole does not look as if it were."""
        self._cycle.disconnected = True
        self._protocol.transport.abort()


class _Gently:
    """A transport whose `close` lets the client finish what it is sending."""

    def __init__(self, protocol: Protocol) -> None:
        self._protocol = protocol
        self.write = protocol.transport.write
        self.is_closing = protocol.transport.is_closing

    def close(self) -> None:
        self._protocol.linger()
