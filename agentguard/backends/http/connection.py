"""One connection to an endpoint: an asyncio protocol that carries one request at a time."""

from __future__ import annotations

import asyncio
import select
import socket
import sys
import time
from typing import Final, Protocol, cast

from agentguard.backends.http.limits import HttpLimits
from agentguard.backends.http.response_parser import Malformed, ResponseParser
from agentguard.errors import BackendError, ResilienceError

_JOIN: Final = 65_536
"""Up to this size head and body go out in one piece."""
_PEEK_S: Final = 1.0
"""After so long without use it is asked of the system whether the endpoint has closed it."""


class Owner(Protocol):
    """Who keeps connections."""

    def made(self, connection: HttpConnection) -> None:
        """It is open."""
        ...

    def lost(self, connection: HttpConnection) -> None:
        """It is closed; called once after `made`."""
        ...


class ResponseSink(Protocol):
    """Who takes the body of a response as it comes."""

    def push(self, data: bytes) -> None:
        """More of it. Raises BackendError if it can't be taken."""
        ...

    def finish(self, error: ResilienceError | None) -> None:
        """There is no more, or none that can be had; called once."""
        ...


class HttpConnection(asyncio.Protocol):
    """Sends a request, reads the response.

    Attributes:
        reader: of the response under way.
        busy: whether it carries a request.
        at: monotonic time by which that must be over.
        paused: whether nothing is read for now.
        since: when it became idle.
    """

    __slots__ = (
        "_error",
        "_fd",
        "_loop",
        "_owner",
        "_sink",
        "_transport",
        "_waiter",
        "at",
        "busy",
        "paused",
        "reader",
        "since",
    )

    def __init__(self, owner: Owner, limits: HttpLimits) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self._sink: ResponseSink | None = None
        self.paused = False
        self._fd = -1
        self._error: ResilienceError | None = None
        self.reader = ResponseParser(limits)
        self.busy = False
        self.at = self.since = 0.0

    @property
    def open(self) -> bool:
        """Whether it was made and nothing has ended it."""
        return self._transport is not None and not self._transport.is_closing()

    @property
    def clear(self) -> bool:
        """Whether it is open, and all that was written has gone out."""
        transport = self._transport
        return transport is not None and not transport.is_closing() and transport.get_write_buffer_size() == 0

    def usable(self, now: float) -> bool:
        """Whether a request may go out on it; one that the endpoint has closed may not carry any."""
        transport, idle = self._transport, now - self.since
        if transport is None or transport.is_closing() or idle > self.reader.keep_s:
            return False
        if idle < _PEEK_S or self._fd < 0 or sys.platform == "win32":
            return True
        poll = select.poll()
        poll.register(self._fd, select.POLLIN)
        return not poll.poll(0)

    def ask(self, head: bytes, body: bytes, *, bodiless: bool, raw: bool) -> asyncio.Future[None]:
        """Send a request; done once the head of a stream, or all of another response, is there.

        It fails with a ResilienceError of stage ``sent``. `take_over` must follow, or `free`, or `drop`.
        """
        transport = self._transport
        assert transport is not None  # for mypy: it is open
        self.busy, self._error = True, None
        self.reader.begin(bodiless=bodiless, raw=raw)
        self._waiter = waiter = self._loop.create_future()
        if not body:
            transport.write(head)
        elif len(body) <= _JOIN:
            transport.write(head + body)
        else:
            transport.write(head)
            transport.write(body)
        return waiter

    def take_over(self, sink: ResponseSink) -> None:
        """From now on a sink gets the body as it comes, and its end."""
        self._sink = sink
        if self.reader.body:
            self._push(sink)
        if self._sink is not None and (self.reader.complete or self._error is not None):
            self._sink = None
            sink.finish(self._error)

    def pause(self) -> None:
        """Read no more for now: what comes stays with the system, and then with the endpoint."""
        if not self.paused and self._transport is not None and not self._transport.is_closing():
            self.paused = True
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self.paused:
            self.paused = False
            if self._transport is not None and not self._transport.is_closing():
                self._transport.resume_reading()

    def fail(self, error: ResilienceError) -> None:
        """Give the request up with an error, and close; whoever takes the stream over later is told, too."""
        waiter, sink = self._waiter, self._sink
        self._waiter = self._sink = None
        if self._error is None and not self.reader.complete:
            self._error = error
        self.drop()
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        if sink is not None:
            sink.finish(error)

    def drop(self) -> None:
        """Close at once; what was not sent is not sent."""
        self._sink = None
        if self._transport is not None and not self._transport.is_closing():
            self._transport.abort()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open. Small writes go out at once (TCP_NODELAY): Nagle's algorithm costs up to 40 ms."""
        transport = cast(asyncio.Transport, transport)  # uvloop's are none by their class
        self._transport = transport
        made = transport.get_extra_info("socket")
        if made is not None:
            self._fd = made.fileno()
            made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.since = time.monotonic()
        self._owner.made(self)

    def data_received(self, data: bytes) -> None:
        """Part of a response; anything that was not asked for closes the connection."""
        reader = self.reader
        if not self.busy or reader.complete:
            reader.reusable = False
            if not self.busy:
                self.drop()
            return
        try:
            whole = reader.feed(data)
        except Malformed as error:
            self._malformed(error)
            return
        if self._sink is not None:
            self._push(self._sink)
        if whole:
            self._done()
        elif self._waiter is not None and reader.streaming:
            self._wake()

    def eof_received(self) -> bool:
        """The endpoint closed its side."""
        if self.busy and not self.reader.complete:
            try:
                self.reader.end()
            except Malformed as error:
                self._malformed(error)
            else:
                self._done()
        self.reader.reusable = False
        return False

    def connection_lost(self, error: Exception | None) -> None:
        """It is closed."""
        del error
        if self.busy and not self.reader.complete and self._error is None:
            self.fail(
                BackendError("the endpoint closed the connection before its answer was whole", stage="sent")
            )
        self._transport = None
        self._fd = -1
        self._owner.lost(self)

    def _push(self, sink: ResponseSink) -> None:
        body = self.reader.body
        data = body.pop() if len(body) == 1 else self.reader.take()
        if data:
            try:
                sink.push(data)
            except ResilienceError as error:
                self.fail(error)

    def _malformed(self, error: Malformed) -> None:
        self.fail(BackendError(f"the endpoint's answer is not valid: {error}", stage="sent"))

    def _wake(self) -> None:
        waiter = self._waiter
        if waiter is not None:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _done(self) -> None:
        """The response is whole."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.finish(None)
        else:
            self._wake()
