"""The connections to one endpoint: bounded, kept for a while, handed to who waits in the order they came."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import ssl
import time
from collections import deque
from typing import Final

from agentguard.backends.http.connection import HttpConnection
from agentguard.backends.http.egress_policy import Egress, UpstreamOrigin, addresses
from agentguard.backends.http.limits import HttpLimits
from agentguard.backends.http.tls import Tls
from agentguard.errors import BackendError, DeadlineExceeded
from agentguard.resilience.deadline import Deadline

_CLOSING_S: Final = 1.0


class Connections:
    """Gives connections out and takes them back. All counts are of this endpoint alone.

    Args:
        origin: the endpoint.
        egress: what its name may stand for.
        limits: how many connections there may be, and for how long.
    """

    def __init__(self, origin: UpstreamOrigin, egress: Egress, limits: HttpLimits) -> None:
        self._origin, self._egress, self._limits = origin, egress, limits
        self._tls = Tls(origin, egress) if origin.scheme == "https" else None
        self._idle: list[HttpConnection] = []
        self._busy: set[HttpConnection] = set()
        self._all: set[HttpConnection] = set()
        self._waiters: deque[asyncio.Future[HttpConnection | None]] = deque()
        self._places = limits.connections
        self._alarm: asyncio.TimerHandle | None = None
        self._alarm_at = math.inf
        self._reaper: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def count(self) -> int:
        """How many there are, those that are being opened with them."""
        return self._limits.connections - self._places

    @property
    def room(self) -> bool:
        """Whether one more may be opened now."""
        return self._places > 0

    def take(self) -> HttpConnection | None:
        """One that is idle, the last one used first; None if there is none."""
        idle = self._idle
        if idle:
            now = time.monotonic()
            while idle:
                connection = idle.pop()
                if connection.usable(now):
                    return connection
                connection.drop()
        return None

    async def get(self, deadline: Deadline) -> HttpConnection:
        """A new one, or the next that is free. Raises BackendError or DeadlineExceeded, stage ``unsent``."""
        while not self._closed:
            if self._places > 0:
                self._places -= 1
                return await self._open(deadline)
            handed = await self._wait(deadline)
            if handed is None:
                return await self._open(deadline)
            if handed.open:  # else the endpoint closed it in the instant in which it was free
                return handed
        raise BackendError("the backend was closed", stage="unsent")

    def begin(self, connection: HttpConnection, at: float) -> None:
        """A request begins on a connection; it is failed if it is not over by a monotonic time."""
        connection.at = at
        self._busy.add(connection)
        if at < self._alarm_at:  # mostly an alarm is set already, by an earlier request with as long to go
            self._set_alarm(at)

    def release(self, connection: HttpConnection) -> None:
        """A request is over, its response whole: keep the connection, hand it on, or close it."""
        self._busy.discard(connection)
        connection.busy = False
        reader = connection.reader
        if self._closed or not (reader.reusable and connection.clear):
            connection.drop()
            return
        connection.since = time.monotonic()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if len(self._idle) >= self._limits.idle:
            connection.drop()
            return
        self._idle.append(connection)
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().call_later(self._limits.idle_s, self._reap)

    def made(self, connection: HttpConnection) -> None:
        """A connection is open; its place is given back when it is lost."""
        self._all.add(connection)

    def lost(self, connection: HttpConnection) -> None:
        """A connection is closed."""
        self._all.discard(connection)
        self._busy.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)
        self._vacate()

    async def aclose(self) -> None:
        """Close all; requests that are under way or wait fail."""
        self._closed = True
        for handle in (self._alarm, self._reaper):
            if handle is not None:
                handle.cancel()
        self._alarm = self._reaper = None
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(BackendError("the backend was closed", stage="unsent"))
        for connection in list(self._all):
            connection.fail(BackendError("the backend was closed", stage="sent"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSING_S):
                while self._all:
                    await asyncio.sleep(0)

    async def _wait(self, deadline: Deadline) -> HttpConnection | None:
        """Wait for a connection, or for the place of one."""
        if len(self._waiters) >= self._limits.waiting:
            raise BackendError("too many requests wait for a connection", stage="unsent")
        waiter: asyncio.Future[HttpConnection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(min(self._limits.wait_s, deadline.remaining())):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._hand_back(waiter.result())  # it came in the same instant
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            if isinstance(error, TimeoutError):
                raise self._late("no connection was free", deadline) from None
            raise

    def _hand_back(self, handed: HttpConnection | None) -> None:
        if handed is None:
            self._vacate()
        elif handed.open:
            self.release(handed)

    def _vacate(self) -> None:
        """A place is free: whoever waits first may open a connection."""
        while self._waiters and not self._closed:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._places += 1

    async def _open(self, deadline: Deadline) -> HttpConnection:
        """Open a connection in the place that was taken for it."""
        try:
            async with asyncio.timeout(min(self._limits.connect_s, deadline.remaining())):
                connection = await self._connect()
        except TimeoutError as error:
            self._vacate()
            if error.errno is not None:
                raise BackendError("connecting to the endpoint took too long", stage="unsent") from None
            raise self._late("connecting to the endpoint took too long", deadline) from None
        except OSError as error:
            self._vacate()
            raise BackendError(f"the endpoint could not be reached: {_why(error)}", stage="unsent") from None
        except BaseException:
            self._vacate()
            raise
        if self._closed:
            connection.drop()
            raise BackendError("the backend was closed", stage="unsent")
        return connection

    async def _connect(self) -> HttpConnection:
        """Connect to the first of the checked addresses that answers."""
        found = await addresses(self._origin, self._egress)
        loop, more = asyncio.get_running_loop(), {} if self._tls is None else self._tls.arguments()
        for index, address in enumerate(found):
            opening = _Opening(self)
            try:
                made = functools.partial(opening.connection, self._limits)
                await loop.create_connection(made, address, self._origin.port, **more)
            except OSError:
                opening.abandon()
                if index == len(found) - 1:
                    raise
            except BaseException:
                opening.abandon()
                raise
            else:
                return opening.adopt()
        raise OSError("no address")

    def _late(self, reason: str, deadline: Deadline) -> BackendError | DeadlineExceeded:
        if deadline.expired:
            return DeadlineExceeded(f"{reason} before the call's time was up", stage="unsent")
        return BackendError(reason, stage="unsent")

    def _set_alarm(self, at: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm_at = at
        self._alarm = asyncio.get_running_loop().call_later(max(0.0, at - time.monotonic()), self._ring)

    def _ring(self) -> None:
        """Fail what is out of time. One timer serves all requests: setting one for each costs like a read."""
        self._alarm, self._alarm_at = None, math.inf
        now = time.monotonic() + 0.001
        for connection in [one for one in self._busy if one.at <= now]:
            self._busy.discard(connection)
            connection.fail(DeadlineExceeded("the answer took longer than the call may", stage="sent"))
        soonest = min((one.at for one in self._busy), default=math.inf)
        if soonest < math.inf:
            self._set_alarm(soonest)

    def _reap(self) -> None:
        """Close what has been idle for too long."""
        now = time.monotonic()
        self._reaper = None
        kept = []
        for connection in self._idle:
            if now - connection.since < min(connection.reader.keep_s, self._limits.idle_s):
                kept.append(connection)
            else:
                connection.drop()
        self._idle = kept
        if kept:
            left = self._limits.idle_s - (now - kept[0].since)
            self._reaper = asyncio.get_running_loop().call_later(max(0.01, left), self._reap)


class _Opening:
    """A connection that is being opened: its place is counted once, by whoever has it in the end."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self._made: HttpConnection | None = None
        self._adopted = False

    def connection(self, limits: HttpLimits) -> HttpConnection:
        """Make it; called by asyncio."""
        self._made = HttpConnection(self, limits)
        return self._made

    def made(self, connection: HttpConnection) -> None:
        """It is open, though nobody has it yet."""

    def lost(self, connection: HttpConnection) -> None:
        """It is closed."""
        if self._adopted:
            self._connections.lost(connection)

    def adopt(self) -> HttpConnection:
        """From now on its place is its own. Raises OSError if it was closed in the meantime."""
        made = self._made
        if made is None or not made.open:
            raise ConnectionResetError("closed as it was opened")
        self._adopted = True
        self._connections.made(made)
        return made

    def abandon(self) -> None:
        """Close it, if it was opened."""
        if self._made is not None:
            self._made.drop()


def _why(error: OSError) -> str:
    """An error of the system in one clause, without addresses."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return "TLS could not be agreed on"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    return "the connection was reset" if isinstance(error, ConnectionError) else "there is no way to it"
