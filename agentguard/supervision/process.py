"""A server as a process group of its own, so that no worker outlives it with the memory of a machine."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

_PR_SET_PDEATHSIG: Final = 1
_TAIL_BYTES: Final = 3_000


class ServerProcess:
    """One process with its children; started and ended any number of times.

    Args:
        command: program and arguments.
        environment: all of its environment variables.
        log: file that its output is added to.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
        self.command, self.log = list(command), log
        self._environment = dict(environment)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """Process id, which is also that of its group; None while none runs."""
        return self._process.pid if self.is_alive and self._process is not None else None

    @property
    def is_alive(self) -> bool:
        """Whether it runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Exit status of the last run; None while it runs, or before it has."""
        return None if self._process is None else self._process.poll()

    def start(self) -> None:
        """Start it. Raises OSError if the program cannot be run."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603  (the command is the user's own)
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            )

    def terminate(self) -> None:
        """SIGTERM to the process alone: it finishes what it has begun, and ends its workers itself."""
        if self._process is not None and self.is_alive:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within so many seconds."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """SIGKILL to the whole group, those that outlived their parent among it."""
        if self._process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def read_log_tail(self) -> str:
        """The end of its log."""
        with suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _TAIL_BYTES))
            return log.read().decode(errors="replace")
        return ""


def find_free_port(host: str) -> int:
    """A port that nothing listens on now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as held:
        held.bind((host, 0))
        return int(held.getsockname()[1])


def _die_with_parent() -> None:
    """Be sent SIGTERM when whoever watches is killed (prctl(2))."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
