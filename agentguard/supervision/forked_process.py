"""Child process that is forked without a new program, so that it shares memory with its parent."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import IO, Final

_STDIN, _STDOUT, _FIRST_OTHER_FD = 0, 1, 3
_POLL_INTERVAL_S: Final = 0.01


class ForkedProcess:
    """Forked child process, with the methods of `subprocess.Popen` that `ChildProcess` uses.

    The fork happens when the object is created. This process must then have one thread and no event loop.
    The child has its own process group. It inherits standard error and no other file.

    Args:
        target: function that the child calls; it returns the exit status.

    Attributes:
        pid: process id.
        stdin: end of the pipe that the child reads as its standard input.
    """

    def __init__(self, target: Callable[[], int]) -> None:
        gc.collect()
        gc.freeze()  # a later collection does not write to the pages of these objects, which stay shared
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        read, write = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            _run_child(read, target)
        os.close(read)
        self.stdin: IO[bytes] | None = open(write, "wb")  # noqa: SIM115  (open as long as the child runs)
        self._exit_status: int | None = None

    def poll(self) -> int | None:
        """Return the exit status; None while the process runs."""
        if self._exit_status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._exit_status = os.waitstatus_to_exitcode(status)
        return self._exit_status

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status. Raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired("fork", timeout or 0.0)
            time.sleep(_POLL_INTERVAL_S)
        return status

    def terminate(self) -> None:
        """Send SIGTERM to the process unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


def _run_child(stdin: int, target: Callable[[], int]) -> None:
    """Call the target in the child and end the process; the caller's stack is never unwound."""
    status = 1
    try:
        os.setsid()
        os.dup2(stdin, _STDIN)
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, _STDOUT)
        os.closerange(_FIRST_OTHER_FD, os.sysconf("SC_OPEN_MAX"))
        status = target()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        os._exit(status)
