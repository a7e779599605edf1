"""Server of the viewer on uvicorn, with callbacks for its start and its shutdown."""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import uvicorn

_SHUTDOWN_TIMEOUT_S: Final = 1


class ViewerServer(uvicorn.Server):
    """Server with callbacks for its start and its shutdown.

    Args:
        app: ASGI application.
        on_ready: called when the server accepts requests.
        on_shutdown: called in the event loop's thread when the shutdown begins.
    """

    def __init__(self, app: Any, *, on_ready: Callable[[], None], on_shutdown: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                log_level="warning",
                server_header=False,
                date_header=True,
                proxy_headers=False,
                timeout_graceful_shutdown=_SHUTDOWN_TIMEOUT_S,
                timeout_keep_alive=30,
                limit_concurrency=256,
                ws="none",
                lifespan="off",
            )
        )
        self._on_ready, self._on_shutdown = on_ready, on_shutdown

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept requests."""
        await super().startup(sockets=sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Begin the shutdown; the callback closes the event streams, for which uvicorn would wait."""
        self._on_shutdown()
        super().handle_exit(sig, frame)

    def serve_on(self, listening_socket: socket.socket) -> None:
        """Serve until SIGINT or SIGTERM."""
        # uvicorn raises the signal again after the shutdown; the command has to exit with status 0 then
        previous_handler = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            self.run(sockets=[listening_socket])
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, previous_handler)
