"""The connections to one endpoint: bounded, kept for a while, handed to who waits in the order they came."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import math
import ssl
import time
from collections import deque
from typing import Any, Final

from agentguard.backends.http.connection import HttpConnection
from agentguard.backends.http.egress_policy import EgressPolicy, UpstreamOrigin, resolve_addresses
from agentguard.backends.http.limits import HttpLimits
from agentguard.errors import BackendError, ConfigError, DeadlineExceeded
from agentguard.resilience.deadline import Deadline


class TlsConfig:
    """What connecting with TLS needs; the certificates are read once. Raises ConfigError if they can't be."""

    def __init__(self, origin: UpstreamOrigin, egress: EgressPolicy) -> None:
        try:
            context = ssl.create_default_context(cafile=egress.ca_file)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{egress.ca_file}: no file of certificates in PEM form ({type(error).__name__})"
            ) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if not egress.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._arguments = {"ssl": context, "server_hostname": origin.host}

    def to_arguments(self) -> dict[str, Any]:
        """For asyncio's ``create_connection``."""
        return self._arguments


_CLOSE_TIMEOUT_S: Final = 1.0


class ConnectionPool:
    """Gives connections out and takes them back. All counts are of this endpoint alone.

    Args:
        origin: the endpoint.
        egress: what its name may stand for.
        limits: how many connections there may be, and for how long.
    """

    def __init__(self, origin: UpstreamOrigin, egress: EgressPolicy, limits: HttpLimits) -> None:
        self._origin, self._egress, self._limits = origin, egress, limits
        self._tls = TlsConfig(origin, egress) if origin.scheme == "https" else None
        self._idle: list[HttpConnection] = []
        self._active: set[HttpConnection] = set()
        self._all: set[HttpConnection] = set()
        self._waiters: deque[asyncio.Future[HttpConnection | None]] = deque()
        self._free_slots = limits.max_connections
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._reaper: asyncio.TimerHandle | None = None
        self._is_closed = False

    @property
    def count(self) -> int:
        """How many there are, those that are being opened with them."""
        return self._limits.max_connections - self._free_slots

    @property
    def has_capacity(self) -> bool:
        """Whether one more may be opened now."""
        return self._free_slots > 0

    def acquire_idle(self) -> HttpConnection | None:
        """One that is idle, the last one used first; None if there is none."""
        idle = self._idle
        if idle:
            now = time.monotonic()
            while idle:
                connection = idle.pop()
                if connection.is_usable(now):
                    return connection
                connection.abort()
        return None

    async def acquire(self, deadline: Deadline) -> HttpConnection:
        """A new one, or the next that is free. Raises BackendError or DeadlineExceeded, stage ``unsent``."""
        while not self._is_closed:
            if self._free_slots > 0:
                self._free_slots -= 1
                return await self._open(deadline)
            handed = await self._wait_for_connection(deadline)
            if handed is None:
                return await self._open(deadline)
            if handed.is_open:  # else the endpoint closed it in the instant in which it was free
                return handed
        raise BackendError("the backend was closed", stage="unsent")

    def start_request(self, connection: HttpConnection, expires_at: float) -> None:
        """A request begins on a connection; it is failed if it is not over by a monotonic time."""
        connection.expires_at = expires_at
        self._active.add(connection)
        if (
            expires_at < self._timer_at
        ):  # mostly an alarm is set already, by an earlier request with as long to go
            self._set_timer(expires_at)

    def release(self, connection: HttpConnection) -> None:
        """A request is over, its response whole: keep the connection, hand it on, or close it."""
        self._active.discard(connection)
        connection.is_busy = False
        reader = connection.parser
        if self._is_closed or not (reader.is_reusable and connection.is_flushed):
            connection.abort()
            return
        connection.idle_since = time.monotonic()
        while self._waiters:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(connection)
                return
        if len(self._idle) >= self._limits.max_idle_connections:
            connection.abort()
            return
        self._idle.append(connection)
        if self._reaper is None:
            self._reaper = asyncio.get_running_loop().call_later(
                self._limits.keepalive_timeout_s, self._close_idle
            )

    def on_open(self, connection: HttpConnection) -> None:
        """A connection is open; its place is given back when it is lost."""
        self._all.add(connection)

    def on_close(self, connection: HttpConnection) -> None:
        """A connection is closed."""
        self._all.discard(connection)
        self._active.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)
        self._free_slot()

    async def aclose(self) -> None:
        """Close all; requests that are under way or wait fail."""
        self._is_closed = True
        for handle in (self._timer, self._reaper):
            if handle is not None:
                handle.cancel()
        self._timer = self._reaper = None
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(BackendError("the backend was closed", stage="unsent"))
        for connection in list(self._all):
            connection.fail(BackendError("the backend was closed", stage="sent"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while self._all:
                    await asyncio.sleep(0)

    async def _wait_for_connection(self, deadline: Deadline) -> HttpConnection | None:
        """Wait for a connection, or for the place of one."""
        if len(self._waiters) >= self._limits.max_waiting:
            raise BackendError("too many requests wait for a connection", stage="unsent")
        waiter: asyncio.Future[HttpConnection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(min(self._limits.pool_timeout_s, deadline.remaining())):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._return_unused(waiter.result())  # it came in the same instant
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            if isinstance(error, TimeoutError):
                raise self._build_timeout_error("no connection was free", deadline) from None
            raise

    def _return_unused(self, connection: HttpConnection | None) -> None:
        if connection is None:
            self._free_slot()
        elif connection.is_open:
            self.release(connection)

    def _free_slot(self) -> None:
        """A place is free: whoever waits first may open a connection."""
        while self._waiters and not self._is_closed:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free_slots += 1

    async def _open(self, deadline: Deadline) -> HttpConnection:
        """Open a connection in the place that was taken for it."""
        try:
            async with asyncio.timeout(min(self._limits.connect_timeout_s, deadline.remaining())):
                connection = await self._connect()
        except TimeoutError as error:
            self._free_slot()
            if error.errno is not None:
                raise BackendError("connecting to the endpoint took too long", stage="unsent") from None
            raise self._build_timeout_error("connecting to the endpoint took too long", deadline) from None
        except OSError as error:
            self._free_slot()
            raise BackendError(
                f"the endpoint could not be reached: {_describe_os_error(error)}", stage="unsent"
            ) from None
        except BaseException:
            self._free_slot()
            raise
        if self._is_closed:
            connection.abort()
            raise BackendError("the backend was closed", stage="unsent")
        return connection

    async def _connect(self) -> HttpConnection:
        """Connect to the first of the checked addresses that answers."""
        found = await resolve_addresses(self._origin, self._egress)
        loop, more = asyncio.get_running_loop(), {} if self._tls is None else self._tls.to_arguments()
        for index, address in enumerate(found):
            opening = _PendingConnection(self)
            try:
                made = functools.partial(opening.build_connection, self._limits)
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

    def _build_timeout_error(self, reason: str, deadline: Deadline) -> BackendError | DeadlineExceeded:
        if deadline.is_expired:
            return DeadlineExceeded(f"{reason} before the call's time was up", stage="unsent")
        return BackendError(reason, stage="unsent")

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(
            max(0.0, at - time.monotonic()), self._expire_requests
        )

    def _expire_requests(self) -> None:
        """Fail what is out of time. One timer serves all requests: setting one for each costs like a read."""
        self._timer, self._timer_at = None, math.inf
        now = time.monotonic() + 0.001
        for connection in [one for one in self._active if one.expires_at <= now]:
            self._active.discard(connection)
            connection.fail(DeadlineExceeded("the answer took longer than the call may", stage="sent"))
        soonest = min((one.expires_at for one in self._active), default=math.inf)
        if soonest < math.inf:
            self._set_timer(soonest)

    def _close_idle(self) -> None:
        """Close what has been idle for too long."""
        now = time.monotonic()
        self._reaper = None
        kept = []
        for connection in self._idle:
            if now - connection.idle_since < min(
                connection.parser.keepalive_s, self._limits.keepalive_timeout_s
            ):
                kept.append(connection)
            else:
                connection.abort()
        self._idle = kept
        if kept:
            left = self._limits.keepalive_timeout_s - (now - kept[0].idle_since)
            self._reaper = asyncio.get_running_loop().call_later(max(0.01, left), self._close_idle)


class _PendingConnection:
    """A connection that is being opened: its place is counted once, by whoever has it in the end."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._connection: HttpConnection | None = None
        self._is_adopted = False

    def build_connection(self, limits: HttpLimits) -> HttpConnection:
        """Make it; called by asyncio."""
        self._connection = HttpConnection(self, limits)
        return self._connection

    def on_open(self, connection: HttpConnection) -> None:
        """It is open, though nobody has it yet."""

    def on_close(self, connection: HttpConnection) -> None:
        """It is closed."""
        if self._is_adopted:
            self._pool.on_close(connection)

    def adopt(self) -> HttpConnection:
        """From now on its place is its own. Raises OSError if it was closed in the meantime."""
        made = self._connection
        if made is None or not made.is_open:
            raise ConnectionResetError("closed as it was opened")
        self._is_adopted = True
        self._pool.on_open(made)
        return made

    def abandon(self) -> None:
        """Close it, if it was opened."""
        if self._connection is not None:
            self._connection.abort()


def _describe_os_error(error: OSError) -> str:
    """An error of the system in one clause, without addresses."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return "TLS could not be agreed on"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    return "the connection was reset" if isinstance(error, ConnectionError) else "there is no way to it"
