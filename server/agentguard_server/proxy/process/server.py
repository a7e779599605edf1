"""uvicorn's server with what a proxy owes its clients: a reload and an end without a dropped stream."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import Awaitable, Callable, Generator
from typing import Final

import uvicorn

from agentguard_server.proxy.app import App
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.http.protocol import HttpServerProtocol

logger = logging.getLogger("agentguard.proxy")

BACKLOG: Final = 2048
_TICK_S: Final = 1.0
_LAST_WORDS_S: Final = 1.0
"""What clients have to be told, by one error each, that the proxy ends."""


class Server(uvicorn.Server):
    """One worker.

    Args:
        app: the application, with its gateway.
        began: called once it answers.
        reload: reads the configuration anew and acts on it; logs what is wrong with it.
        parent: process whose end is this one's too; None for a worker that stands alone.
    """

    def __init__(
        self,
        app: App,
        *,
        began: Callable[[], None],
        reload: Callable[[], Awaitable[None]],
        parent: int | None = None,
    ) -> None:
        super().__init__(_config(app, app.gateway.settings))
        self._app, self._began, self._reload, self._parent = app, began, reload, parent
        self._ending = asyncio.Event()
        self._reloading: asyncio.Task[None] | None = None

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Leave signals to the loop, which handles them at once; uvicorn looks ten times a second."""
        loop = asyncio.get_running_loop()
        # A worker's parent passes on what ends it; a terminal's SIGINT would come twice.
        ends = (signal.SIGTERM,) if self._parent is not None else (signal.SIGTERM, signal.SIGINT)
        reloads = getattr(signal, "SIGHUP", None)
        for one in ends:
            loop.add_signal_handler(one, self._end)
        if reloads is not None:
            loop.add_signal_handler(reloads, self._hang_up)
        try:
            yield
        finally:
            for one in ends:
                loop.remove_signal_handler(one)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to answer."""
        await super().startup(sockets=sockets)
        self._began()

    async def main_loop(self) -> None:
        """Wait for the end; a worker whose parent is gone has come to its own."""
        while not self._ending.is_set():
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_TICK_S if self._parent is not None else None):
                    await self._ending.wait()
            if self._parent is not None and os.getppid() != self._parent:
                self._end()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nothing more, let what runs end within its time, tell the rest by an error, and go."""
        for server in self.servers:
            server.close()
        for one in sockets or []:
            one.close()
        gateway = self._app.gateway
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await self._until_idle(gateway.settings.listen.grace_s)
        for exchange in list(gateway.live):
            exchange.end()
        await self._until_idle(_LAST_WORDS_S)
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        for task in list(self.server_state.tasks):
            task.cancel()

    async def _until_idle(self, seconds: float) -> None:
        """Wait until no request is under way and no answer is left to be read, or the time is up."""
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while (self._app.gateway.live or self.server_state.tasks or self._unread()) and not self.force_exit:
            if loop.time() >= end:
                return
            await asyncio.sleep(min(0.02, max(0.0, end - loop.time())))

    def _unread(self) -> bool:
        return any(one.transport.get_write_buffer_size() for one in self.server_state.connections)

    def _end(self) -> None:
        if self._ending.is_set():
            self.force_exit = True
            for connection in list(self.server_state.connections):
                connection.transport.abort()
        self._app.gateway.draining = self.should_exit = True
        self._ending.set()

    def _hang_up(self) -> None:
        if self._reloading is None or self._reloading.done():
            self._reloading = asyncio.get_running_loop().create_task(self._run_reload())

    async def _run_reload(self) -> None:
        try:
            await self._reload()
        except Exception as error:
            logger.error("the configuration was not reloaded: %s: %s", type(error).__name__, error)


def _config(app: App, settings: ProxySettings) -> uvicorn.Config:
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
        timeout_keep_alive=int(max(1, settings.limits.idle_s)),
        backlog=BACKLOG,
    )
