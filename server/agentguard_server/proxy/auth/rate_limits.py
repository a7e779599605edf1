"""What the workers of one machine have given out of keys' limits, in memory that they share.

A file in the workers' folder is mapped by each of them. A key has a row in it: when its next request may come
(the rate), and for each worker how many of its requests run there (what may run at once). A worker writes
only its own count, and looks at all of them; so no request takes a lock.

* What runs at once never exceeds the limit: a worker counts its request first, and looks then. Of two that
  come at the same moment for the last place both may be refused.
* The rate is one number a key, read and written again: the generic cell rate algorithm (ITU-T I.371), which
  lets through what a token bucket does. Of two requests at two workers within the same microsecond one may
  not be counted; a worker that is halted in that microsecond forgets what the others let in until it goes on.

A worker that dies takes its count along: whoever comes in its place begins with none.
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
"""Cells of a row before the workers' counts: what key it is of, and when its next request may come."""


class SharedRateLimits:
    """The rows of all keys.

    Args:
        folder: that of the workers.
        worker: number of this one.
        workers: how many there are.
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
            if self._counts[row]:  # left behind by a worker that this one stands in for
                self._counts[row + _HEADER_CELLS + worker] = 0

    def find_or_create(self, digest: bytes) -> SharedKeyLimit | None:
        """The row of a key, for good; None if there are too many keys. Takes a lock: not for each request."""
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
    """One key's row, as one worker uses it."""

    __slots__ = ("_counts", "_end_cell", "_first_cell", "_next_cell", "_own_cell", "_times")

    def __init__(
        self, counts: memoryview[int], times: memoryview[float], row: int, *, worker: int, workers: int
    ) -> None:
        self._counts, self._times, self._next_cell = counts, times, row + 1
        self._first_cell, self._end_cell = row + _HEADER_CELLS, row + _HEADER_CELLS + workers
        self._own_cell = self._first_cell + worker

    @property
    def in_flight(self) -> int:
        """Requests of the key that run, in all workers."""
        return sum(self._counts[self._first_cell : self._end_cell])

    def acquire(self, max_concurrent: int) -> bool:
        """Count a request, if not as many run as may."""
        self._counts[self._own_cell] += 1
        if self.in_flight <= max_concurrent:
            return True
        self._counts[self._own_cell] -= 1
        return False

    def release(self) -> None:
        """A request that was counted is over."""
        self._counts[self._own_cell] -= 1

    def take_token(self, now: float, requests_per_minute: int) -> float:
        """Take one of the requests of a minute.

        Args:
            now: seconds of a clock that all workers have.
            a_minute: requests that may come at once after a minute of none; as many come in each minute.

        Returns:
            0 if it was taken; else seconds after which there will be one.
        """
        apart = 60 / requests_per_minute
        due = max(self._times[self._next_cell], now)
        early = due - now - (requests_per_minute - 1) * apart
        if early > _TOLERANCE_S:
            return early
        self._times[self._next_cell] = due + apart
        return 0.0


_TOLERANCE_S: Final = 1e-6
