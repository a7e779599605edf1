"""Counters of rate limits in memory that all workers of a machine share.

Each worker maps a file in the workers' folder. The file has a row per key and per tenant. A row has the
theoretical arrival times of both rates, and for each worker the number of its requests in flight. A worker
writes only its own number and reads the numbers of all workers, so no request takes a lock.

* The number of concurrent requests never exceeds the limit: a worker counts its request before it compares.
  If two requests arrive at once below the limit by one, both may be rejected.
* A rate is one number, read and then written: the generic cell rate algorithm (ITU-T I.371), which
  admits the same requests as a token bucket. Of two requests at two workers within the same microsecond, one
  may not be counted. If a worker is suspended in that microsecond, its later write discards the counts of
  other workers in between.

The worker that replaces a dead worker resets its number to zero. A single worker uses its own memory.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Final

from agentguard_server.file_lock import lock_file

_MAX_ROWS: Final = 8192
_CELL_BYTES: Final = 8
_REQUESTS_CELL: Final = 1
_TOKENS_CELL: Final = 2
_HEADER_CELLS: Final = 3
"""Cells of a row before the workers' numbers: tag of the subject, and the times of both rates."""
_WINDOW_S: Final = 60.0
_TOLERANCE_S: Final = 1e-6


class SharedCounters:
    """Rows of all keys and tenants in shared memory.

    Args:
        folder: folder that the workers share; None for a single worker.
        worker: number of this worker.
        workers: number of workers.
    """

    def __init__(self, folder: Path | None = None, *, worker: int = 0, workers: int = 1) -> None:
        self._path = None if folder is None else folder / "quotas"
        self._worker, self._workers = worker, workers
        self._stride = _HEADER_CELLS + workers
        self._counts, self._times = _map_cells(self._path, _MAX_ROWS * self._stride)
        self._own_rows: dict[int, CounterRow] = {}
        for row in range(0, _MAX_ROWS * self._stride, self._stride):
            if self._counts[row]:  # the count of a dead worker that this one replaces
                self._counts[row + _HEADER_CELLS + worker] = 0

    def find_or_create(self, subject: bytes) -> CounterRow:
        """Return the row of a key or tenant. Takes a lock, so do not call it per request.

        If all rows are used, the row is private to this worker, with its share of the limits.
        """
        tag = int.from_bytes(hashlib.sha256(subject).digest()[:_CELL_BYTES], "little", signed=True) or 1
        with self._lock():
            for probe in range(_MAX_ROWS):
                row = (tag + probe) % _MAX_ROWS * self._stride
                if self._counts[row] in (0, tag):
                    self._counts[row] = tag
                    return CounterRow(
                        self._counts, self._times, row, worker=self._worker, workers=self._workers
                    )
        if tag not in self._own_rows:
            counts, times = _map_cells(None, _HEADER_CELLS + 1)
            self._own_rows[tag] = CounterRow(counts, times, 0, share=1 / self._workers)
        return self._own_rows[tag]

    def _lock(self) -> AbstractContextManager[None]:
        return nullcontext() if self._path is None else lock_file(self._path.with_suffix(".lock"))


class CounterRow:
    """Row of one key or tenant, used by one worker.

    Attributes:
        share: share of the limits that the row covers; below 1 if other workers have rows of their own.
        requests: rate of requests.
        tokens: rate of tokens.
    """

    __slots__ = ("_counts", "_end_cell", "_first_cell", "_own_cell", "requests", "share", "tokens")

    def __init__(
        self,
        counts: memoryview[int],
        times: memoryview[float],
        row: int,
        *,
        worker: int = 0,
        workers: int = 1,
        share: float = 1.0,
    ) -> None:
        self._counts, self.share = counts, share
        self.requests = RateCounter(times, row + _REQUESTS_CELL)
        self.tokens = RateCounter(times, row + _TOKENS_CELL)
        self._first_cell, self._end_cell = row + _HEADER_CELLS, row + _HEADER_CELLS + workers
        self._own_cell = self._first_cell + worker

    @property
    def in_flight(self) -> int:
        """Return the number of requests in flight in all workers."""
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


class RateCounter:
    """Rate per minute: the theoretical arrival time of the generic cell rate algorithm.

    All workers must use the same clock, in seconds.
    """

    __slots__ = ("_cell", "_times")

    def __init__(self, times: memoryview[float], cell: int) -> None:
        self._times, self._cell = times, cell

    def compute_wait(self, now: float, per_minute: int) -> float:
        """Return the seconds until the rate allows one more unit; 0 if it allows one now."""
        early = self._times[self._cell] - now - _WINDOW_S + _WINDOW_S / per_minute
        return early if early > _TOLERANCE_S else 0.0

    def add(self, now: float, per_minute: int, amount: float = 1.0) -> None:
        """Count an amount, which may exceed the current allowance; later units then wait longer."""
        self._times[self._cell] = max(self._times[self._cell], now) + amount * _WINDOW_S / per_minute


def _map_cells(path: Path | None, cells: int) -> tuple[memoryview[int], memoryview[float]]:
    """Map a file, or memory of this process, as integers and as floats."""
    size = cells * _CELL_BYTES
    if path is None:
        cells_view = memoryview(bytearray(size))
    else:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(file, size)
            cells_view = memoryview(mmap.mmap(file, size))
        finally:
            os.close(file)
    return cells_view.cast("q"), cells_view.cast("d")
