"""Small server on loopback for the client's tests: the next scripted scene answers each request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from agentguard.backends.base import BackendRequest
from agentguard.backends.http import HttpBackend
from agentguard.resilience import Deadline

OK = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 2\r\n\r\n{}"
EVENTS = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
CHUNKED = EVENTS + b"transfer-encoding: chunked\r\n\r\n"
END = b"0\r\n\r\n"


def chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@dataclass
class Heard:
    """A received request, its connection, and a method to write the answer."""

    head: bytes
    body: bytes
    connection: int
    writer: asyncio.StreamWriter
    reader: asyncio.StreamReader

    async def say(self, data: bytes) -> None:
        self.writer.write(data)
        await self.writer.drain()

    async def gone(self) -> None:
        """Wait until the client has closed the connection."""
        with contextlib.suppress(ConnectionError):
            while await self.reader.read(65536):
                pass

    def reset(self) -> None:
        made = self.writer.get_extra_info("socket")
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()


Scene = bytes | Callable[[Heard], Awaitable[None]]


@dataclass
class Server:
    scenes: list[Scene]
    port: int = 0
    heard: list[Heard] = field(default_factory=list)
    connections: int = 0
    open: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self.open += 1
        number = self.connections
        try:
            while await self._one(number, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self.open -= 1
            writer.close()

    async def _one(self, number: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        head = await reader.readuntil(b"\r\n\r\n")
        lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")]
        body = await reader.readexactly(int(lengths[0].split(b":")[1])) if lengths else b""
        heard = Heard(head, body, number, writer, reader)
        self.heard.append(heard)
        scene = self.scenes.pop(0) if self.scenes else OK
        if isinstance(scene, bytes):
            await heard.say(scene)
        else:
            await scene(heard)
        return not writer.is_closing()


@contextlib.asynccontextmanager
async def serving(*scenes: Scene, **more: Any) -> AsyncIterator[Server]:
    server = Server(list(scenes))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0, limit=1 << 26, **more)
    server.port = listening.sockets[0].getsockname()[1]
    try:
        yield server
    finally:
        listening.close()
        for _ in range(200):
            if not server.open:
                break
            await asyncio.sleep(0.005)
        left = server.open
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        assert left == 0, "the client left a connection open"


@contextlib.asynccontextmanager
async def backend(server: Server, **more: Any) -> AsyncIterator[HttpBackend]:
    made = HttpBackend(server.url, **more)
    try:
        yield made
    finally:
        await made.aclose()
        assert made.connection_count == 0


def request(target: str = "/chat/completions", **more: Any) -> BackendRequest:
    return BackendRequest(target=target, **{"body": b'{"model":"m"}', **more})


def soon(seconds: float = 30) -> Deadline:
    """Return a deadline that no busy machine misses; see `skip` for a deadline that must pass."""
    return Deadline.after(seconds)


def skip(patch: pytest.MonkeyPatch, seconds: float) -> None:
    """Advance the clock of the loop and the client: timers in the skipped interval fire.

    On a busy machine, a short deadline may pass too early. A deadline of a minute does not, and the test
    skips
    this minute when needed.
    """
    before = time.monotonic
    patch.setattr("time.monotonic", lambda: before() + seconds)


def open_sockets() -> set[str]:
    """Return the inodes of this process's sockets."""
    found = set()
    for name in os.listdir("/proc/self/fd"):
        # A thread of another test may close a descriptor between the listing and the reading.
        with contextlib.suppress(FileNotFoundError):
            found.add(os.readlink(f"/proc/self/fd/{name}"))
    return {target for target in found if target.startswith("socket:")}


def run(main: Coroutine[Any, Any, None]) -> None:
    """Run to the end in a new event loop; check that no task and no socket is left."""
    before = open_sockets()
    asyncio.run(_whole(main), debug=False)
    until = time.monotonic() + 10
    while not open_sockets() <= before:
        # Only now, since a collection takes seconds in a process with the objects of all earlier tests.
        gc.collect()
        # A background thread of another test may have a socket open at this moment.
        assert time.monotonic() < until, "a socket is left"
        time.sleep(0.01)


async def _whole(main: Coroutine[Any, Any, None]) -> None:
    try:
        await main
    finally:
        for _ in range(100):
            left = asyncio.all_tasks() - {asyncio.current_task()}
            if not left:
                break
            await asyncio.sleep(0.005)
    assert not left


async def until(condition: Callable[[], bool], seconds: float = 30) -> None:
    async with asyncio.timeout(seconds):
        while not condition():
            await asyncio.sleep(0.002)


def scenes(*given: Scene) -> Sequence[Scene]:
    return given
