"""Server of one worker on uvicorn, with reloads and a drain that does not interrupt streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Final

import uvicorn

from agentguard.errors import ConfigError
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.http.server_protocol import HttpServerProtocol
from agentguard_server.proxy.http.tls import TlsListener
from agentguard_server.proxy.requests.handler import ProxyApp

logger = logging.getLogger("agentguard.proxy")

BACKLOG: Final = 2048
_PARENT_CHECK_INTERVAL_S: Final = 1.0
_TLS_CLOSE_TIMEOUT_S: Final = 1.0
_ERROR_DELIVERY_TIMEOUT_S: Final = 1.0
"""Time to send an error to each client whose request did not finish during the drain."""


class ProxyServer(uvicorn.Server):
    """Server of one worker.

    Args:
        app: application of the worker.
        on_ready: called when the server accepts requests.
        reload: reads the configuration again and applies it; the server logs its errors.
        parent: process ID of the supervisor; the worker stops when that process has ended. None for a single
            worker.

    """

    def __init__(
        self,
        app: ProxyApp,
        *,
        on_ready: Callable[[], None],
        reload: Callable[[], Awaitable[None]],
        parent: int | None = None,
    ) -> None:
        settings = app.app_state.settings
        super().__init__(_build_config(app, settings))
        self._tls = None if settings.listen.tls is None else TlsListener(settings.listen.tls)
        self._app, self._on_ready, self._reload, self._parent = app, on_ready, reload, parent
        self._stop_event = asyncio.Event()
        self._reload_task: asyncio.Task[None] | None = None
        self._tls_task: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Handle signals in the event loop without delay; uvicorn polls ten times per second."""
        loop = asyncio.get_running_loop()
        # The supervisor forwards SIGTERM. A terminal sends SIGINT to all processes, so it would arrive twice.
        stop_signals = (signal.SIGTERM,) if self._parent is not None else (signal.SIGTERM, signal.SIGINT)
        for one in stop_signals:
            loop.add_signal_handler(one, self._begin_shutdown)
        loop.add_signal_handler(signal.SIGHUP, self._schedule_reload)
        try:
            yield
        finally:
            for one in stop_signals:
                loop.remove_signal_handler(one)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept requests."""
        loop, tls_options = asyncio.get_running_loop(), dict[str, Any]()
        if self._tls is not None:
            tls_options = {
                "ssl": self._tls.context,
                "ssl_handshake_timeout": self._app.app_state.settings.limits.header_timeout_s,
                "ssl_shutdown_timeout": _TLS_CLOSE_TIMEOUT_S,
            }
            self._tls_task = loop.create_task(self._watch_certificate(self._tls))
        self.servers = [
            await loop.create_server(self._create_protocol, sock=one, backlog=BACKLOG, **tls_options)
            for one in sockets or []
        ]
        self.started = True
        self._on_ready()

    def _create_protocol(self) -> HttpServerProtocol:
        return HttpServerProtocol(self.config, self.server_state, {})

    async def main_loop(self) -> None:
        """Wait for the stop event; begin the shutdown if the supervisor has died."""
        while not self._stop_event.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_PARENT_CHECK_INTERVAL_S if self._parent is not None else None):
                    await self._stop_event.wait()
            if self._parent is not None and os.getppid() != self._parent:
                self._begin_shutdown()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no new requests, drain requests in flight until the timeout, and fail the rest."""
        if self._tls_task is not None:
            self._tls_task.cancel()
        for server in self.servers:
            server.close()
        for one in sockets or []:
            one.close()
        app_state = self._app.app_state
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._wait_until_idle(app_state.settings.listen.shutdown_timeout_s)
        for request in list(app_state.in_flight):
            request.cancel()
        await self._wait_until_idle(_ERROR_DELIVERY_TIMEOUT_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()

    async def _wait_until_idle(self, timeout_s: float) -> None:
        """Wait until no request is in flight and the clients have read all output, or until the timeout."""
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout_s
        while (
            self._app.app_state.in_flight or self.server_state.tasks or self._has_unread_output()
        ) and not self.force_exit:
            if loop.time() >= end:
                return
            await asyncio.sleep(min(0.02, max(0.0, end - loop.time())))

    def _has_unread_output(self) -> bool:
        return any(one.transport.get_write_buffer_size() for one in self.server_state.connections)

    def _begin_shutdown(self) -> None:
        if self._stop_event.is_set():
            self.force_exit = True
            for connection in list(self.server_state.connections):
                connection.transport.abort()
        self._app.app_state.is_draining = self.should_exit = True
        self._stop_event.set()

    async def _watch_certificate(self, tls: TlsListener) -> None:
        """Load the certificate again whenever its files change."""
        previous_error = ""
        while True:
            await asyncio.sleep(tls.reload_interval_s)
            try:
                if tls.reload():
                    logger.warning("new connections get the changed certificate")
                previous_error = ""
            except ConfigError as error:
                if str(error) != previous_error:  # the files may stay invalid for long
                    logger.error("the certificate was not reloaded: %s", error)
                previous_error = str(error)

    def _schedule_reload(self) -> None:
        if self._reload_task is None or self._reload_task.done():
            self._reload_task = asyncio.get_running_loop().create_task(self._run_reload())

    async def _run_reload(self) -> None:
        try:
            await self._reload()
        except Exception as error:
            logger.error("the configuration was not reloaded: %s: %s", type(error).__name__, error)


def _build_config(app: ProxyApp, settings: ProxySettings) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=HttpServerProtocol,
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        log_level="warning",
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=int(max(1, settings.limits.keepalive_timeout_s)),
        backlog=BACKLOG,
    )
