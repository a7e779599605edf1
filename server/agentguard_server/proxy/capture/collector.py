"""Collector: process that receives captured requests from the workers and writes runs to the store.

Worker 0 starts it (`agentguard_server.proxy.capture.collector_supervisor`). The collector reads its
configuration from standard input and ends when standard input is closed. Workers never wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from agentguard.errors import AgentGuardError
from agentguard.guard import Guard
from agentguard.store.db.database_address import resolve_address
from agentguard.store.options import StoreOptions
from agentguard.store.store import Store
from agentguard_server.proxy.capture.bundle_writer import RunBundleWriter
from agentguard_server.proxy.capture.correlator import RunCorrelator
from agentguard_server.proxy.capture.frame_queue import FrameQueue
from agentguard_server.proxy.capture.protocol import (
    HEADER_BYTES,
    CapturedExchange,
    CollectorConfig,
    CollectorMessage,
    CollectorStatus,
    RecoveryEvent,
    RunEvent,
    decode_messages,
    encode_frame,
    parse_frame_length,
)
from agentguard_server.proxy.capture.run_writer import RunWriter
from agentguard_server.proxy.garbage_collector import tune_garbage_collector
from agentguard_server.proxy.guard.options import CaptureOptions
from agentguard_server.proxy.heap import configure_heap, trim_heap_periodically

logger = logging.getLogger("agentguard.collector")

_SWEEPS_PER_TIMEOUT: Final = 4
_STATUS_INTERVAL_S: Final = 0.25
_NICENESS: Final = 10
_DRAIN_TIMEOUT_S: Final = 2.0
_DRAIN_POLL_S: Final = 0.005
_READ_LIMIT_BYTES: Final = 1024 * 1024
_PART_MESSAGES: Final = 16
_PART_BYTES: Final = 65_536
_TURNS_TO_RECEIVE: Final = 3
"""Iterations of the event loop from data in a socket to its frame in the queue."""

_CLOSE_TIMEOUT_S: Final = 5.0
_MAX_LOGGED_FAILURES: Final = 100
GC_THRESHOLD: Final = 100_000
"""New objects between two collections. The rows that wait for a commit have 30,000."""


class CaptureCollector:
    """Server of the collector process.

    Args:
        config: configuration of the collector.
        store: store for the runs.
    """

    def __init__(self, config: CollectorConfig, store: Store) -> None:
        self._config, self._store = config, store
        guard = Guard.from_policy(config.guard.load_policy())
        diagnosing = guard if config.capture.diagnose else None
        bundles = (
            None
            if config.capture.bundles is None
            else RunBundleWriter(Path(config.capture.bundles_dir), config.capture.bundles, guard)
        )
        self.run_writer = RunWriter(store, diagnosing, redact=config.capture.redact, bundles=bundles)
        self.correlator = RunCorrelator(
            guard,
            self.run_writer,
            config.guard,
            bundles,
            run_name_suffix=config.run_name_suffix,
        )
        self._failed_messages = 0
        self._connection_tasks: set[asyncio.Task[None]] = set()
        self._handled_counts: dict[asyncio.StreamWriter, int] = {}
        self._frames: FrameQueue[asyncio.StreamWriter] = FrameQueue(config.capture.max_queue_bytes)
        self._has_frames, self._has_room = asyncio.Event(), asyncio.Event()
        self._has_room.set()
        self._is_handling = False

    async def run(self, stop_event: asyncio.Event) -> None:
        """Serve connections until the event is set."""
        Path(self._config.socket_path).unlink(missing_ok=True)
        server = await asyncio.start_unix_server(
            self._serve_connection, self._config.socket_path, backlog=256, limit=_READ_LIMIT_BYTES
        )
        Path(self._config.socket_path).chmod(0o600)
        beside = [
            asyncio.create_task(task)
            for task in (self._sweep_idle_runs(), self._publish_status(), trim_heap_periodically())
        ]
        handler = asyncio.create_task(self._handle_frames())
        stopping = asyncio.create_task(stop_event.wait())
        try:
            await asyncio.wait((handler, stopping), return_when=asyncio.FIRST_COMPLETED)
            if handler.done():
                handler.result()  # raises: the process ends, and its supervisor starts another
            server.close()
            if self._connection_tasks:  # the workers have disconnected, but sent data may be unread
                await asyncio.wait(self._connection_tasks, timeout=_DRAIN_TIMEOUT_S)
            await self._finish_frames()
        finally:
            server.close()
            for task in (handler, stopping, *beside, *self._connection_tasks):
                task.cancel()
            self.close()

    def close(self) -> None:
        """End all runs and finish the queued diagnoses."""
        with self.run_writer.unit_of_work():
            self.correlator.end_idle(-1.0)
        self.run_writer.close()

    def handle_frame(self, messages: Sequence[CollectorMessage]) -> None:
        """Process messages and queue their rows as one unit, so that the store's thread wakes up once."""
        with self.run_writer.unit_of_work():
            for message in messages:
                self.handle_message(message)

    def handle_message(self, message: CollectorMessage) -> None:
        """Process one message. Never raises."""
        try:
            match message:
                case CapturedExchange():
                    self.correlator.process(message)
                case RunEvent():
                    self.run_writer.record_event(message)
                case RecoveryEvent():
                    self.run_writer.record_recovery(message)
                case _:
                    self.run_writer.record_acceptance(message)
        except Exception as error:  # one message must not prevent the next
            self._failed_messages += 1
            if self._failed_messages <= _MAX_LOGGED_FAILURES:
                logger.warning("captured requests could not be stored: %s", type(error).__name__)

    def build_status(self, handled: int) -> CollectorStatus:
        """Return the status for a worker."""
        health = self._store.get_health()
        return CollectorStatus(
            handled=handled,
            failed=self._failed_messages + self.run_writer.failed_runs,
            written=health.written,
            pending=health.pending,
            lost=health.lost,
            refused=health.refused,
            runs=self.run_writer.ended_runs,
            diagnosed=self.run_writer.diagnosed_runs,
            undiagnosed=self.run_writer.undiagnosed_runs,
            error="" if health.ok else health.last_error,
        )

    async def _serve_connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # for mypy: asyncio calls this in a task
        self._connection_tasks.add(task)
        self._handled_counts[writer] = 0
        try:
            while True:
                length = parse_frame_length(await reader.readexactly(HEADER_BYTES))
                frame = await reader.readexactly(length)
                await self._has_room.wait()
                self._frames.put(writer, frame)
                self._has_frames.set()
                if self._frames.is_full:
                    self._has_room.clear()
        except (asyncio.IncompleteReadError, OSError):
            pass  # the worker has disconnected
        except ValueError as error:
            logger.error("a worker sent an invalid frame: %s", type(error).__name__)
        finally:
            self._connection_tasks.discard(task)
            del self._handled_counts[writer]
            writer.close()

    async def _handle_frames(self) -> None:
        """Handle the queued frames one after the other.

        A worker that cannot send drops requests. If frames wait, the collector therefore handles a few
        messages, and then reads the sockets.
        """
        while True:
            await self._has_frames.wait()
            self._is_handling = True
            writer, frame = self._frames.pop()
            if not self._frames.is_full:
                self._has_room.set()
            try:
                messages = decode_messages(frame)
            except ValueError as error:
                logger.error("a worker sent an invalid frame: %s", type(error).__name__)
                writer.close()
                messages = []
            part = _choose_part_size(len(messages), len(frame)) if self._frames else max(1, len(messages))
            for start in range(0, len(messages), part):
                self.handle_frame(messages[start : start + part])
                for _ in range(_TURNS_TO_RECEIVE):
                    await asyncio.sleep(0)
            if writer in self._handled_counts:  # the worker is still connected
                self._handled_counts[writer] += len(messages)
                writer.write(encode_frame(self.build_status(self._handled_counts[writer])))
            self._is_handling = False
            if not self._frames:
                self._has_frames.clear()

    async def _finish_frames(self) -> None:
        """Wait until all frames are handled, for a few seconds."""
        deadline = time.monotonic() + _DRAIN_TIMEOUT_S
        while (self._frames or self._is_handling) and time.monotonic() < deadline:
            await asyncio.sleep(_DRAIN_POLL_S)
        if self._frames:
            logger.error("the collector ends before it has handled %d frames", len(self._frames))

    async def _sweep_idle_runs(self) -> None:
        while True:
            await asyncio.sleep(self._config.guard.idle_timeout_s / _SWEEPS_PER_TIMEOUT)
            with self.run_writer.unit_of_work():
                self.correlator.end_idle()

    async def _publish_status(self) -> None:
        """Send the status to all workers whenever it has changed."""
        before = self.build_status(0)
        while True:
            await asyncio.sleep(_STATUS_INTERVAL_S)
            now = self.build_status(0)
            if now != before:
                before = now
                for writer, handled in self._handled_counts.items():
                    writer.write(encode_frame(self.build_status(handled)))


