"""Capture in a worker: the recorder of requests, and its client of the collector.

- `CollectorClient.enqueue` never waits, so no request waits for the collector or its store.
- The client collects messages for 20 ms and sends them as one frame over a local socket.
- Without a connection, messages wait in a queue. Messages beyond its limit in bytes are dropped.
- Messages that a collector had not handled before it died are dropped. Dropped messages are counted.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import msgspec

from agentguard.intercept.guarded_apis import GUARDED_APIS
from agentguard.recover.plan import Recovery
from agentguard.recover.recovery_rows import encode_recovery
from agentguard.store.db.rows import AcceptanceRow
from agentguard.trajectory.safe_json import dumps
from agentguard_server.proxy.capture.collector_supervisor import CollectorSupervisor, build_socket_path
from agentguard_server.proxy.capture.protocol import (
    HEADER_BYTES,
    AcceptanceEvent,
    CapturedExchange,
    CollectorMessage,
    CollectorStatus,
    RecoveryEvent,
    RunEvent,
    decode_status,
    encode_frame,
    parse_frame_length,
)
from agentguard_server.proxy.guard.inline_guarded_request import parse_run_id
from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions
from agentguard_server.proxy.http.headers import is_retry

if TYPE_CHECKING:
    from agentguard_server.proxy.hooks import CompletedRequest

_BATCH_INTERVAL_S: Final = 0.02
_BATCH_BYTES: Final = 262_144
_INITIAL_BACKOFF_S: Final = 0.05
_MAX_BACKOFF_S: Final = 2.0
_CLOSE_TIMEOUT_S: Final = 2.0
_MESSAGE_OVERHEAD_BYTES: Final = 128
"""Size of a message in the queue beyond its contents."""


class CaptureRecorder:
    """Request observer for one event loop that captures requests; see `hooks.RequestObserver`.

    Args:
        options: section ``capture`` of the configuration.
        guard: section ``guard``: policy, run correlation and idle timeout.
        worker: number of this process; worker 0 starts and restarts the collector.
        socket_path_override: path of the collector's socket; by default it is derived from ``parent``.
        parent: process ID of the workers' parent, from which all workers derive the same path.
        run_name_suffix: suffix of the IDs of named runs that no guard records.

    Attributes:
        client: client of the collector.
        skipped_requests: number of requests with a body above the limit; they are not captured.
        truncated_responses: number of responses above the limit; only their requests are captured.

    Raises:
        ConfigError: this system does not support Unix domain sockets.
    """

    def __init__(
        self,
        options: CaptureOptions,
        guard: GuardOptions,
        *,
        worker: int = 0,
        socket_path_override: str | None = None,
        parent: int | None = None,
        run_name_suffix: str = "",
    ) -> None:
        self.options = options
        socket_path = socket_path_override or build_socket_path(parent)
        self.client = CollectorClient(socket_path, max_queue_bytes=options.max_queue_bytes)
        self._supervisor = (
            CollectorSupervisor(socket_path, options, guard, run_name_suffix=run_name_suffix)
            if worker == 0
            else None
        )
        self.skipped_requests = self.truncated_responses = 0

    @property
    def max_captured_bytes(self) -> int:
        """Return the number of response bytes that `record` needs: one more than the limit."""
        return self.options.max_body_bytes + 1

    def fork_collector(self) -> None:
        """Fork the collector in worker 0; see `CollectorSupervisor.fork`."""
        if self._supervisor is not None:
            self._supervisor.fork()

    def start(self) -> None:
        """Start the collector in worker 0. Raises ConfigError if it cannot be started."""
        if self._supervisor is not None:
            self._supervisor.start()

    async def aclose(self) -> None:
        """Send the queued messages and wait until the collector has written them."""
        await self.client.aclose()
        if self._supervisor is not None:
            await self._supervisor.aclose()

    def record(self, completed: CompletedRequest) -> None:
        """Capture an unguarded request of a supported API; see `RequestObserver.record`."""
        request, response = completed.request, completed.response_body
        if completed.guard_outcome is not None or request.api not in GUARDED_APIS:
            return  # the inline guard records its own runs
        if len(request.body) > self.options.max_body_bytes:
            self.skipped_requests += 1
            return
        if len(response) > self.options.max_body_bytes:
            self.truncated_responses += 1
            response = b""
        elif completed.status != 200 or not completed.is_complete:
            response = b""
        ended_at = time.time()
        exchange = CapturedExchange(
            tenant=request.tenant,
            run_id=parse_run_id(request.run_id) if request.run_id else "",
            api=request.api,
            is_retry=is_retry(request.headers),
            request_body=request.body,
            response=response,
            started_at=ended_at - completed.duration_s,
            ended_at=ended_at,
        )
        self.client.enqueue(exchange, len(request.body) + len(response))

    def status(self) -> dict[str, Any]:
        """Return counters of accepted, pending and lost messages, and the status of the collector.

        All workers share one collector. Only the worker that starts it counts the lost rows.
        """
        client, supervisor = self.client, self._supervisor
        return {
            "taken": client.accepted,
            "pending": client.pending,
            "lost": client.dropped,
            "lost_rows": 0 if supervisor is None else client.dropped_rows + client.collector_status.lost,
            "too_long": self.skipped_requests,
            "cut": self.truncated_responses,
            "restarts": 0 if supervisor is None else supervisor.restarts,
            "collector": msgspec.structs.asdict(client.collector_status),
        }


class CollectorClient:
    """Connection of a worker to the collector. Used in one event loop; `enqueue` accepts other threads.

    Args:
        path: path of the collector's socket.
        max_queue_bytes: upper bound on the size of queued messages.

    Attributes:
        accepted: number of messages passed to `enqueue`, including dropped ones.
        dropped: number of dropped messages.
        dropped_rows: number of rows that earlier collectors lost or had not written when they died.
        disconnects: number of lost connections.
        collector_status: latest status of the collector.
    """

    def __init__(self, path: str, *, max_queue_bytes: int) -> None:
        self._path, self._max_queue_bytes = path, max_queue_bytes
        self._queue: deque[tuple[CollectorMessage, int]] = deque()
        self._queued_bytes = 0
        self._socket: socket.socket | None = None
        self._send_buffer = memoryview(b"")
        self._send_buffer_messages = self._sent_messages = 0
        self._receive_buffer = bytearray()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._backoff_s = _INITIAL_BACKOFF_S
        self.accepted = self.dropped = self.dropped_rows = self.disconnects = 0
        self.collector_status = CollectorStatus()

    @property
    def pending(self) -> int:
        """Return the number of messages that the collector has not handled, queued ones included."""
        return (
            len(self._queue)
            + self._send_buffer_messages
            + self._sent_messages
            - self.collector_status.handled
        )

    def enqueue(self, message: CollectorMessage, size: int) -> bool:
        """Queue a message of ``size`` bytes, from any thread; return False if the message is dropped."""
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:  # a thread: a run can end outside the loop
            if self._loop is None or self._loop.is_closed():
                self.accepted += 1
                self.dropped += 1
                return False
            self._loop.call_soon_threadsafe(self.enqueue, message, size)
            return True
        self.accepted += 1
        size += _MESSAGE_OVERHEAD_BYTES
        if self._queued_bytes + size > self._max_queue_bytes:
            self.dropped += 1
            return False
        self._queue.append((message, size))
        self._queued_bytes += size
        if self._timer is None:
            self._timer = self._loop.call_later(_BATCH_INTERVAL_S, self._flush)
        return True

    def open_run_log(self, tenant: str) -> CollectorRunLog:
        """Return a sink for the events of one run."""
        return CollectorRunLog(self, tenant)

    def record_recovery(self, tenant: str, recovery: Recovery) -> None:
        """Queue a recovery."""
        data = dumps(encode_recovery(recovery))
        self.enqueue(RecoveryEvent(tenant, data), len(data))

    def record_acceptance(self, tenant: str, row: AcceptanceRow) -> None:
        """Queue a verdict of the acceptance test."""
        data = dumps(row.data)
        self.enqueue(AcceptanceEvent(tenant, row.run_id, row.attempt, row.accepted, data), len(data))

    async def aclose(self) -> None:
        """Wait up to 2 s until the collector has handled all messages, then close the connection."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while self.pending:
                    await asyncio.sleep(_BATCH_INTERVAL_S)
        self.close()

    def close(self) -> None:
        """Close the connection; queued messages are dropped and counted."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._close_socket()
        self.dropped += len(self._queue)
        self._queue.clear()
        self._queued_bytes = 0

    def _flush(self) -> None:
        self._timer = None
        if self._socket is None and not self._connect():
            self._schedule_reconnect()
            return
        assert self._socket is not None  # for mypy: `_connect` sets it
        try:
            while self._send_buffer or self._queue:
                if not self._send_buffer:
                    self._fill_send_buffer()
                self._send_buffer = self._send_buffer[self._socket.send(self._send_buffer) :]
                if not self._send_buffer:
                    self._sent_messages += self._send_buffer_messages
                    self._send_buffer_messages = 0
        except BlockingIOError:
            asyncio.get_running_loop().add_writer(self._socket, self._on_writable)
        except OSError:
            self._on_disconnect()

    def _fill_send_buffer(self) -> None:
        """Move the next messages from the queue into one frame."""
        batch: list[CollectorMessage] = []
        batch_bytes = 0
        while self._queue and (not batch or batch_bytes + self._queue[0][1] <= _BATCH_BYTES):
            message, size = self._queue.popleft()
            batch.append(message)
            batch_bytes += size
        self._queued_bytes -= batch_bytes
        self._send_buffer, self._send_buffer_messages = memoryview(encode_frame(batch)), len(batch)

    def _on_writable(self) -> None:
        if self._socket is not None:
            asyncio.get_running_loop().remove_writer(self._socket)
        self._flush()

    def _connect(self) -> bool:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        try:
            connection.connect(self._path)
        except OSError:  # also raised if the listen backlog is full
            connection.close()
            return False
        self._socket, self._sent_messages, self.collector_status = connection, 0, CollectorStatus()
        self._receive_buffer.clear()
        self._backoff_s = _INITIAL_BACKOFF_S
        asyncio.get_running_loop().add_reader(connection, self._on_readable)
        return True

    def _on_readable(self) -> None:
        assert self._socket is not None  # for mypy: the reader exists only with a socket
        try:
            data = self._socket.recv(65_536)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._on_disconnect()
            return
        self._receive_buffer += data
        while len(self._receive_buffer) >= HEADER_BYTES and len(self._receive_buffer) >= (
            end := HEADER_BYTES + parse_frame_length(bytes(self._receive_buffer[:HEADER_BYTES]))
        ):
            self.collector_status = decode_status(bytes(self._receive_buffer[HEADER_BYTES:end]))
            del self._receive_buffer[:end]

    def _on_disconnect(self) -> None:
        """Count the messages and rows that the lost collector had not handled or written; reconnect."""
        self.dropped_rows += self.collector_status.pending + self.collector_status.lost
        self.disconnects += 1
        self._close_socket()
        if self._queue:
            self._schedule_reconnect()

    def _close_socket(self) -> None:
        if self._socket is None:
            return
        loop = asyncio.get_running_loop()
        loop.remove_reader(self._socket)
        loop.remove_writer(self._socket)
        self._socket.close()
        self.dropped += self._send_buffer_messages + self._sent_messages - self.collector_status.handled
        self._socket, self._send_buffer = None, memoryview(b"")
        self._send_buffer_messages = self._sent_messages = 0
        self.collector_status = CollectorStatus(error=self.collector_status.error)

    def _schedule_reconnect(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._backoff_s, self._flush)
            self._backoff_s = min(self._backoff_s * 2, _MAX_BACKOFF_S)


class CollectorRunLog:
    """Sink for the events of one run; an `agentguard.trajectory.event_log.recorder.EventSink`.

    A restarted collector does not know the run, so the sink sends the header of the run again.
    """

    __slots__ = ("_client", "_header", "_known_disconnects", "_run_id", "_tenant")

    def __init__(self, client: CollectorClient, tenant: str) -> None:
        self._client, self._tenant = client, tenant
        self._run_id, self._known_disconnects = "", 0
        self._header: Mapping[str, Any] = {}  # shares texts and tools with the session; its JSON would not

    def append(self, event: Mapping[str, Any]) -> None:
        """Queue an event. Never waits. Raises FormatError if the event is not JSON data."""
        data = dumps(event)
        is_new = event["event"] == "header"
        if is_new:
            self._run_id, self._header = str(event["id"]), event
        elif self._known_disconnects < self._client.disconnects:
            self._enqueue(dumps(self._header), is_new=False)
        self._known_disconnects = self._client.disconnects
        self._enqueue(data, is_new=is_new)

    def close(self) -> None:
        """Do nothing: the sink has no resources."""

    def _enqueue(self, data: bytes, *, is_new: bool) -> None:
        self._client.enqueue(RunEvent(self._tenant, self._run_id, is_new, data), len(data))
