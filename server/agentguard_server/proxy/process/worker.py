"""Worker process: event loop, components and server on a listening socket."""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
from collections.abc import Callable
from pathlib import Path

from agentguard_server.proxy.config.loader import ConfigLoader
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.garbage_collector import tune_garbage_collector
from agentguard_server.proxy.heap import configure_heap, trim_heap_periodically
from agentguard_server.proxy.process.bootstrap import Bootstrap
from agentguard_server.proxy.process.server import ProxyServer
from agentguard_server.proxy.requests.handler import ProxyApp

logger = logging.getLogger("agentguard.proxy")


def run_worker(
    config_loader: ConfigLoader,
    settings: ProxySettings,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None],
    worker: int = 0,
    parent: int | None = None,
    folder: Path | None = None,
) -> None:
    """Serve requests until a signal arrives.

    Args:
        config_loader: loader of the configuration; SIGHUP loads it again.
        settings: the current configuration.
        listener: listening socket; closed at the end.
        on_ready: called when the worker accepts requests.
        worker: number of this process.
        parent: process ID of the supervisor; the worker stops when that process has ended. None for a single
            worker.
        folder: folder that the workers share; None for a single worker.

    Raises:
        ConfigError: a component cannot be created from its configuration.
    """
    configure_heap()
    bootstrap = Bootstrap(settings, worker=worker, folder=folder)
    bootstrap.fork_collector()
    with asyncio.Runner(loop_factory=_get_loop_factory()) as runner:
        runner.run(_serve(bootstrap, config_loader, listener, on_ready=on_ready, parent=parent))


async def _serve(
    bootstrap: Bootstrap,
    config_loader: ConfigLoader,
    listener: socket.socket,
    *,
    on_ready: Callable[[], None],
    parent: int | None,
) -> None:
    async def reload() -> None:
        await bootstrap.apply(config_loader.load())
        logger.warning("the configuration was reloaded")

    heap_trimmer = asyncio.create_task(trim_heap_periodically())
    try:
        await bootstrap.start()
        tune_garbage_collector()
        server = ProxyServer(ProxyApp(bootstrap.app_state), on_ready=on_ready, reload=reload, parent=parent)
        await server.serve(sockets=[listener])
    finally:
        heap_trimmer.cancel()
        await bootstrap.aclose()


def _get_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
