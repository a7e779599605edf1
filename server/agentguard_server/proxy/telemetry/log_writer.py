"""Lines for a file or a pipe, written by a thread: who logs never waits for a disk or a full pipe."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import Final

_GATHER_S: Final = 0.05
_BATCH_BYTES: Final = 1 << 20
_STREAMS: Final = {"stderr": 2, "stdout": 1}


class BackgroundLogWriter:
    """A bounded queue with a writer behind it; the thread begins with the first line.

    A file that was moved away is opened anew, so that it can be rotated. Each write is of whole lines, in
    append mode, so that several workers may share a file.

    Args:
        to: ``stderr``, ``stdout``, or the path of a file; it is made readable by its owner alone.
        most: lines that may wait.

    Attributes:
        lost: lines that were not written: the queue was full, or the file could not be written.
        written: lines that were.
    """

    def __init__(self, to: str, most: int) -> None:
        self._to, self._most = to, most
        self._waiting: deque[bytes] = deque()
        self._more = threading.Event()
        self._closing = False
        self._thread: threading.Thread | None = None
        self._file: int | None = _STREAMS.get(to)
        self._identity: tuple[int, int] | None = None
        self.lost = self.written = 0

    def put(self, line: bytes) -> None:
        """Queue a line, with its end. Never waits and never raises."""
        if len(self._waiting) >= self._most or self._closing:
            self.lost += 1
            return
        self._waiting.append(line)
        if not self._more.is_set():
            self._more.set()
            if self._thread is None:
                self._begin()

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what waits, as far as that goes in the time; what comes afterwards is lost."""
        self._closing = True
        self._more.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                left = len(self._waiting)
                self.lost += left
                return
        if self._file is not None and self._to not in _STREAMS:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def _begin(self) -> None:
        self._thread = threading.Thread(target=self._run, name="agentguard-log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._more.wait()
            if not self._closing:
                time.sleep(_GATHER_S)  # lines that come together are written together
            self._more.clear()
            while self._waiting:
                self._write()
            if self._closing and not self._waiting:  # a line may have come just before it was closed
                return

    def _write(self) -> None:
        held: list[bytes] = []
        size = 0
        while self._waiting and size < _BATCH_BYTES:
            held.append(self._waiting.popleft())
            size += len(held[-1])
        # Counted before: a call between reading and writing `lost` would let other threads' counts be undone.
        left, count = memoryview(b"".join(held)), len(held)
        try:
            file = self._opened()
            while left:
                left = left[os.write(file, left) :]
        except OSError:
            self.lost += count
        else:
            self.written += count

    def _opened(self) -> int:
        """The file; opened anew if it is no longer the one at its path. Raises OSError."""
        if self._to in _STREAMS:
            return _STREAMS[self._to]
        if self._file is not None and self._identity != _identity(self._to):
            os.close(self._file)
            self._file = None
        if self._file is None:
            self._file = os.open(self._to, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._identity = _identity(self._to)
        return self._file


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
