"""Connection pool of one endpoint: bounded, with idle connections and a FIFO queue of waiting requests."""

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
    """TLS arguments of connections; certificates are read once. Raises ConfigError if they cannot be read."""

    def __init__(self, origin: UpstreamOrigin, egress: EgressPolicy) -> None:
        try:
            context = ssl.create_default_context(cafile=egress.ca_file)
        except (OSError, ValueError) as error:
            raise ConfigError(
                f"{egress.ca_file} is not a PEM file of certificates ({type(error).__name__})"
            ) from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        if not egress.verify:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        self._arguments = {"ssl": context, "server_hostname": origin.host}

    def to_arguments(self) -> dict[str, Any]:
        """Return the arguments for asyncio's ``create_connection``."""
        return self._arguments


_CLOSE_TIMEOUT_S: Final = 1.0


class ConnectionPool:
    """Pool of the connections to one endpoint; all counts refer to this endpoint.

    Args:
        origin: the endpoint.
        egress: policy on the addresses that its name may resolve to.
        limits: limits on the number and the lifetime of connections.
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
    def tls_arguments(self) -> dict[str, Any]:
        """Return the TLS arguments of asyncio's ``create_connection``; empty for plain HTTP."""
        return {} if self._tls is None else self._tls.to_arguments()

    @property
    def count(self) -> int:
        """Return the number of connections, including those being opened."""
        return self._limits.max_connections - self._free_slots

    @property
    def has_capacity(self) -> bool:
        """Return whether another connection may be opened now."""
        return self._free_slots > 0

    def acquire_idle(self) -> HttpConnection | None:
        """Return the most recently used idle connection; None if there is no idle connection."""
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
        """Open a connection or wait for a free one.

        Raises:
            BackendError, DeadlineExceeded: no connection was available; their stage is ``unsent``.
        """
        while not self._is_closed:
            if self._free_slots > 0:
                self._free_slots -= 1
                return await self._open(deadline)
            connection = await self._wait_for_connection(deadline)
            if connection is None:
                return await self._open(deadline)
            if connection.is_open:  # otherwise the endpoint closed it just when it became free
                return connection
        raise BackendError("the backend is closed", stage="unsent")

    def start_request(self, connection: HttpConnection, expires_at: float) -> None:
        """Start a request on a connection; it fails if it has not ended at a monotonic time."""
        connection.expires_at = expires_at
        self._active.add(connection)
        if expires_at < self._timer_at:  # usually an earlier request with the same timeout has set the timer
            self._set_timer(expires_at)

    def release(self, connection: HttpConnection) -> None:
        """Release a connection after a complete response: pass it to a waiting request, keep or close it."""
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
        """Register an open connection."""
        self._all.add(connection)

    def on_close(self, connection: HttpConnection) -> None:
        """Remove a closed connection and free its slot."""
        self._all.discard(connection)
        self._active.discard(connection)
        with contextlib.suppress(ValueError):
            self._idle.remove(connection)
        self._free_slot()

    async def aclose(self) -> None:
        """Close all connections; pending and waiting requests fail."""
        self._is_closed = True
        for handle in (self._timer, self._reaper):
            if handle is not None:
                handle.cancel()
        self._timer = self._reaper = None
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_exception(BackendError("the backend is closed", stage="unsent"))
        for connection in list(self._all):
            connection.fail(BackendError("the backend is closed", stage="sent"))
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while self._all:
                    await asyncio.sleep(0)

    async def _wait_for_connection(self, deadline: Deadline) -> HttpConnection | None:
        """Wait for a connection, or return None for a free slot."""
        if len(self._waiters) >= self._limits.max_waiting:
            raise BackendError("too many requests wait for a connection", stage="unsent")
        waiter: asyncio.Future[HttpConnection | None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        try:
            async with asyncio.timeout(min(self._limits.pool_timeout_s, deadline.remaining())):
                return await waiter
        except BaseException as error:
            if waiter.done() and not waiter.cancelled() and waiter.exception() is None:
                self._return_unused(waiter.result())  # it arrived at the same moment
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
        """Free a slot; the first waiting request may open a connection."""
        while self._waiters and not self._is_closed:
            waiter = self._waiters.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._free_slots += 1

    async def _open(self, deadline: Deadline) -> HttpConnection:
        """Open a connection in a reserved slot."""
        try:
            async with asyncio.timeout(min(self._limits.connect_timeout_s, deadline.remaining())):
                connection = await self._connect()
        except TimeoutError as error:
            self._free_slot()
            if error.errno is not None:
                raise BackendError("connecting to the endpoint timed out", stage="unsent") from None
            raise self._build_timeout_error("connecting to the endpoint timed out", deadline) from None
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
            raise BackendError("the backend is closed", stage="unsent")
        return connection

    async def _connect(self) -> HttpConnection:
        """Connect to the first of the permitted addresses that accepts."""
        addresses = await resolve_addresses(self._origin, self._egress)
        loop = asyncio.get_running_loop()
        for index, address in enumerate(addresses):
            pending_connection = _PendingConnection(self)
            try:
                factory = functools.partial(pending_connection.build_connection, self._limits)
                await loop.create_connection(factory, address, self._origin.port, **self.tls_arguments)
            except OSError:
                pending_connection.abandon()
                if index == len(addresses) - 1:
                    raise
            except BaseException:
                pending_connection.abandon()
                raise
            else:
                return pending_connection.adopt()
        raise OSError("no address")

    def _build_timeout_error(self, reason: str, deadline: Deadline) -> BackendError | DeadlineExceeded:
        if deadline.is_expired:
            return DeadlineExceeded(f"{reason} before the deadline", stage="unsent")
        return BackendError(reason, stage="unsent")

    def _set_timer(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = at
        self._timer = asyncio.get_running_loop().call_later(
            max(0.0, at - time.monotonic()), self._expire_requests
        )

    def _expire_requests(self) -> None:
        """Fail expired requests. One timer serves all requests, because a timer per request is expensive."""
        self._timer, self._timer_at = None, math.inf
        now = time.monotonic() + 0.001
        for connection in [one for one in self._active if one.expires_at <= now]:
            self._active.discard(connection)
            connection.fail(DeadlineExceeded("the response did not end before the deadline", stage="sent"))
        next_at = min((one.expires_at for one in self._active), default=math.inf)
        if next_at < math.inf:
            self._set_timer(next_at)

    def _close_idle(self) -> None:
        """Close connections that were idle too long."""
        now = time.monotonic()
        self._reaper = None
        open_connections = []
        for connection in self._idle:
            if now - connection.idle_since < min(
                connection.parser.keepalive_s, self._limits.keepalive_timeout_s
            ):
                open_connections.append(connection)
            else:
                connection.abort()
        self._idle = open_connections
        if open_connections:
            idle_left_s = self._limits.keepalive_timeout_s - (now - open_connections[0].idle_since)
            self._reaper = asyncio.get_running_loop().call_later(max(0.01, idle_left_s), self._close_idle)


class _PendingConnection:
    """Connection before it is established. Only after `adopt` it frees its slot, so none is freed twice."""

    def __init__(self, pool: ConnectionPool) -> None:
        self._pool = pool
        self._connection: HttpConnection | None = None
        self._is_adopted = False

    def build_connection(self, limits: HttpLimits) -> HttpConnection:
        """Create the protocol; called by asyncio."""
        self._connection = HttpConnection(self, limits)
        return self._connection

    def on_open(self, connection: HttpConnection) -> None:
        """Do nothing, because the connection is not adopted yet."""

    def on_close(self, connection: HttpConnection) -> None:
        """Notify the pool of the closed connection if it was adopted."""
        if self._is_adopted:
            self._pool.on_close(connection)

    def adopt(self) -> HttpConnection:
        """Hand the connection to the pool. Raises OSError if it was closed meanwhile."""
        connection = self._connection
        if connection is None or not connection.is_open:
            raise ConnectionResetError("closed during the connection attempt")
        self._is_adopted = True
        self._pool.on_open(connection)
        return connection

    def abandon(self) -> None:
        """Close the connection if it was opened."""
        if self._connection is not None:
            self._connection.abort()


def _describe_os_error(error: OSError) -> str:
    """Describe a system error in one clause without addresses."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, ssl.SSLError):
        return "the TLS handshake failed"
    if isinstance(error, ConnectionRefusedError):
        return "the connection was refused"
    return "the connection was reset" if isinstance(error, ConnectionError) else "no route to host"
