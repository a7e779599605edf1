"""One worker from its start to its end: a loop, a gateway and a server on a socket that listens."""

from __future__ import annotations

import asyncio
import gc
import logging
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from agentguard_server.proxy.app import ProxyApp
from agentguard_server.proxy.config.loader import ConfigLoader
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.process.bootstrap import Bootstrap
from agentguard_server.proxy.process.server import ProxyServer

logger = logging.getLogger("agentguard.proxy")

_GC_THRESHOLD: Final = 20_000
"""Objects made since the last look: some tens of requests. Few of them are garbage that only a look finds."""


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
    """Answer until a signal ends it; returns then.

    Args:
        source: is read anew on SIGHUP.
        settings: what it holds now.
        listening: a socket that listens; closed at the end.
        began: called once it answers.
        worker: number of this process.
        parent: process whose end is this one's, too.
        folder: where workers tell each other of themselves; None if there is one.

    Raises:
        ConfigError: something that was configured can't be made.
    """
    with asyncio.Runner(loop_factory=_get_loop_factory()) as runner:
        assembly = Bootstrap(settings, worker=worker, folder=folder)
        runner.run(_serve(assembly, config_loader, listener, on_ready=on_ready, parent=parent))


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

    try:
        await bootstrap.start()
        _tune_garbage_collector()
        server = ProxyServer(ProxyApp(bootstrap.app_state), on_ready=on_ready, reload=reload, parent=parent)
        await server.serve(sockets=[listener])
    finally:
        await bootstrap.aclose()


def _tune_garbage_collector() -> None:
    """Look for garbage less often, and never at what the start has made: it is there to stay."""
    gc.collect()
    gc.freeze()
    gc.enable()  # a start may have gone without
    gc.set_threshold(_GC_THRESHOLD, 10, 5)  # a million objects that refer to each other wait at most


def _get_loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
