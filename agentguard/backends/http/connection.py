"""Connection to an endpoint: an asyncio protocol that carries one request at a time."""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import time
from typing import Final, Protocol, cast

from agentguard.backends.http.limits import HttpLimits
from agentguard.backends.http.response_parser import MalformedResponse, ResponseParser
from agentguard.errors import BackendError, ResilienceError

_MAX_JOINED_BYTES: Final = 65_536
"""Up to this size, head and body are sent in one write."""
_POLL_AFTER_IDLE_S: Final = 1.0
"""Idle time after which the socket is polled to detect a close by the endpoint."""


class ConnectionOwner(Protocol):
    """Owner of connections."""

    def on_open(self, connection: HttpConnection) -> None:
        """Handle an opened connection."""
        ...

    def on_close(self, connection: HttpConnection) -> None:
        """Handle a closed connection; called once after `on_open`."""
        ...


class ResponseSink(Protocol):
    """Receiver of a response body while it arrives."""

    def push(self, data: bytes) -> None:
        """Receive data. Raises BackendError if the data is not acceptable."""
        ...

    def finish(self, error: ResilienceError | None) -> None:
        """Handle the end of the body or its failure; called once."""
        ...


class HttpConnection(asyncio.Protocol):
    """Connection that sends a request and reads the response.

    Attributes:
        parser: parser of the current response.
        is_busy: True if the connection carries a request.
        expires_at: monotonic time by which the request must end.
        is_paused: True if reading is paused.
        idle_since: monotonic time at which the connection became idle.
    """

    __slots__ = (
        "_error",
        "_fd",
        "_loop",
        "_owner",
        "_sink",
        "_transport",
        "_waiter",
        "expires_at",
        "idle_since",
        "is_busy",
        "is_paused",
        "parser",
    )

    def __init__(self, owner: ConnectionOwner, limits: HttpLimits) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: ResponseSink | None = None
        self.is_paused = False
        self._fd = -1
        self._error: ResilienceError | None = None
        self.parser = ResponseParser(limits)
        self.is_busy = False
        self.expires_at = self.idle_since = 0.0

    @property
    def is_open(self) -> bool:
        """Return whether the connection is established and not closing."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def is_flushed(self) -> bool:
        """Return whether the connection is open and all written data has been sent."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and transport.get_write_buffer_size() == 0

    def is_usable(self, now: float) -> bool:
        """Return whether a request may be sent: the connection is open, also at the endpoint's side."""
        transport, idle = self._transport, now - self.idle_since
        if transport is None or transport.is_closing() or idle > self.parser.keepalive_s:
            return False
        if idle < _POLL_AFTER_IDLE_S or self._fd < 0 or sys.platform == "win32":
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return not poll.poll(0)

    def send_request(self, head: bytes, body: bytes, *, bodiless: bool, raw: bool) -> asyncio.Future[None]:
        """Send a request; the future resolves at the head of a stream, or at the end of another response.

        It fails with a ResilienceError of stage ``sent``. Call `attach_sink`, `ConnectionPool.release` or
        `abort` afterwards.
        """
        transport = self._transport
        assert transport is not None
        self.is_busy, self._error = True, None
        self.parser.reset(bodiless=bodiless, raw=raw)
        self._waiter = waiter = self._loop.create_future()
        if not body:
            transport.write(head)
        elif len(body) <= _MAX_JOINED_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        return waiter

    def attach_sink(self, sink: ResponseSink) -> None:
        """Pass the rest of the body, and its end, to a sink."""
        self._sink = sink
        if self.parser.body:
            self._push_body(sink)
        if self._sink is not None and (self.parser.is_complete or self._error is not None):
            self._sink = None
            sink.finish(self._error)

    def pause(self) -> None:
        """Pause reading, so that TCP flow control slows the endpoint down."""
        if not self.is_paused and self._transport is not None and not self._transport.is_closing():
            self.is_paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Resume reading."""
        if self.is_paused:
            self.is_paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def fail(self, error: ResilienceError) -> None:
        """Fail the request with an error, and close; a sink that is attached later gets the error too."""
        waiter, sink = self._waiter, self._sink
        self._waiter = self._sink = None
        if self._error is None and not self.parser.is_complete:
            self._error = error
        self.abort()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        if sink is not None:
            sink.finish(error)

    def abort(self) -> None:
        """Close at once; unsent data is discarded."""
        self._sink = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    # Callbacks of asyncio.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set TCP_NODELAY, because Nagle's algorithm delays small writes by up to 40 ms; notify the owner."""
        transport = cast(asyncio.Transport, transport)  # uvloop's transports are not subclasses
        self._transport = transport
        tcp_socket = transport.get_extra_info("socket")
        if tcp_socket is not None:
            self._fd = tcp_socket.fileno()
            tcp_socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.idle_since = time.monotonic()
        self._owner.on_open(self)

    def data_received(self, data: bytes) -> None:
        """Parse data; unsolicited data closes the connection."""
        reader = self.parser
        if not self.is_busy or reader.is_complete:
            reader.is_reusable = False
            if not self.is_busy:
                self.abort()
            return
        try:
            is_whole = reader.feed(data)
        except MalformedResponse as error:
            self._fail_malformed(error)
            return
        if self._sink is not None:
            self._push_body(self._sink)
        if is_whole:
            self._finish_response()
        elif self._waiter is not None and reader.is_streaming:
            self._resolve_waiter()

    def eof_received(self) -> bool:
        """Handle the endpoint's end of data."""
        if self.is_busy and not self.parser.is_complete:
            try:
                self.parser.feed_eof()
            except MalformedResponse as error:
                self._fail_malformed(error)
            else:
                self._finish_response()
        self.parser.is_reusable = False
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """Fail a pending request, and notify the owner."""
        del error
        if self.is_busy and not self.parser.is_complete and self._error is None:
            self.fail(
                BackendError(
                    "the endpoint closed the connection before the end of the response", stage="sent"
                )
            )
        self._transport = None
        self._fd = -1
        self._owner.on_close(self)

    def _push_body(self, sink: ResponseSink) -> None:
        body = self.parser.body
        data = body.pop() if len(body) == 1 else self.parser.take_body()
        if data:
            try:
                sink.push(data)
            except ResilienceError as error:
                self.fail(error)

    def _fail_malformed(self, error: MalformedResponse) -> None:
        self.fail(BackendError(f"the response is not valid: {error}", stage="sent"))

    def _resolve_waiter(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _finish_response(self) -> None:
        """Finish a complete response."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.finish(None)
        else:
            self._resolve_waiter()
