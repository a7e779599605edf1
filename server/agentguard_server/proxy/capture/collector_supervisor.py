"""The life of the keeper's process: started, tended, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentguard.errors import ConfigError
from agentguard_server.proxy.capture.protocol import CollectorConfig

if TYPE_CHECKING:
    from agentguard_server.proxy.guard.options import CaptureOptions, GuardOptions

logger = logging.getLogger("agentguard.proxy")

_POLL_INTERVAL_S: Final = 0.5
_INITIAL_BACKOFF_S: Final = 0.5
_MAX_BACKOFF_S: Final = 30.0
_HEALTHY_UPTIME_S: Final = 10.0
_SHUTDOWN_TIMEOUT_S: Final = 12.0


def build_socket_path(parent: int | None = None) -> str:
    """Where the keeper of the workers of one parent listens; in a folder that is this user's alone.

    Args:
        parent: process id of the parent; this process if there is none.

    Raises:
        ConfigError: there are no local sockets, or the folder is not this user's.
    """
    if not hasattr(socket, "AF_UNIX") or not hasattr(os, "getuid"):
        raise ConfigError("capture: this system has no local sockets, by which the keeper is told")
    folder = Path(tempfile.gettempdir()) / f"agentguard-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
        raise ConfigError(f"capture: {folder} must be a folder that nobody else can use (chmod 700)")
    return str(folder / f"keeper-{parent if parent is not None else os.getpid()}.sock")


class CollectorSupervisor:
    """Starts the keeper, and starts it anew when it dies.

    Args:
        path: where it listens.
        options: what is kept, and where.
        guard: section ``guard`` with the policy itself.

    Attributes:
        restarts: times that it had to be started anew.
    """

    def __init__(self, socket_path: str, options: CaptureOptions, guard: GuardOptions) -> None:
        self._socket_path = socket_path
        self._config = CollectorConfig(socket_path=socket_path, capture=options, guard=guard)
        self._process: subprocess.Popen[bytes] | None = None
        self._started_at = 0.0
        self._backoff_s = _INITIAL_BACKOFF_S
        self._timer: asyncio.TimerHandle | None = None
        self.restarts = 0

    @property
    def pid(self) -> int | None:
        """Of the keeper; None while there is none."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start it, and look after it from now on."""
        self._spawn()
        self._timer = asyncio.get_running_loop().call_later(_POLL_INTERVAL_S, self._poll)

    async def aclose(self) -> None:
        """Let it write what it has, for some seconds; then it is killed."""
        if self._timer is not None:
            self._timer.cancel()
        process, self._process = self._process, None
        if process is None:
            return
        assert process.stdin is not None  # for mypy: it is a pipe
        with contextlib.suppress(OSError):
            process.stdin.close()  # it ends when nobody holds this any more
        until = time.monotonic() + _SHUTDOWN_TIMEOUT_S
        while process.poll() is None and time.monotonic() < until:
            await asyncio.sleep(0.02)
        if process.poll() is None:
            logger.error("the keeper did not end in %.0f s and is killed", _SHUTDOWN_TIMEOUT_S)
            process.kill()
        process.wait()
        Path(self._socket_path).unlink(missing_ok=True)

    def _spawn(self) -> None:
        # What is configured may hold a password: it goes through a pipe, and no list of processes shows it.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "agentguard_server.proxy.capture.collector"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        self._started_at = time.monotonic()
        assert self._process.stdin is not None  # for mypy: it is a pipe
        with contextlib.suppress(OSError):
            self._process.stdin.write(self._config.model_dump_json().encode() + b"\n")
            self._process.stdin.flush()

    def _poll(self) -> None:
        """Start it anew if it died, the later the more often it died young."""
        wait = _POLL_INTERVAL_S
        process = self._process
        if process is not None and (code := process.poll()) is not None:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
            self._process = None
            lived = time.monotonic() - self._started_at
            wait = self._backoff_s = _INITIAL_BACKOFF_S if lived >= _HEALTHY_UPTIME_S else self._backoff_s
            self._backoff_s = min(self._backoff_s * 2, _MAX_BACKOFF_S)
            logger.error("the keeper ended with status %d; another follows in %.1f s", code, wait)
        elif process is None:
            self.restarts += 1
            self._spawn()
        self._timer = asyncio.get_running_loop().call_later(wait, self._poll)
