"""Supervisor of the collector process: start, restart and shutdown."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import stat
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentguard.errors import ConfigError
from agentguard.resilience.retry import Backoff
from agentguard.supervision.process import ChildProcess
from agentguard.supervision.restart_policy import RestartPolicy
from agentguard_server.proxy.capture.protocol import CollectorConfig

if TYPE_CHECKING:
    from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions

logger = logging.getLogger("agentguard.proxy")

_POLL_INTERVAL_S: Final = 0.5
_BACKOFF: Final = Backoff(initial_delay_s=0.5, max_delay_s=30.0, jitter=0.0)
_SHUTDOWN_TIMEOUT_S: Final = 12.0


def build_socket_path(parent: int | None = None) -> str:
    """Return the path of the collector's socket, in a folder that only this user can access.

    Args:
        parent: process ID of the workers' parent; by default this process.

    Raises:
        ConfigError: the system has no Unix domain sockets, or other users can access the folder.
    """
    if not hasattr(socket, "AF_UNIX") or not hasattr(os, "getuid"):
        raise ConfigError("capture: this system has no local sockets, for the connection to the collector")
    folder = Path(tempfile.gettempdir()) / f"agentguard-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"capture: {folder} must be a folder that other users cannot use (chmod 700)")
    return str(folder / f"collector-{parent if parent is not None else os.getpid()}.sock")


class CollectorSupervisor:
    """Supervisor that starts the collector and restarts it when it dies.

    Args:
        socket_path: path of the collector's socket.
        options: section ``capture`` of the configuration.
        guard: section ``guard``, with the policy itself in place of its path.
        run_name_suffix: suffix of the IDs of named runs.

    Attributes:
        restarts: number of restarts.
    """

    def __init__(
        self, socket_path: str, options: CaptureOptions, guard: GuardOptions, *, run_name_suffix: str = ""
    ) -> None:
        self._socket_path = socket_path
        config = CollectorConfig(
            socket_path=socket_path, capture=options, guard=guard, run_name_suffix=run_name_suffix
        )
        # The configuration may have a password, so it is passed through a pipe and not as an argument.
        self._process = ChildProcess(
            [sys.executable, "-m", "agentguard_server.proxy.capture.collector"],
            stdin=config.model_dump_json().encode() + b"\n",
        )
        self._restart_policy = RestartPolicy(compute_delay=_BACKOFF.compute_max_delay)
        self._started_at = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Return the process ID of the collector; None if it does not run."""
        return self._process.pid

    def fork(self) -> None:
        """Fork the collector, which then shares the memory of its modules with this process.

        The fork waits for `start`. A restart starts a new program, because a process with threads cannot fork
        safely. Call this while the process has one thread and no event loop.
        """
        if sys.platform == "linux":  # libraries of macOS cannot be used after a fork
            from agentguard_server.proxy.capture import collector

            self._process.fork(collector.main)

    def start(self) -> None:
        """Start the collector and poll its state from now on."""
        self._process.start()
        self._started_at = time.monotonic()
        self._timer = asyncio.get_running_loop().call_later(_POLL_INTERVAL_S, self._poll)

    async def aclose(self) -> None:
        """Stop the collector; kill it if it does not finish its writes in time."""
        if self._timer is not None:
            self._timer.cancel()
        self._process.terminate()  # the collector ends when its standard input is closed
        if not await self._process.wait_async(_SHUTDOWN_TIMEOUT_S):
            logger.error("the collector did not end in %.0f s and is killed", _SHUTDOWN_TIMEOUT_S)
            self._process.kill()
        Path(self._socket_path).unlink(missing_ok=True)

    def _poll(self) -> None:
        """Schedule a restart if the process ended, otherwise the next poll."""
        loop = asyncio.get_running_loop()
        code = self._process.exit_status
        if code is None:
            self._timer = loop.call_later(_POLL_INTERVAL_S, self._poll)
            return
        wait = self._restart_policy.record_exit(time.monotonic() - self._started_at)
        logger.error("the collector ended with status %d and restarts in %.1f s", code, wait)
        self._timer = loop.call_later(wait, self._restart)

    def _restart(self) -> None:
        self.restarts += 1
        self.start()
