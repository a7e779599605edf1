"""Background writer of log lines: a caller never waits for a disk or a full pipe."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections import deque
from typing import Final

_BATCH_INTERVAL_S: Final = 0.05
_BATCH_BYTES: Final = 1 << 20
_STREAM_DESCRIPTORS: Final = {"stderr": 2, "stdout": 1}


class BackgroundLogWriter:
    """Bounded queue with a writer thread, which the first line starts.

    The writer reopens a file that was moved, so that log rotation works. It writes whole lines in append
    mode, so that several workers can share a file.

    Args:
        output: ``stderr``, ``stdout``, or the path of a file; a new file is readable by its owner only.
        max_queue: upper bound on queued lines.

    Attributes:
        dropped: number of lines that were not written because the queue was full or the write failed.
        written: number of written lines.
    """

    def __init__(self, output: str, max_queue: int) -> None:
        self._output, self._max_queue = output, max_queue
        self._queue: deque[bytes] = deque()
        self._wake_event = threading.Event()
        self._is_closing = False
        self._thread: threading.Thread | None = None
        self._file: int | None = _STREAM_DESCRIPTORS.get(output)
        self._file_identity: tuple[int, int] | None = None
        self.dropped = self.written = 0

    def put(self, line: bytes) -> None:
        """Queue a line that ends with a newline. Never waits or raises."""
        if len(self._queue) >= self._max_queue or self._is_closing:
            self.dropped += 1
            return
        self._queue.append(line)
        if not self._wake_event.is_set():
            self._wake_event.set()
            if self._thread is None:
                self._start_thread()

    def close(self, timeout_s: float = 1.0) -> None:
        """Write the queued lines until the timeout; later lines are dropped."""
        self._is_closing = True
        self._wake_event.set()
        if self._thread is not None:
            self._thread.join(timeout_s)
            if self._thread.is_alive():
                left = len(self._queue)
                self.dropped += left
                return
        if self._file is not None and self._output not in _STREAM_DESCRIPTORS:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = None

    def _start_thread(self) -> None:
        self._thread = threading.Thread(target=self._run, name="agentguard-log", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            self._wake_event.wait()
            if not self._is_closing:
                time.sleep(_BATCH_INTERVAL_S)  # write a burst of lines at once
            self._wake_event.clear()
            while self._queue:
                self._write_batch()
            if self._is_closing and not self._queue:  # a line may arrive just before the close
                return

    def _write_batch(self) -> None:
        held: list[bytes] = []
        size = 0
        while self._queue and size < _BATCH_BYTES:
            held.append(self._queue.popleft())
            size += len(held[-1])
        # Compute the count before the addition: ``+=`` with a call could lose increments of other threads.
        left, count = memoryview(b"".join(held)), len(held)
        try:
            file = self._ensure_open()
            while left:
                left = left[os.write(file, left) :]
        except OSError:
            self.dropped += count
        else:
            self.written += count

    def _ensure_open(self) -> int:
        """Return the open file; reopen it if another file has its path. Raises OSError."""
        if self._output in _STREAM_DESCRIPTORS:
            return _STREAM_DESCRIPTORS[self._output]
        if self._file is not None and self._file_identity != _read_file_identity(self._output):
            os.close(self._file)
            self._file = None
        if self._file is None:
            self._file = os.open(self._output, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
            self._file_identity = _read_file_identity(self._output)
        return self._file


def _read_file_identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
