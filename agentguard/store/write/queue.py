"""Write queue of the store, bounded by rows and by bytes."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from agentguard.store.db.rows import Row, RunRow, SnapshotRow
from agentguard.store.write.receipt import ReceiptCondition, WriteReceipt

_ROW_OVERHEAD_BYTES = 400
_VALUE_OVERHEAD_BYTES = 48
_FIXED_SIZE_TYPES = frozenset({int, float, bool, type(None)})
_MAX_INSPECTED_VALUES = 512
_MAX_INSPECTED_CONTAINERS = 512


@dataclass(frozen=True, slots=True)
class WriteUnit:
    """Rows of one `Store.write`, which are committed together."""

    rows: tuple[Row, ...]
    size_bytes: int
    receipt: WriteReceipt


class WriteQueue:
    """Queue with one reader. `condition` uses its lock and is notified when receipts are settled.

    Units that the reader took count towards the bounds until `release`, since they are still in memory.
    ``added_count`` and ``settled_count`` count all units so far.
    """

    def __init__(self, *, max_rows: int, max_bytes: int) -> None:
        self.lock = threading.Lock()
        self.condition = ReceiptCondition(self.lock)
        self.row_count = 0
        self.byte_count = 0
        self.added_count = 0
        self.settled_count = 0
        self.is_closed = False
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self._unit_available = threading.Condition(self.lock)
        self._is_reader_waiting = False
        self._batch_threshold: tuple[int, int] | None = None
        self._oldest_unit_time = 0.0
        self._units: deque[WriteUnit] = deque()

    def put(self, unit: WriteUnit) -> str:
        """Add a unit without waiting; return the reason if it was not added, else an empty string."""
        with self.lock:
            if self.is_closed:
                return "the store is closed"
            rows, total = self.row_count + len(unit.rows), self.byte_count + unit.size_bytes
            # A unit that exceeds the limits is accepted if the queue is empty.
            if self.row_count and (rows > self._max_rows or total > self._max_bytes):
                return "the queue is full, because the database is too slow"
            self.row_count, self.byte_count = rows, total
            self.added_count += 1
            if not self._units:
                self._oldest_unit_time = time.monotonic()
            self._units.append(unit)
            if self._is_reader_waiting:
                self._unit_available.notify()
            elif self._batch_threshold is not None and self._has_reached(*self._batch_threshold):
                self.condition.flush_requested.notify()
        return ""

    def take(self, *, max_rows: int, max_bytes: int, max_delay_s: float = 0.0) -> list[WriteUnit]:
        """Wait for units and remove the first ones; return an empty list once the queue is closed and empty.

        Args:
            max_rows, max_bytes: size of the batch; a single unit may exceed it.
            max_delay_s: longest wait of the first unit for more. The wait ends early if a caller waits for a
                receipt, if the batch is full, or if the queue is closed.
        """
        with self.lock:
            while not self._units and not self.is_closed:
                self._is_reader_waiting = True
                self._unit_available.wait()
                self._is_reader_waiting = False
            self._wait_for_more(max_delay_s, max_rows, max_bytes)
            units: list[WriteUnit] = []
            rows = total = 0
            while self._units and (not units or (rows < max_rows and total < max_bytes)):
                unit = self._units.popleft()
                units.append(unit)
                rows, total = rows + len(unit.rows), total + unit.size_bytes
            return units

    def _wait_for_more(self, seconds: float, max_rows: int, max_bytes: int) -> None:
        # The batch uses at most half of the queue, so that rows which arrive during its commit are not lost.
        self._batch_threshold = threshold = (
            min(max_rows, self._max_rows // 2),
            min(max_bytes, self._max_bytes // 2),
        )
        while not (self.is_closed or self.condition.waiter_count or self._has_reached(*threshold)):
            remaining_s = self._oldest_unit_time + seconds - time.monotonic()
            if remaining_s <= 0:
                break
            self.condition.flush_requested.wait(remaining_s)
        self._batch_threshold = None

    def _has_reached(self, rows: int, size: int) -> bool:
        return self.row_count >= rows or self.byte_count >= size

    def release(self, units: list[WriteUnit]) -> None:
        """Remove units from the counts. The caller holds the lock."""
        self.row_count -= sum(len(unit.rows) for unit in units)
        self.byte_count -= sum(unit.size_bytes for unit in units)
        self.settled_count += len(units)

    def drain(self) -> list[WriteUnit]:
        """Remove and return all units. The caller holds the lock."""
        units = list(self._units)
        self._units.clear()
        return units

    def close(self) -> None:
        """Reject further units, and wake the reader."""
        with self.lock:
            self.is_closed = True
            self._unit_available.notify_all()
            self.condition.notify_all()
            self.condition.flush_requested.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait until the time has passed or the queue is closed."""
        with self.lock:
            if not self.is_closed:
                self._is_reader_waiting = False
                self.condition.wait_for(lambda: self.is_closed, seconds)


def estimate_size(rows: tuple[Row, ...]) -> int:
    """Return the estimated memory of rows in bytes; only a part of very large data is inspected."""
    total = _ROW_OVERHEAD_BYTES * len(rows)
    for row in rows:
        total += _estimate_data_size(row.data)
        if type(row) is RunRow:
            total += len(row.task) + _estimate_data_size(row.annotation)
        elif type(row) is SnapshotRow:
            total += len(row.state)
    return total


def _estimate_data_size(data: Mapping[str, Any]) -> int:
    """Return the estimated memory of a row's data; fast, since `Store.write` calls it for each row."""
    total = 0
    containers: list[Any] = [data]
    for container in containers:  # the loop appends to it
        kind = type(container)
        values = container if kind is list or kind is tuple else container.values()
        total += _VALUE_OVERHEAD_BYTES * len(values)
        for value in (
            values if len(values) <= _MAX_INSPECTED_VALUES else islice(values, _MAX_INSPECTED_VALUES)
        ):
            kind = type(value)
            if kind is str or kind is bytes:
                total += len(value)
            elif kind in _FIXED_SIZE_TYPES:
                continue
            elif kind is dict or kind is list or kind is tuple or isinstance(value, Mapping):
                containers += [value] if value and len(containers) < _MAX_INSPECTED_CONTAINERS else []
    return total
