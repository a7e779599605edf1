"""Rate limits of API keys in memory that all workers of a machine share.

Each worker maps a file in the workers' folder. The file has a row per key: the time of its next permitted
request (the rate), and for each worker the number of its requests in flight (the concurrency). A worker
writes only its own count and reads the counts of all workers, so no request takes a lock.

* The number of concurrent requests never exceeds the limit: a worker counts its request before it compares.
  Of two simultaneous requests for the last place both may be rejected.
* The rate is one number per key, read and then written: the generic cell rate algorithm (ITU-T I.371), which
  admits the same requests as a token bucket. Of two requests at two workers within the same microsecond one
  may not be counted. If a worker is suspended in that microsecond, its later write discards what the other
  workers admitted in between.

The worker that replaces a dead worker resets its count to zero.
"""

from __future__ import annotations

import fcntl
import hashlib
import mmap
import os
from pathlib import Path
from typing import Final

_MAX_ROWS: Final = 8192
_CELL_BYTES: Final = 8
_HEADER_CELLS: Final = 2
"""Cells of a row before the workers' counts: tag of the key, and time of its next permitted request."""


class SharedRateLimits:
    """Rows of all keys in the shared memory.

    Args:
        folder: folder that the workers share.
        worker: number of this worker.
        workers: number of workers.
    """

    def __init__(self, folder: Path, *, worker: int, workers: int) -> None:
        self._path, self._worker, self._workers = folder / "quotas", worker, workers
        self._stride = _HEADER_CELLS + workers
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            size = _MAX_ROWS * self._stride * _CELL_BYTES
            os.ftruncate(file, size)
            whole = memoryview(mmap.mmap(file, size))
        finally:
            os.close(file)
        self._counts, self._times = whole.cast("q"), whole.cast("d")
        for row in range(0, _MAX_ROWS * self._stride, self._stride):
            if self._counts[row]:  # the count of a dead worker that this one replaces
                self._counts[row + _HEADER_CELLS + worker] = 0

    def find_or_create(self, digest: bytes) -> SharedKeyLimit | None:
        """Return the row of a key; None if all rows are used. Takes a lock, so do not call it per request."""
        tag = int.from_bytes(hashlib.sha256(digest).digest()[:_CELL_BYTES], "little", signed=True) or 1
        lock = os.open(self._path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX)
            for probe in range(_MAX_ROWS):
                row = (tag + probe) % _MAX_ROWS * self._stride
                if self._counts[row] in (0, tag):
                    self._counts[row] = tag
                    return SharedKeyLimit(
                        self._counts, self._times, row, worker=self._worker, workers=self._workers
                    )
        finally:
            os.close(lock)
        return None


class SharedKeyLimit:
    """Row of one key, used by one worker."""

    __slots__ = ("_counts", "_end_cell", "_first_cell", "_next_cell", "_own_cell", "_times")

    def __init__(
        self, counts: memoryview[int], times: memoryview[float], row: int, *, worker: int, workers: int
    ) -> None:
        self._counts, self._times, self._next_cell = counts, times, row + 1
        self._first_cell, self._end_cell = row + _HEADER_CELLS, row + _HEADER_CELLS + workers
        self._own_cell = self._first_cell + worker

    @property
    def in_flight(self) -> int:
        """Return the key's number of requests in flight in all workers."""
        return sum(self._counts[self._first_cell : self._end_cell])

    def acquire(self, max_concurrent: int) -> bool:
        """Count a request unless the limit is reached; return whether it was counted."""
        self._counts[self._own_cell] += 1
        if self.in_flight <= max_concurrent:
            return True
        self._counts[self._own_cell] -= 1
        return False

    def release(self) -> None:
        """End a counted request."""
        self._counts[self._own_cell] -= 1

    def take_token(self, now: float, requests_per_minute: int) -> float:
        """Take a token for one request.

        Args:
            now: time in seconds of a clock that all workers share.
            requests_per_minute: rate, and size of a burst after a minute without requests.

        Returns:
            0 if a token was taken; otherwise the seconds until the next one.
        """
        apart = 60 / requests_per_minute
        due = max(self._times[self._next_cell], now)
        early = due - now - (requests_per_minute - 1) * apart
        if early > _TOLERANCE_S:
            return early
        self._times[self._next_cell] = due + apart
        return 0.0


_TOLERANCE_S: Final = 1e-6
