"""Supervisor of several worker processes on one listening socket; it restarts workers that die.

The workers share the listening socket: if a worker dies, another one accepts its pending connections.
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
from agentguard.resilience.retry import Backoff
from agentguard.supervision.restart_policy import RestartPolicy
from agentguard_server.proxy.config.loader import ConfigLoader
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.process.worker import run_worker
from agentguard_server.proxy.telemetry.worker_snapshots import SnapshotDirectory

logger = logging.getLogger("agentguard.proxy")

_HANDLED_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCHLD)
_BACKOFF: Final = Backoff(initial_delay_s=0.1, max_delay_s=10.0, jitter=0.0)
_READY_BYTE: Final = 0
CONFIG_ERROR_STATUS: Final = 2


class WorkerSupervisor:
    """Supervisor that forks and restarts workers; it serves no requests itself.

    Args:
        config_loader: loader of the configuration. On SIGHUP, the supervisor loads it again; if it is valid,
            each worker does so, too.
        settings: the current configuration.
        listener: listening socket that the workers share.
        on_ready: called when the first worker accepts requests.
    """

    def __init__(
        self,
        config_loader: ConfigLoader,
        settings: ProxySettings,
        listener: socket.socket,
        *,
        on_ready: Callable[[], None],
    ) -> None:
        self._config_loader, self._settings = config_loader, settings
        self._listener, self._on_ready = listener, on_ready
        self._workers: dict[int, tuple[int, float]] = {}
        self._restart_at: dict[int, float] = {}
        self._restart_policies = {
            worker: RestartPolicy(compute_delay=_BACKOFF.compute_max_delay)
            for worker in range(settings.listen.workers)
        }
        self._is_stopping = self._is_ready = False
        self._exit_status = 0
        self._folder = SnapshotDirectory.create_folder()
        self._read, self._write = os.pipe()
        os.set_blocking(self._read, False)
        os.set_blocking(self._write, False)

    def run(self) -> int:
        """Supervise the workers until a signal stops the proxy; return the exit status."""
        old_handlers = {one: signal.signal(one, lambda *_: None) for one in _HANDLED_SIGNALS}
        wakeup = signal.set_wakeup_fd(self._write, warn_on_full_buffer=False)
        try:
            for number in range(self._settings.listen.workers):
                self._fork_worker(number)
            while self._workers or (self._restart_at and not self._is_stopping):
                self._step()
        finally:
            signal.set_wakeup_fd(wakeup)
            for one, handler in old_handlers.items():
                signal.signal(one, handler)
            os.close(self._read)
            os.close(self._write)
            shutil.rmtree(self._folder, ignore_errors=True)
        return self._exit_status

    def _step(self) -> None:
        """Wait for a signal or a due restart, and handle it."""
        due = min(self._restart_at.values(), default=None)
        left = None if due is None or self._is_stopping else max(0.0, due - time.monotonic())
        if select.select([self._read], [], [], left)[0]:
            for number in os.read(self._read, 4096):
                self._handle_signal(number)
        self._reap()
        now = time.monotonic()
        for worker in [one for one, at in self._restart_at.items() if at <= now and not self._is_stopping]:
            del self._restart_at[worker]
            self._fork_worker(worker)

    def _handle_signal(self, number: int) -> None:
        if number == _READY_BYTE:
            if not self._is_ready:
                self._is_ready = True
                self._on_ready()
        elif number == signal.SIGHUP:
            self._reload()
        elif number in (signal.SIGTERM, signal.SIGINT):
            # A second signal is forwarded, too, and stops the workers at once. The supervisor also closes its
            # socket; otherwise the kernel would still queue connections that no process accepts.
            self._is_stopping = True
            self._listener.close()
            self._forward_signal(signal.SIGTERM)

    def _reload(self) -> None:
        try:
            self._settings = self._config_loader.load()
        except AgentGuardError as error:
            logger.error("the configuration was not reloaded: %s", error)
        else:
            self._forward_signal(signal.SIGHUP)

    def _forward_signal(self, number: signal.Signals) -> None:
        for pid in self._workers:
            os.kill(pid, number)

    def _reap(self) -> None:
        while self._workers:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            worker, started_at = self._workers.pop(pid, (0, 0.0))
            code = os.waitstatus_to_exitcode(status)
            if self._is_stopping:
                continue
            if code == CONFIG_ERROR_STATUS and not self._is_ready:
                self._is_stopping, self._exit_status = True, CONFIG_ERROR_STATUS
                self._forward_signal(signal.SIGTERM)
                continue
            self._schedule_restart(worker, code, time.monotonic() - started_at)

    def _schedule_restart(self, worker: int, code: int, uptime_s: float) -> None:
        """Schedule the restart of a worker; the delay grows with the number of early exits."""
        delay_s = self._restart_policies[worker].record_exit(uptime_s)
        self._restart_at[worker] = time.monotonic() + delay_s
        logger.error("worker %d ended with status %d; it restarts in %.1f s", worker, code, delay_s)

    def _fork_worker(self, worker: int) -> None:
        parent = os.getpid()
        # Until the child resets its handlers, its signals would be written to the supervisor's pipe. The
        # supervisor would handle them as its own, and a second one would stop the other workers at once.
        old_mask = signal.pthread_sigmask(signal.SIG_BLOCK, _HANDLED_SIGNALS)
        pid = os.fork()
        if pid:
            signal.pthread_sigmask(signal.SIG_SETMASK, old_mask)
            self._workers[pid] = (worker, time.monotonic())
            return
        status = 1
        try:
            _reset_signals(old_mask)
            run_worker(
                self._config_loader, self._settings, self._listener,
                on_ready=self._notify_ready, worker=worker, parent=parent, folder=self._folder,
            )  # fmt: skip
            status = 0
        except AgentGuardError as error:
            logger.error("worker %d: %s", worker, error)
            status = CONFIG_ERROR_STATUS
        except BaseException as error:
            logger.error("worker %d: %s", worker, type(error).__name__, exc_info=True)
        finally:
            logging.shutdown()
            os._exit(status)

    def _notify_ready(self) -> None:
        os.write(self._write, bytes([_READY_BYTE]))


def _reset_signals(mask: set[signal.Signals] | set[int]) -> None:
    """Restore the default signal handlers in a worker, then deliver the pending signals."""
    signal.set_wakeup_fd(-1)
    for one in _HANDLED_SIGNALS:
        signal.signal(one, signal.SIG_DFL)
    # A terminal sends SIGINT to all processes; the supervisor forwards it as SIGTERM.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