def _choose_part_size(message_count: int, frame_bytes: int) -> int:
    """Return the number of messages to handle before the next data is received."""
    return max(1, min(_PART_MESSAGES, message_count * _PART_BYTES // max(1, frame_bytes)))


async def _run_collector(config: CollectorConfig, store: Store) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_reader(sys.stdin.fileno(), _watch_parent, ended)
    await CaptureCollector(config, store).run(ended)


def _watch_parent(stop_event: asyncio.Event) -> None:
    """Set the event when the parent closes its end of standard input; it sends no more data."""
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        stop_event.set()


def main() -> int:
    """Run the process; return its exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s", force=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker that started it ends it
    with contextlib.suppress(OSError):
        os.nice(_NICENESS)
    configure_heap()
    try:
        line = _read_config_line()
        if not line:
            return 0
        config = CollectorConfig.model_validate_json(line)
        _create_tables(config.capture.store)
        store = open_store(config.capture)
    except AgentGuardError as error:
        logger.error("the collector cannot start: %s", error)
        return 2
    tune_garbage_collector(GC_THRESHOLD)
    try:
        asyncio.run(_run_collector(config, store))
    finally:
        store.close(_CLOSE_TIMEOUT_S)
    return 0


def open_store(options: CaptureOptions) -> Store:
    """Open the store of a collector; the database may be down. Raises ConfigError and MissingExtra."""
    delay = StoreOptions(max_commit_delay_s=options.max_commit_delay_s)
    return Store.open(options.store, connect=False, options=delay)


def _create_tables(url: str | None) -> None:
    """Create the tables of a new SQLite file in a child process.

    The migration library takes 10 MB, which the system gets back when the child ends. Call this before the
    process has threads. If the child fails, the writer of the store creates the tables later.
    """
    path = resolve_address(url).path
    if path is None or path.exists():
        return
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        Store.open(url).close()
    except AgentGuardError:
        pass  # the store's writer reports it
    finally:
        os._exit(0)


def _read_config_line() -> bytes:
    """Read the configuration, one line; return nothing if the pipe is closed first."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 65_536)
        if not piece:
            return b""
        line += piece
    return bytes(line)


if __name__ == "__main__":
    raise SystemExit(main())
