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

from agentguard_server.proxy.app import App
from agentguard_server.proxy.config.loader import ConfigLoader
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.process.bootstrap import Bootstrap
from agentguard_server.proxy.process.server import Server

logger = logging.getLogger("agentguard.proxy")

_YOUNG: Final = 20_000
"""Objects made since the last look: some tens of requests. Few of them are garbage that only a look finds."""


def run_worker(
    source: ConfigLoader,
    settings: ProxySettings,
    listening: socket.socket,
    *,
    began: Callable[[], None],
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
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        assembly = Bootstrap(settings, worker=worker, folder=folder)
        runner.run(_work(assembly, source, listening, began=began, parent=parent))


async def _work(
    assembly: Bootstrap,
    source: ConfigLoader,
    listening: socket.socket,
    *,
    began: Callable[[], None],
    parent: int | None,
) -> None:
    async def reload() -> None:
        await assembly.apply(source.read())
        logger.warning("the configuration was reloaded")

    try:
        await assembly.start()
        _spare_collections()
        server = Server(App(assembly.gateway), began=began, reload=reload, parent=parent)
        await server.serve(sockets=[listening])
    finally:
        await assembly.aclose()


def _spare_collections() -> None:
    """Look for garbage less often, and never at what the start has made: it is there to stay."""
    gc.collect()
    gc.freeze()
    gc.enable()  # a start may have gone without
    gc.set_threshold(_YOUNG, 10, 5)  # a million objects that refer to each other wait at most


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    if sys.platform == "win32":
        return None
    import uvloop

    return uvloop.new_event_loop
