"""A worker's end of the socket to the keeper: what is put here never waits, and what has no room is lost.

Messages are gathered for a few milliseconds and sent together. Where the keeper is away they wait up to a
limit in bytes; beyond it they are counted as lost, and so is what a keeper that died had not taken in.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections import deque
from collections.abc import Mapping
from typing import Any, Final

from agentguard.recover.persistence import encode_recovery
from agentguard.recover.strategy import Recovery
from agentguard.trajectory._safe_json import dumps
from agentguard_server.proxy.capture.protocol import (
    HEAD,
    CollectorStatus,
    Message,
    RecoveryEvent,
    RunEvent,
    frame,
    length_of,
    report_of,
)

_GATHER_S: Final = 0.02
_BATCH_BYTES: Final = 262_144
_FIRST_WAIT_S: Final = 0.05
_LONGEST_WAIT_S: Final = 2.0
_CLOSE_S: Final = 2.0
_WEIGHT: Final = 128
"""Bytes that a message weighs beside its contents."""


class CollectorClient:
    """Lives in one event loop; messages may be put from other threads.

    Args:
        path: of the keeper's socket.
        queue_bytes: that may wait.

    Attributes:
        put_in: messages that were handed over, with those that were given up.
        lost: messages that were given up.
        lost_rows: rows that keepers which died had taken in and not written.
        broken: times that a keeper was lost.
        report: what the keeper said last.
    """

    def __init__(self, path: str, *, queue_bytes: int) -> None:
        self._path, self._room = path, queue_bytes
        self._queue: deque[tuple[Message, int]] = deque()
        self._waiting = 0
        self._socket: socket.socket | None = None
        self._out = memoryview(b"")
        self._in_out = self._sent = 0
        self._in = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._wait = _FIRST_WAIT_S
        self.put_in = self.lost = self.lost_rows = self.broken = 0
        self.report = CollectorStatus()

    @property
    def pending(self) -> int:
        """Messages that wait here, or that the keeper has not taken in."""
        return len(self._queue) + self._in_out + self._sent - self.report.handled

    def put(self, message: Message, weight: int) -> bool:
        """Take a message of ``weight`` bytes, from any thread; False if it has no room and is lost."""
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:  # a thread in which a run ends, since a judge is asked
            if self._loop is None or self._loop.is_closed():
                self.put_in += 1
                self.lost += 1
                return False
            self._loop.call_soon_threadsafe(self.put, message, weight)
            return True
        self.put_in += 1
        weight += _WEIGHT
        if self._waiting + weight > self._room:
            self.lost += 1
            return False
        self._queue.append((message, weight))
        self._waiting += weight
        if self._timer is None:
            self._timer = self._loop.call_later(_GATHER_S, self._flush)
        return True

    def run(self, tenant: str) -> RunLog:
        """Takes the events of one run."""
        return RunLog(self, tenant)

    def recovery(self, tenant: str, recovery: Recovery) -> None:
        """Takes a recovery."""
        data = dumps(encode_recovery(recovery))
        self.put(RecoveryEvent(tenant, data), len(data))

    async def aclose(self) -> None:
        """Let the keeper take in what waits, for some seconds; the rest is lost and counted."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_S):
                while self.pending:
                    await asyncio.sleep(_GATHER_S)
        self.close()

    def close(self) -> None:
        """Give up what waits; it is lost and counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._forget()
        self.lost += len(self._queue)
        self._queue.clear()
        self._waiting = 0

    def _flush(self) -> None:
        self._timer = None
        if self._socket is None and not self._connect():
            self._again()
            return
        assert self._socket is not None  # for mypy: it was connected
        try:
            while self._out or self._queue:
                if not self._out:
                    self._fill()
                self._out = self._out[self._socket.send(self._out) :]
                if not self._out:
                    self._sent, self._in_out = self._sent + self._in_out, 0
        except BlockingIOError:
            asyncio.get_running_loop().add_writer(self._socket, self._writable)
        except OSError:
            self._broken()

    def _fill(self) -> None:
        """Take the next messages out of the queue, as one frame."""
        taken: list[Message] = []
        size = 0
        while self._queue and (not taken or size + self._queue[0][1] <= _BATCH_BYTES):
            message, weight = self._queue.popleft()
            taken.append(message)
            size += weight
        self._waiting -= size
        self._out, self._in_out = memoryview(frame(taken)), len(taken)

    def _writable(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_writer(self._socket)
        self._flush()

    def _connect(self) -> bool:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        made.setblocking(False)
        try:
            made.connect(self._path)
        except OSError:  # a full backlog, too
            made.close()
            return False
        self._socket, self._sent, self.report = made, 0, CollectorStatus()
        self._in.clear()
        self._wait = _FIRST_WAIT_S
        asyncio.get_running_loop().add_reader(made, self._readable)
        return True

    def _readable(self) -> None:
        assert self._socket is not None  # for mypy: it is read from
        try:
            data = self._socket.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._broken()
            return
        self._in += data
        while len(self._in) >= HEAD and len(self._in) >= (end := HEAD + length_of(bytes(self._in[:HEAD]))):
            self.report = report_of(bytes(self._in[HEAD:end]))
            del self._in[:end]

    def _broken(self) -> None:
        """The keeper is gone: what it did not take in, or write, is lost."""
        self.lost_rows += self.report.pending
        self.broken += 1
        self._forget()
        if self._queue:
            self._again()

    def _forget(self) -> None:
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.remove_writer(self._socket)
        self._socket.close()
        self.lost += self._in_out + self._sent - self.report.handled
        self._socket, self._out, self._in_out, self._sent = None, memoryview(b""), 0, 0
        self.report = CollectorStatus(error=self.report.error)

    def _again(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._wait, self._flush)
            self._wait = min(self._wait * 2, _LONGEST_WAIT_S)


class RunLog:
    """Takes the events of one run; an `agentguard.trajectory.event_log.recorder.EventSink`.

    A keeper that was started anew knows nothing of the run: it is told again how the run began.
    """

    __slots__ = ("_head", "_link", "_run", "_tenant", "_told")

    def __init__(self, link: CollectorClient, tenant: str) -> None:
        self._link, self._tenant = link, tenant
        self._run, self._head, self._told = "", b"", 0

    def append(self, event: Mapping[str, Any]) -> None:
        """Take an event. Never waits; raises FormatError where it holds what is no JSON data."""
        data = dumps(event)
        fresh = event["event"] == "header"
        if fresh:
            self._run, self._head = str(event["id"]), data
        elif self._told < self._link.broken:
            self._put(self._head, fresh=False)
        self._told = self._link.broken
        self._put(data, fresh=fresh)

    def close(self) -> None:
        """Nothing is held here."""

    def _put(self, data: bytes, *, fresh: bool) -> None:
        self._link.put(RunEvent(self._tenant, self._run, fresh, data), len(data))
