"""Serves an application on a socket of its own, and ends at once where pages still listen."""

from __future__ import annotations

import errno
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any, Final

import uvicorn

from agentguard.errors import ConfigError

_SHUTDOWN_TIMEOUT_S: Final = 1
_BACKLOG: Final = 128


def bind_socket(host: str, port: int, *, name: str = "view", backlog: int = _BACKLOG) -> socket.socket:
    """A socket that listens.

    Args:
        host: name or address, IPv4 or IPv6.
        port: 0 lets the system choose.
        name: of the command, for messages.
        backlog: connections that may wait to be accepted.

    Raises:
        ConfigError: the port is taken or needs rights, or there is no such address on this machine.
    """
    plain = host.strip("[]")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            plain, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        made = socket.socket(family, kind, protocol)
    except OSError as error:
        raise ConfigError(f"{name}: {host} is not an address of this machine ({error.strerror})") from None
    try:
        made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        made.bind(address)
        made.listen(backlog)
    except OSError as error:
        made.close()
        raise ConfigError(f"{name}: {_describe_bind_error(error, host, port)}") from None
    return made


def build_url(listening: socket.socket, host: str) -> str:
    """The URL of a listening socket, as one may open it on this machine or, off loopback, on another."""
    port = listening.getsockname()[1]
    plain = host.strip("[]")
    if plain in ("0.0.0.0", "::"):  # noqa: S104  what one may listen on, nobody can open
        plain = socket.gethostname()
    return f"http://[{plain}]:{port}" if ":" in plain else f"http://{plain}:{port}"


class ViewerServer(uvicorn.Server):
    """Tells when it listens, and lets pages that listen go when it is to end.

    Args:
        app: an ASGI application.
        began: called once it answers.
        ending: called, in the loop's thread, when it is to end.
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
        """Begin to answer."""
        await super().startup(sockets=sockets)
        self._on_ready()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """End: what listens is told to go, so that nobody waits for it."""
        self._on_shutdown()
        super().handle_exit(sig, frame)

    def serve_on(self, listening: socket.socket) -> None:
        """Answer until a signal ends it; returns then."""
        # Signals that ended it are raised again by uvicorn: they shall end the command without a noise.
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        try:
            self.run(sockets=[listening])
        except KeyboardInterrupt:
            pass
        finally:
            signal.signal(signal.SIGTERM, before)


def _describe_bind_error(error: OSError, host: str, port: int) -> str:
    if error.errno == errno.EADDRINUSE:
        return f"port {port} is taken: give another with --port, or --port 0 for a free one"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"port {port} needs rights that this user does not have: give one above 1023 with --port"
    return f"{host} is not an address of this machine ({error.strerror})"
