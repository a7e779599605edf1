"""The keeper: one process beside the workers, that looks at what has passed and writes it to the store.

It is started by a worker (`agentguard_server.proxy.capture.collector_supervisor`), is told on its standard input what to
do, and ends when that is closed. What is slow here slows no request: workers never wait for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Final

from agentguard.errors import AgentGuardError
from agentguard.guard import Guard
from agentguard.store.store import Store
from agentguard_server.proxy.capture.collector_config import KeeperConfig
from agentguard_server.proxy.capture.correlator import RunCorrelator
from agentguard_server.proxy.capture.protocol import (
    HEAD,
    CapturedExchange,
    CollectorStatus,
    Message,
    RunEvent,
    frame,
    length_of,
    messages_of,
)
from agentguard_server.proxy.capture.run_writer import RunWriter

logger = logging.getLogger("agentguard.keeper")

_SWEEPS: Final = 4
_TELL_S: Final = 0.25
_NICE: Final = 10
_LAST_S: Final = 2.0
_CLOSE_S: Final = 5.0
_FAILURES_TOLD: Final = 100


class CaptureCollector:
    """What the process does.

    Args:
        config: what it was told.
        store: where runs are kept.
    """

    def __init__(self, config: KeeperConfig, store: Store) -> None:
        self._config, self._store = config, store
        guard = Guard.from_policy(config.policy)
        diagnosing = guard if config.capture.diagnose else None
        self.kept = RunWriter(store, diagnosing, redact=config.capture.redact)
        self.observer = RunCorrelator(guard, self.kept, config.runs)
        self._failed = 0
        self._open: set[asyncio.Task[None]] = set()
        self._handled: dict[asyncio.StreamWriter, int] = {}

    async def run(self, ended: asyncio.Event) -> None:
        """Serve until it is to end."""
        Path(self._config.path).unlink(missing_ok=True)
        server = await asyncio.start_unix_server(self._serve, self._config.path, backlog=256)
        Path(self._config.path).chmod(0o600)
        beside = [asyncio.create_task(self._sweep()), asyncio.create_task(self._tell())]
        try:
            await ended.wait()
            server.close()
            if self._open:  # workers have closed their ends by now; what they sent is still there
                await asyncio.wait(self._open, timeout=_LAST_S)
        finally:
            for task in (*beside, *self._open):
                task.cancel()
            with self.kept.together():
                self.observer.end_idle(-1.0)
            self.kept.close()

    def take(self, message: Message) -> None:
        """Take in one message; never raises."""
        try:
            match message:
                case CapturedExchange():
                    self.observer.take(message)
                case RunEvent():
                    self.kept.happened(message)
                case _:
                    self.kept.recovered(message)
        except Exception as error:  # whatever passed, the next message is no worse for it
            self._failed += 1
            if self._failed <= _FAILURES_TOLD:
                logger.warning("what passed could not be kept: %s", type(error).__name__)

    def report(self, handled: int) -> CollectorStatus:
        """What a worker is told."""
        health = self._store.health()
        return CollectorStatus(
            handled=handled,
            failed=self._failed + self.kept.failed,
            written=health.written,
            pending=health.pending,
            lost=health.lost,
            refused=health.refused,
            runs=self.kept.ended,
            diagnosed=self.kept.diagnosed,
            error="" if health.ok else health.last_error,
        )

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None  # for mypy: it is run as one
        self._open.add(task)
        self._handled[writer] = 0
        try:
            while True:
                length = length_of(await reader.readexactly(HEAD))
                messages = messages_of(await reader.readexactly(length))
                with self.kept.together():  # one unit: the store's thread is woken once a frame
                    for message in messages:
                        self.take(message)
                self._handled[writer] += len(messages)
                writer.write(frame(self.report(self._handled[writer])))
                await writer.drain()
        except (asyncio.IncompleteReadError, OSError):
            pass  # the worker is gone
        except ValueError as error:
            logger.error("a worker sent what is no frame: %s", type(error).__name__)
        finally:
            self._open.discard(task)
            del self._handled[writer]
            writer.close()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._config.runs.idle_s / _SWEEPS)
            with self.kept.together():
                self.observer.end_idle()

    async def _tell(self) -> None:
        """Say now and then what was written since the last message."""
        before = self.report(0)
        while True:
            await asyncio.sleep(_TELL_S)
            now = self.report(0)
            if now != before:
                before = now
                for writer, handled in self._handled.items():
                    writer.write(frame(self.report(handled)))


async def _main(config: KeeperConfig, store: Store) -> None:
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, ended.set)
    loop.add_reader(sys.stdin.fileno(), _lifeline, ended)
    await CaptureCollector(config, store).run(ended)


def _lifeline(ended: asyncio.Event) -> None:
    """Whoever started this process holds the other end; nothing more is ever sent on it."""
    if not os.read(sys.stdin.fileno(), 4096):
        asyncio.get_running_loop().remove_reader(sys.stdin.fileno())
        ended.set()


def main() -> int:
    """Run the process; returns its exit status."""
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the worker that started it says when it ends
    with contextlib.suppress(OSError):
        os.nice(_NICE)
    try:
        line = _first_line()
        if not line:
            return 0
        config = KeeperConfig.model_validate_json(line)
        store = Store.open(config.capture.store, connect=False)
    except AgentGuardError as error:
        logger.error("the keeper cannot begin: %s", error)
        return 2
    try:
        asyncio.run(_main(config, store))
    finally:
        store.close(_CLOSE_S)
    return 0


def _first_line() -> bytes:
    """The configuration: nothing follows it, until the pipe is closed."""
    line = bytearray()
    while not line.endswith(b"\n"):
        piece = os.read(sys.stdin.fileno(), 65_536)
        if not piece:
            return b""
        line += piece
    return bytes(line)


if __name__ == "__main__":
    raise SystemExit(main())
