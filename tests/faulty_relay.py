"""TCP relay that cuts an answer after some events, as a network failure or a dying process does."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from urllib.parse import urlsplit


class Relay:
    """Relay of bytes between clients and a server; `cut` applies to the next answer.

    Attributes:
        cuts: number of cut answers.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._to = (parts.hostname or "127.0.0.1", parts.port or 80)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}{parts.path}"
        self._after: int | None = None
        self.cuts = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def cut(self, *, after: int) -> None:
        """Reset the connection of the next answer after the given number of events."""
        self._after = after

    def close(self) -> None:
        """Close all connections."""
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        for one in self._open:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listening.accept()
                server = socket.create_connection(self._to, 10)
                server.settimeout(None)
                self._open += [client, server]
                for pump in (self._asked, self._answered):
                    self._threads.append(threading.Thread(target=pump, args=(client, server), daemon=True))
                    self._threads[-1].start()

    def _asked(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := client.recv(65_536):
                server.sendall(data)
            server.shutdown(socket.SHUT_WR)

    def _answered(self, client: socket.socket, server: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := server.recv(65_536):
                places = [at for at in range(len(data)) if data.startswith(b"\n\n", at)]
                if self._after is not None and len(places) >= self._after:
                    client.sendall(data[: places[self._after - 1] + 2])
                    self._after, self.cuts = None, self.cuts + 1
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    break
                if self._after is not None:
                    self._after -= len(places)
                client.sendall(data)
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        client.close()
        server.close()


@contextlib.contextmanager
def cutting(url: str) -> Iterator[Relay]:
    """Run a relay in front of a server."""
    relay = Relay(url)
    try:
        yield relay
    finally:
        relay.close()
