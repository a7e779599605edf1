"""Rows of several writes as one unit: they become durable together."""

from __future__ import annotations

import threading

from agentguard.store.db.rows import Row
from agentguard.store.write.receipt import WriteReceipt
from agentguard.store.write.writer import StoreWriter


class UnitOfWork(threading.local):
    """Gathers what a thread writes while it is inside, and queues it as one write when it comes out.

    What a run does in one event (its recovery, the line that is left, the next step) is of one piece: a crash
    must not leave half of it behind. Blocks may be nested; the outermost writes. An exception writes, too:
    what was said to be written was.
    """

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self._depth = 0
        self._rows: list[Row] = []
        self._receipt: WriteReceipt | None = None

    def write(self, rows: tuple[Row, ...]) -> WriteReceipt:
        """Queue rows, or keep them until this thread comes out; all of them share one receipt."""
        if not self._depth:
            return self._writer.write(rows)
        self._receipt = self._receipt or self._writer.receipt()
        self._rows += rows
        return self._receipt

    def __enter__(self) -> None:
        self._depth += 1

    def __exit__(self, *_: object) -> None:
        self._depth -= 1
        if not self._depth and self._receipt is not None:
            rows, receipt = tuple(self._rows), self._receipt
            self._rows, self._receipt = [], None
            self._writer.write(rows, receipt)
