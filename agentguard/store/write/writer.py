"""The one writer of a store: a thread that commits what waits, in groups, and outlasts the database.

While the database cannot be written to (full, locked, read-only, gone, restarting), rows stay in the inbox
and the writer tries again, more slowly each time. When the inbox is full, what arrives is lost and counted.
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
from agentguard.store.db.engine import IMMEDIATE, explain, is_outage
from agentguard.store.db.rows import Row
from agentguard.store.write.batch import Batch, Refusals, apply, prepare
from agentguard.store.write.queue import WriteQueue, WriteUnit, weigh
from agentguard.store.write.receipt import WriteReceipt

_LOG = logging.getLogger(__name__)
_BATCH_ROWS = 2000
_BATCH_BYTES = 8 * 1024 * 1024
_LINGER_S = 0.04
"""How long rows may wait for others to be committed with them, unless somebody waits for them."""
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WriterHealth:
    """How a store is doing, since it was opened by this process.

    Attributes:
        ok: the last attempt to write went well (or there was none yet).
        written: rows that became durable.
        pending: rows that wait.
        pending_bytes: about how much memory they take.
        refused: rows that cannot be stored; ``last_refusal`` says why the last one could not.
        lost: rows that were given up: the queue was full, or the store was closed before they were written.
        last_error: what went wrong last with the database; kept after it came back.
        failing_since: epoch seconds since which it cannot be written to; None while it can.
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
    """Owns the thread. ``place`` opens the database and tells whether it is still the same one."""

    def __init__(self, place: Database, *, max_rows: int, max_bytes: int) -> None:
        self._place = place
        self._inbox = WriteQueue(max_rows=max_rows, max_bytes=max_bytes)
        self._health = WriterHealth()
        self._pause_s = _FIRST_PAUSE_S
        self._give_up = False
        self._thread: threading.Thread | None = None

    def receipt(self) -> WriteReceipt:
        """A receipt for rows that are yet to be queued."""
        return WriteReceipt(self._inbox.changed)

    def write(self, rows: tuple[Row, ...], receipt: WriteReceipt | None = None) -> WriteReceipt:
        """Queue rows. Never raises and never waits for the database."""
        receipt = receipt if receipt is not None else self.receipt()
        try:
            weight = weigh(rows)
        except Exception as error:  # no row at all: the caller's step must go on
            self._count_refused(receipt, len(rows), f"cannot be stored ({type(error).__name__})")
            return receipt
        if self._thread is None:
            self._start()
        lost = self._inbox.put(WriteUnit(rows, weight, receipt))
        if lost:
            with self._inbox.lock:
                self._health = replace(self._health, lost=self._health.lost + len(rows))
                receipt._settle("lost", lost)
        return receipt

    def health(self) -> WriterHealth:
        """The counts now."""
        with self._inbox.lock:
            return replace(self._health, pending=self._inbox.rows, pending_bytes=self._inbox.bytes)

    def flush(self, timeout_s: float | None, *, haste: bool = True) -> bool:
        """Wait for what was queued before now; False if ``timeout_s`` seconds were not enough."""
        with self._inbox.changed:
            until = self._inbox.added
            wait = self._inbox.changed.wait_in_haste if haste else self._inbox.changed.wait_for
            return wait(lambda: self._inbox.settled >= until, timeout_s)

    def close(self, timeout_s: float) -> None:
        """Write what waits, for at most ``timeout_s`` seconds; the rest is lost and counted."""
        self._inbox.close()
        thread = self._thread
        if thread is not None:
            self.flush(timeout_s)
            self._give_up = True
            thread.join(timeout_s)

    def _start(self) -> None:
        with self._inbox.lock:
            if self._thread is None and not self._inbox.closed:
                thread = threading.Thread(target=self._run, name="agentguard-store", daemon=True)
                with contextlib.suppress(RuntimeError):  # no thread to be had now: the next write tries again
                    thread.start()
                    self._thread = thread

    def _run(self) -> None:
        while units := self._inbox.take(max_rows=_BATCH_ROWS, max_bytes=_BATCH_BYTES, linger_s=_LINGER_S):
            self._write_until_done(units)

    def _write_until_done(self, units: list[WriteUnit]) -> None:
        batch = prepare([row for unit in units for row in unit.rows])
        while True:
            try:
                refused = self._commit(batch)
            except (SQLAlchemyError, AgentGuardError, OSError) as error:
                self._fail(error)
            except Exception as error:  # the thread must live on, or nothing is written any more
                self._fail(error)
            else:
                self._succeed(units, refused)
                return
            if self._give_up:
                self._lose(units)
                return
            self._inbox.pause(self._pause_s * random.uniform(0.5, 1.0))  # noqa: S311  spread, not secret
            if self._inbox.closed:
                time.sleep(min(self._pause_s, 0.05))
            self._pause_s = min(self._pause_s * 2, _LONGEST_PAUSE_S)

    def _commit(self, batch: Batch) -> Refusals:
        if not batch.ready:
            return batch.refused
        engine = self._place.engine()
        try:
            refused = _applied(engine, batch, careful=False)
        except (SQLAlchemyError, ValueError, OverflowError) as error:
            if is_outage(error):
                raise
            refused = _applied(engine, batch, careful=True)
        self._place.confirm(engine)
        return refused

    def _fail(self, error: Exception) -> None:
        text = explain(error, self._place.address)
        if self._health.ok:
            _LOG.warning("store %s cannot be written to, rows wait: %s", self._place.address, text)
        with self._inbox.lock:
            since = self._health.failing_since or time.time()
            self._health = replace(self._health, ok=False, last_error=text, failing_since=since)
        self._place.forget()

    def _succeed(self, units: list[WriteUnit], refused: Refusals) -> None:
        self._pause_s = _FIRST_PAUSE_S
        if not self._health.ok:
            _LOG.warning("store %s can be written to again", self._place.address)
        callbacks: list[Callable[[], None]] = []
        with self._inbox.lock:
            total = sum(len(unit.rows) for unit in units)
            self._health = replace(
                self._health,
                ok=True,
                failing_since=None,
                written=self._health.written + total - len(refused),
                refused=self._health.refused + len(refused),
                last_refusal=next(reversed(refused.values()), self._health.last_refusal),
            )
            first = 0
            for unit in units:
                reason = _first_reason(refused, first, len(unit.rows)) if refused else ""
                first += len(unit.rows)
                callbacks += unit.receipt._settle("refused" if reason else "written", reason)
            self._inbox.done(units)
            self._inbox.changed.notify_all()
        for call in callbacks:
            call()

    def _lose(self, units: list[WriteUnit]) -> None:
        callbacks: list[Callable[[], None]] = []
        with self._inbox.lock:
            gone = [*units, *self._inbox.drain()]
            reason = f"the store was closed while it could not be written to: {self._health.last_error}"
            lost = sum(len(unit.rows) for unit in gone)
            self._health = replace(self._health, lost=self._health.lost + lost)
            for unit in gone:
                callbacks += unit.receipt._settle("lost", reason)
            self._inbox.done(gone)
            self._inbox.changed.notify_all()
        for call in callbacks:
            call()

    def _count_refused(self, receipt: WriteReceipt, rows: int, reason: str) -> None:
        with self._inbox.lock:
            refused = self._health.refused + rows
            self._health = replace(self._health, refused=refused, last_refusal=reason)
            receipt._settle("refused", reason)


def _applied(engine: Engine, batch: Batch, *, careful: bool) -> Refusals:
    """Write a batch in a transaction of its own: savepoints only where a row was refused before."""
    with engine.connect().execution_options(**IMMEDIATE) as connection, connection.begin():
        return apply(connection, batch, careful=careful)


def _first_reason(refused: Refusals, first: int, count: int) -> str:
    """Why the first of some rows that was refused was; empty if none was."""
    return next((refused[place] for place in range(first, first + count) if place in refused), "")
