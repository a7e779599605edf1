"""Child process in its own process group, so that none of its workers remains after it."""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO, Final

from agentguard.supervision.forked_process import ForkedProcess

_PR_SET_PDEATHSIG: Final = 1
_TAIL_BYTES: Final = 3_000
_POLL_INTERVAL_S: Final = 0.02


class ChildProcess:
    """Child process with its own children; it can be started again after its end.

    Args:
        command: program and arguments.
        environment: all environment variables of the process; None for those of this process.
        log: file to which standard output and standard error are appended. None discards the output; the
            errors are written to the standard error of this process.
        stdin: first bytes of its standard input, which then remains open until `terminate`. None for an
            empty standard input; Linux then sends SIGTERM to the process when this process ends.
    """

    def __init__(
        self,
        command: Sequence[str],
        *,
        environment: Mapping[str, str] | None = None,
        log: Path | None = None,
        stdin: bytes | None = None,
    ) -> None:
        self.command, self.log = list(command), log
        self._environment = None if environment is None else dict(environment)
        self._stdin = stdin
        self._forked: ForkedProcess | None = None
        self._process: subprocess.Popen[bytes] | ForkedProcess | None = None

    @property
    def pid(self) -> int | None:
        """Process id, which is also the group id; None if the process does not run."""
        return self._process.pid if self.is_alive and self._process is not None else None

    @property
    def is_alive(self) -> bool:
        """Return whether the process runs."""
        return self._process is not None and self._process.poll() is None

    @property
    def exit_status(self) -> int | None:
        """Exit status of the last run; None while it runs, or before the first run."""
        return None if self._process is None else self._process.poll()

    def fork(self, target: Callable[[], int]) -> None:
        """Fork a process that the next call of `start` uses instead of the command; see `ForkedProcess`."""
        self._forked = ForkedProcess(target)

    def start(self) -> None:
        """Start the process. Raises OSError if the program cannot be run."""
        self._close_stdin()
        self._process, self._forked = self._forked or self._spawn(), None
        if self._stdin is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.write(self._stdin)
                self._process.stdin.flush()

    def _spawn(self) -> subprocess.Popen[bytes]:
        with ExitStack() as files:
            log: int | BinaryIO = subprocess.DEVNULL
            if self.log is not None:
                self.log.parent.mkdir(parents=True, exist_ok=True)
                log = files.enter_context(self.log.open("ab"))
            return subprocess.Popen(  # noqa: S603  (the caller chooses the command)
                self.command,
                stdin=subprocess.DEVNULL if self._stdin is None else subprocess.PIPE,
                stdout=log,
                stderr=None if self.log is None else subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
                preexec_fn=_die_with_parent if self._stdin is None and sys.platform == "linux" else None,
            )

    def terminate(self) -> None:
        """Request the exit: close the standard input if it is open, otherwise send SIGTERM.

        Only the process itself gets the signal, so that it can complete requests and stop its own workers.
        """
        if self._stdin is not None:
            self._close_stdin()
        elif self._process is not None and self.is_alive:
            self._process.terminate()

    def wait(self, timeout_s: float) -> bool:
        """Wait up to ``timeout_s`` seconds; return whether the process has ended."""
        if self._process is None:
            return True
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    async def wait_async(self, timeout_s: float) -> bool:
        """Wait as `wait` does, without blocking the event loop."""
        end = time.monotonic() + timeout_s
        while self.is_alive and time.monotonic() < end:
            await asyncio.sleep(_POLL_INTERVAL_S)
        return not self.is_alive

    def stop(self, timeout_s: float) -> bool:
        """Request the exit, wait, and kill the whole group; return whether the process exited in time."""
        self.terminate()
        has_exited = self.wait(timeout_s)
        self.kill()
        return has_exited

    def kill(self) -> None:
        """Send SIGKILL to the whole group, including processes whose parent has ended."""
        if self._process is None:
            return
        self._close_stdin()
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def read_log_tail(self, max_bytes: int = _TAIL_BYTES) -> str:
        """Return the last ``max_bytes`` bytes of the log as text; empty without a log."""
        if self.log is None:
            return ""
        with suppress(OSError), self.log.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - max_bytes))
            return log.read().decode(errors="replace")
        return ""

    def _close_stdin(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            with suppress(OSError):
                self._process.stdin.close()


def find_free_port(host: str) -> int:
    """Return a port of ``host`` that is free now; another process may bind it before the caller."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _die_with_parent() -> None:
    """Request SIGTERM when the parent process ends (prctl(2))."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
