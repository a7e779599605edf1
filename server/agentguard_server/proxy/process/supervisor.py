"""Several workers on one socket: each a process with a loop of its own, started anew when it dies.

They share the listening socket, so that no connection is lost with a worker: what it had not accepted yet
another one does.
"""

from __future__ import annotations

import logging
import os
import select
import shutil
import signal
import socket
import time
from collections.abc import Callable
from typing import Final

from agentguard.errors import AgentGuardError
from agentguard_server.proxy.config.loader import ConfigLoader
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.process.worker import run_worker
from agentguard_server.proxy.telemetry.worker_snapshots import SnapshotDirectory

logger = logging.getLogger("agentguard.proxy")

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_FIRST_WAIT_S: Final = 0.1
_LONGEST_WAIT_S: Final = 10.0
_HEALTHY_S: Final = 10.0
"""A worker that lived so long did not die of its start."""
_READY: Final = 0
CONFIG_EXIT: Final = 2


class WorkerSupervisor:
    """The workers and their parent, which answers nothing itself.

    Args:
        source: the configuration; read by each worker on SIGHUP, if the parent finds it valid.
        settings: what it holds now.
        listening: the socket that they share.
        began: called once the first of them answers.
    """

    def __init__(
        self,
        source: ConfigLoader,
        settings: ProxySettings,
        listening: socket.socket,
        *,
        began: Callable[[], None],
    ) -> None:
        self._source, self._settings, self._listening, self._began = source, settings, listening, began
        self._born: dict[int, tuple[int, float]] = {}
        self._waiting: dict[int, float] = {}
        self._waits: dict[int, float] = {}
        self._ending = self._answers = False
        self._failed = 0
        self._folder = SnapshotDirectory.make()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def run(self) -> int:
        """Keep them at work until a signal ends it; returns the exit status."""
        before = {one: signal.signal(one, lambda *_: None) for one in _SIGNALS}
        wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        try:
            for number in range(self._settings.listen.workers):
                self._fork(number)
            while self._born or (self._waiting and not self._ending):
                self._step()
        finally:
            signal.set_wakeup_fd(wakeup)
            for one, handler in before.items():
                signal.signal(one, handler)
            os.close(self._read)
            os.close(self._write)
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._failed

    def _step(self) -> None:
        """Sleep until something happens, and act on it."""
        due = min(self._waiting.values(), default=None)
        left = None if due is None or self._ending else max(0.0, due - time.monotonic())
        if select.select([self._read], [], [], left)[0]:
            for number in os.read(self._read, 4096):
                self._told(number)
        self._reap()
        now = time.monotonic()
        for worker in [one for one, at in self._waiting.items() if at <= now and not self._ending]:
            del self._waiting[worker]
            self._fork(worker)

    def _told(self, number: int) -> None:
        if number == _READY:
            if not self._answers:
                self._answers = True
                self._began()
        elif number == signal.SIGHUP:
            self._hang_up()
        elif number in (signal.SIGTERM, signal.SIGINT):
            # A second one is passed on, too, and ends the workers at once. The socket is closed here as well,
            # or connections would still be made that nobody accepts.
            self._ending = True
            self._listening.close()
            self._pass_on(signal.SIGTERM)

    def _hang_up(self) -> None:
        try:
            self._settings = self._source.read()
        except AgentGuardError as error:
            logger.error("the configuration was not reloaded: %s", error)
        else:
            self._pass_on(signal.SIGHUP)

    def _pass_on(self, number: signal.Signals) -> None:
        for pid in self._born:
            os.kill(pid, number)

    def _reap(self) -> None:
        while self._born:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            worker, at = self._born.pop(pid, (0, 0.0))
            code = os.waitstatus_to_exitcode(status)
            if self._ending:
                continue
            if code == CONFIG_EXIT and not self._answers:
                self._ending, self._failed = True, CONFIG_EXIT
                self._pass_on(signal.SIGTERM)
                continue
            self._again(worker, code, time.monotonic() - at)

    def _again(self, worker: int, code: int, lived: float) -> None:
        """Start a worker anew, the later the more often it died young."""
        wait = _FIRST_WAIT_S if lived >= _HEALTHY_S else self._waits.get(worker, _FIRST_WAIT_S)
        self._waits[worker] = min(wait * 2, _LONGEST_WAIT_S)
        self._waiting[worker] = time.monotonic() + wait
        logger.error("worker %d ended with status %d; another follows in %.1f s", worker, code, wait)

    def _fork(self, worker: int) -> None:
        parent = os.getpid()
        # Whatever came to the child before it is on its own would be written into the parent's pipe: there a
        # second signal ends the other workers at once, streams and all.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _SIGNALS)
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            self._born[pid] = (worker, time.monotonic())
            return
        status = 1
        try:
            _take_own_signals(before)
            run_worker(
                self._source, self._settings, self._listening,
                began=self._tell_parent, worker=worker, parent=parent, folder=self._folder,
            )  # fmt: skip
            status = 0
        except AgentGuardError as error:
            logger.error("worker %d: %s", worker, error)
            status = CONFIG_EXIT
        except BaseException as error:
            logger.error("worker %d: %s", worker, type(error).__name__, exc_info=True)
        finally:
            logging.shutdown()
            os._exit(status)

    def _tell_parent(self) -> None:
        os.write(self._write, bytes([_READY]))


def _take_own_signals(mask: set[signal.Signals] | set[int]) -> None:
    """In a worker: none of its signals is the parent's any more, and those that waited come now."""
    signal.set_wakeup_fd(-1)
    for one in _SIGNALS:
        signal.signal(one, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's goes to all; the parent passes it on
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
