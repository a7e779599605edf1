"""Rows that wait to be written: bounded by count and by bytes, and cheap to add to."""

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

_ROW_BYTES = 400
_VALUE_BYTES = 48
_SMALL = frozenset({int, float, bool, type(None)})
_MOST_LOOKED_AT = 512
_MOST_CONTAINERS = 512


@dataclass(frozen=True, slots=True)
class WriteUnit:
    """The rows of one `Store.write`: they become durable together."""

    rows: tuple[Row, ...]
    weight: int
    receipt: WriteReceipt


class WriteQueue:
    """A queue with one reader. ``changed`` is its lock, and tells of receipts that were settled.

    What the reader has taken counts until it says `done`: it is still in memory. ``added`` and ``settled``
    count units since the beginning.
    """

    def __init__(self, *, max_rows: int, max_bytes: int) -> None:
        self.lock = threading.Lock()
        self.changed = ReceiptCondition(self.lock)
        self.rows = 0
        self.bytes = 0
        self.added = 0
        self.settled = 0
        self.closed = False
        self._max_rows, self._max_bytes = max_rows, max_bytes
        self._arrived = threading.Condition(self.lock)
        self._reader_waits = False
        self._enough: tuple[int, int] | None = None
        self._since = 0.0
        self._units: deque[WriteUnit] = deque()

    def put(self, unit: WriteUnit) -> str:
        """Add a unit; returns why it was not added, empty if it was. Never waits for the reader's work."""
        with self.lock:
            if self.closed:
                return "the store is closed"
            rows, total = self.rows + len(unit.rows), self.bytes + unit.weight
            # A unit that is over the limits on its own is taken when there is nothing else.
            if self.rows and (rows > self._max_rows or total > self._max_bytes):
                return "the queue is full, as the database does not take rows fast enough"
            self.rows, self.bytes = rows, total
            self.added += 1
            if not self._units:
                self._since = time.monotonic()
            self._units.append(unit)
            if self._reader_waits:
                self._arrived.notify()
            elif self._enough is not None and self._is_enough(*self._enough):
                self.changed.hurry.notify()
        return ""

    def take(self, *, max_rows: int, max_bytes: int, linger_s: float = 0.0) -> list[WriteUnit]:
        """Wait for units and take the first ones, whole; nothing once the inbox is closed and empty.

        Args:
            max_rows, max_bytes: how much to take; more only where one unit is.
            linger_s: how long the first unit may wait for others to be taken with it. Nothing waits while
                somebody waits for a receipt, or once there is enough or the inbox is closed.
        """
        with self.lock:
            while not self._units and not self.closed:
                self._reader_waits = True
                self._arrived.wait()
                self._reader_waits = False
            self._linger(linger_s, max_rows, max_bytes)
            taken: list[WriteUnit] = []
            rows = total = 0
            while self._units and (not taken or (rows < max_rows and total < max_bytes)):
                unit = self._units.popleft()
                taken.append(unit)
                rows, total = rows + len(unit.rows), total + unit.weight
            return taken

    def _linger(self, seconds: float, max_rows: int, max_bytes: int) -> None:
        # Half of what there is room for, at most: what comes meanwhile must not be lost.
        self._enough = most = min(max_rows, self._max_rows // 2), min(max_bytes, self._max_bytes // 2)
        while not (self.closed or self.changed.awaited or self._is_enough(*most)):
            left = self._since + seconds - time.monotonic()
            if left <= 0:
                break
            self.changed.hurry.wait(left)
        self._enough = None

    def _is_enough(self, rows: int, size: int) -> bool:
        return self.rows >= rows or self.bytes >= size

    def done(self, units: list[WriteUnit]) -> None:
        """Say that units are no longer in memory. The caller holds the lock."""
        self.rows -= sum(len(unit.rows) for unit in units)
        self.bytes -= sum(unit.weight for unit in units)
        self.settled += len(units)

    def drain(self) -> list[WriteUnit]:
        """Take all that waits. The caller holds the lock."""
        left = list(self._units)
        self._units.clear()
        return left

    def close(self) -> None:
        """Take nothing more, and wake the reader."""
        with self.lock:
            self.closed = True
            self._arrived.notify_all()
            self.changed.notify_all()
            self.changed.hurry.notify_all()

    def pause(self, seconds: float) -> None:
        """Wait, but not once the inbox is closed."""
        with self.lock:
            if not self.closed:
                self._reader_waits = False
                self.changed.wait_for(lambda: self.closed, seconds)


def weigh(rows: tuple[Row, ...]) -> int:
    """About how many bytes rows take in memory. Looks at a part of what is very large."""
    total = _ROW_BYTES * len(rows)
    for row in rows:
        total += _weight(row.data)
        if type(row) is RunRow:
            total += len(row.task) + _weight(row.annotation)
        elif type(row) is SnapshotRow:
            total += len(row.state)
    return total


def _weight(data: Mapping[str, Any]) -> int:
    """This is all that `write` does with the contents of a row, so it is written to be quick."""
    total = 0
    waiting: list[Any] = [data]
    for container in waiting:  # grows meanwhile
        kind = type(container)
        values = container if kind is list or kind is tuple else container.values()
        total += _VALUE_BYTES * len(values)
        for value in values if len(values) <= _MOST_LOOKED_AT else islice(values, _MOST_LOOKED_AT):
            kind = type(value)
            if kind is str or kind is bytes:
                total += len(value)
            elif kind in _SMALL:
                continue
            elif kind is dict or kind is list or kind is tuple or isinstance(value, Mapping):
                waiting += [value] if value and len(waiting) < _MOST_CONTAINERS else []
    return total
