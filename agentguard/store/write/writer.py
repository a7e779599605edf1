"""Writer of a store: a thread that commits queued rows in batches and retries during outages.

While writes fail (database full, locked, read-only, unreachable or in a restart), rows remain in the queue.
The writer retries with exponential backoff. If the queue is full, new rows are lost and counted.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from agentguard.errors import AgentGuardError
from agentguard.store.db.database import Database
from agentguard.store.db.engine import IMMEDIATE_TRANSACTION, describe_error, is_outage
from agentguard.store.db.rows import Row
from agentguard.store.write.batch import Rejections, WriteBatch, apply_batch, prepare_batch
from agentguard.store.write.queue import WriteQueue, WriteUnit, estimate_size
from agentguard.store.write.receipt import WriteReceipt

_LOG = logging.getLogger(__name__)
_BATCH_ROWS = 2000
_BATCH_BYTES = 8 * 1024 * 1024
_MIN_RETRY_DELAY_S = 0.05
_MAX_RETRY_DELAY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterHealth:
    """Health of a store since this process opened it.

    Attributes:
        ok: whether the last write succeeded; True before the first one.
        written: number of durable rows.
        pending: number of queued rows.
        pending_bytes: estimated memory of the queued rows.
        refused: number of rows that cannot be stored; ``last_refusal`` is the reason of the last one.
        lost: number of discarded rows: the queue was full, or the store was closed before the write.
        last_error: the last database error, also after the end of an outage.
        failing_since: start of the current outage in epoch seconds; None if there is no outage.
    """

    ok: bool = True
    written: int = 0
    pending: int = 0
    pending_bytes: int = 0
    refused: int = 0
    last_refusal: str = ""
    lost: int = 0
    last_error: str = ""
    failing_since: float | None = None


class StoreWriter:
    """Write queue and writer thread of a store."""

    def __init__(
        self, database: Database, *, max_rows: int, max_bytes: int, max_commit_delay_s: float
    ) -> None:
        self._database, self._max_commit_delay_s = database, max_commit_delay_s
        self._queue = WriteQueue(max_rows=max_rows, max_bytes=max_bytes)
        self._health = WriterHealth()
        self._retry_delay_s = _MIN_RETRY_DELAY_S
        self._should_give_up = False
        self._thread: threading.Thread | None = None

    def create_receipt(self) -> WriteReceipt:
        """Return a receipt for rows that will be queued later."""
        return WriteReceipt(self._queue.condition)

    def write(self, rows: tuple[Row, ...], receipt: WriteReceipt | None = None) -> WriteReceipt:
        """Queue rows. Never raises and never waits for the database."""
        receipt = receipt if receipt is not None else self.create_receipt()
        try:
            weight = estimate_size(rows)
        except Exception as error:  # not a row; `Store.write` never raises
            self._record_rejection(receipt, len(rows), f"cannot be stored ({type(error).__name__})")
            return receipt
        if self._thread is None:
            self._start_thread()
        loss_reason = self._queue.put(WriteUnit(rows, weight, receipt))
        if loss_reason:
            with self._queue.lock:
                self._health = replace(self._health, lost=self._health.lost + len(rows))
                receipt.settle("lost", loss_reason)
        return receipt

    def get_health(self) -> WriterHealth:
        """Return the current counts."""
        with self._queue.lock:
            return replace(self._health, pending=self._queue.row_count, pending_bytes=self._queue.byte_count)

    def flush(self, timeout_s: float | None, *, immediate: bool = True) -> bool:
        """Wait for the rows queued so far; return False on timeout."""
        with self._queue.condition:
            until = self._queue.added_count
            wait = self._queue.condition.wait_with_flush if immediate else self._queue.condition.wait_for
            return wait(lambda: self._queue.settled_count >= until, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write the pending rows for at most ``timeout_s`` seconds; the rest is lost and counted."""
        self._queue.close()
        thread = self._thread
        if thread is not None:
            self.flush(timeout_s)
            self._should_give_up = True
            thread.join(timeout_s)

    def _start_thread(self) -> None:
        with self._queue.lock:
            if self._thread is None and not self._queue.is_closed:
                thread = threading.Thread(target=self._run, name="agentguard-store", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread available: the next write retries
                    thread.start()
                    self._thread = thread

    def _run(self) -> None:
        while units := self._queue.take(
            max_rows=_BATCH_ROWS, max_bytes=_BATCH_BYTES, max_delay_s=self._max_commit_delay_s
        ):
            self._write_until_done(units)

    def _write_until_done(self, units: list[WriteUnit]) -> None:
        batch = prepare_batch([row for unit in units for row in unit.rows])
        while True:
            try:
                rejections = self._commit(batch)
            except (SQLAlchemyError, AgentGuardError, OSError) as error:
                self._record_failure(error)
            except Exception as error:  # the writer thread must survive any error
                self._record_failure(error)
            else:
                self._record_success(units, rejections)
                return
            if self._should_give_up:
                self._discard(units)
                return
            self._queue.pause(self._retry_delay_s * random.uniform(0.5, 1.0))  # noqa: S311  spread, not secret
            if self._queue.is_closed:
                time.sleep(min(self._retry_delay_s, 0.05))
            self._retry_delay_s = min(self._retry_delay_s * 2, _MAX_RETRY_DELAY_S)

    def _commit(self, batch: WriteBatch) -> Rejections:
        if not batch.rows:
            return batch.rejections
        engine = self._database.get_engine()
        try:
            rejections = _write_batch(engine, batch, use_savepoints=False)
        except (SQLAlchemyError, ValueError, OverflowError) as error:
            if is_outage(error):
                raise
            rejections = _write_batch(engine, batch, use_savepoints=True)
        self._database.verify_file(engine)
        return rejections

    def _record_failure(self, error: Exception) -> None:
        text = describe_error(error, self._database.address)
        if self._health.ok:
            _LOG.warning("writes to store %s fail; rows stay queued: %s", self._database.address, text)
        with self._queue.lock:
            since = self._health.failing_since or time.time()
            self._health = replace(self._health, ok=False, last_error=text, failing_since=since)
        self._database.invalidate()

    def _record_success(self, units: list[WriteUnit], rejections: Rejections) -> None:
        self._retry_delay_s = _MIN_RETRY_DELAY_S
        if not self._health.ok:
            _LOG.warning("writes to store %s succeed again", self._database.address)
        callbacks: list[Callable[[], None]] = []
        with self._queue.lock:
            total = sum(len(unit.rows) for unit in units)
            self._health = replace(
                self._health,
                ok=True,
                failing_since=None,
                written=self._health.written + total - len(rejections),
                refused=self._health.refused + len(rejections),
                last_refusal=next(reversed(rejections.values()), self._health.last_refusal),
            )
            first = 0
            for unit in units:
                reason = _find_first_reason(rejections, first, len(unit.rows)) if rejections else ""
                first += len(unit.rows)
                callbacks += unit.receipt.settle("refused" if reason else "written", reason)
            self._queue.release(units)
            self._queue.condition.notify_all()
        for call in callbacks:
            call()

    def _discard(self, units: list[WriteUnit]) -> None:
        callbacks: list[Callable[[], None]] = []
        with self._queue.lock:
            discarded_units = [*units, *self._queue.drain()]
            reason = f"the store was closed while writes failed: {self._health.last_error}"
            lost_rows = sum(len(unit.rows) for unit in discarded_units)
            self._health = replace(self._health, lost=self._health.lost + lost_rows)
            for unit in discarded_units:
                callbacks += unit.receipt.settle("lost", reason)
            self._queue.release(discarded_units)
            self._queue.condition.notify_all()
        for call in callbacks:
            call()

    def _record_rejection(self, receipt: WriteReceipt, rows: int, reason: str) -> None:
        with self._queue.lock:
            refused_count = self._health.refused + rows
            self._health = replace(self._health, refused=refused_count, last_refusal=reason)
            receipt.settle("refused", reason)


def _write_batch(engine: Engine, batch: WriteBatch, *, use_savepoints: bool) -> Rejections:
    """Write a batch in its own transaction; use savepoints only after a rejected row."""
    with engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection, connection.begin():
        return apply_batch(connection, batch, use_savepoints=use_savepoints)


def _find_first_reason(rejections: Rejections, first: int, count: int) -> str:
    """Return the reason of the first rejected row in a range; empty if no row was rejected."""
    return next((rejections[place] for place in range(first, first + count) if place in rejections), "")


class UnitOfWork(threading.local):
    """Context manager that gathers the rows of a thread and queues them as one unit at its end.

    A crash must not split the rows of one event (recovery, abandoned branch, next step). In nested blocks,
    the outermost one queues the rows. The rows are queued after an exception, too.
    """

    def __init__(self, writer: StoreWriter) -> None:
        self._writer = writer
        self._depth = 0
        self._rows: list[Row] = []
        self._receipt: WriteReceipt | None = None

    def write(self, rows: tuple[Row, ...]) -> WriteReceipt:
        """Queue rows; inside a block, gather them until its end. The rows of a block have one receipt."""
        if not self._depth:
            return self._writer.write(rows)
        self._receipt = self._receipt or self._writer.create_receipt()
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
