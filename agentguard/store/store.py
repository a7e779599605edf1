"""The store as others use it: write rows, ask for them, claim effects, delete."""

from __future__ import annotations

import atexit
import os
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Literal

from sqlalchemy.exc import SQLAlchemyError

from agentguard.errors import StoreError, StoreTimeout
from agentguard.store.db import rows as r
from agentguard.store.db.database import Database
from agentguard.store.db.engine import make_engine, unavailable
from agentguard.store.db.migration import migrate
from agentguard.store.db.url import Address, resolve
from agentguard.store.options import StoreOptions
from agentguard.store.read.change_detection import ChangeDetector
from agentguard.store.read.queries import StoreQueries
from agentguard.store.read.query_executor import QueryExecutor
from agentguard.store.read.run_summaries import refresh
from agentguard.store.trajectory_mapping import run_rows
from agentguard.store.write.effect_claims import EffectClaims, StoredEffectClaim
from agentguard.store.write.receipt import WriteReceipt
from agentguard.store.write.retention import Deleted, Retention, RetentionLimits
from agentguard.store.write.schema_update import Known, Work, change_schemata
from agentguard.store.write.unit_of_work import UnitOfWork
from agentguard.store.write.writer import StoreWriter, WriterHealth
from agentguard.trajectory.model import Record, Trajectory

_CLOSE_S = 5.0
_FLUSH_S = 30.0

_OPEN: weakref.WeakSet[Store] = weakref.WeakSet()
_INHERITED: list[object] = []


class Store(StoreQueries):
    """Rows on disk; safe to use from many threads, and from several processes at once.

    `write` never waits for the database and never raises. Everything else answers from the database, waits
    for it, and raises StoreUnavailable where it cannot be used now; in asyncio code call it through
    ``asyncio.to_thread``. Questions are answered from what is durable: `flush` first to see one's own rows.
    """

    def __init__(self, address: Address, options: StoreOptions) -> None:
        """Use `open`. Nothing is connected here."""
        self.address, self.options = address, options
        self._build()
        atexit.register(self.close)
        _OPEN.add(self)

    def _build(self) -> None:
        o = self.options
        self._place = Database(self.address, synchronous=o.synchronous, busy_s=o.busy_s)
        self._writer = StoreWriter(self._place, max_rows=o.max_rows, max_bytes=o.max_bytes)
        self._together = UnitOfWork(self._writer)
        self._reader = QueryExecutor(self._place)
        self._retention = Retention(self._place)
        # A claim that a power cut forgets would let an effect happen twice: it always waits for the disk.
        self._claims = Database(self.address, synchronous="full", busy_s=o.busy_s)
        self._ledger = EffectClaims(self._claims)

    @classmethod
    def open(
        cls, url: str | Path | None = None, *, connect: bool = True, options: StoreOptions | None = None
    ) -> Store:
        """Open a store, and make its tables if the database has none.

        Args:
            url: a path, ``sqlite:///path`` or ``postgresql://user:password@host/name``; None: what the
                environment variable ``AGENTGUARD_STORE`` says, else ``.agentguard/store.db``.
            connect: try the database now; if False, a database that cannot be reached is waited for.
            options: limits and durability.

        Raises:
            ConfigError: no address of a database that can be used.
            MissingExtra: its driver is not installed.
            StoreVersion: its tables are of another version of agentguard.
            StoreUnavailable: it cannot be used now (only with ``connect``).
        """
        store = cls(resolve(url), options or StoreOptions())
        if connect:
            try:
                store._place.engine()
            except (SQLAlchemyError, OSError) as error:
                store.close()
                raise unavailable(error, store.address) from None
            except BaseException:
                store.close()
                raise
        return store

    @staticmethod
    def migrate(url: str | Path | None = None) -> tuple[Address, str, str]:
        """Bring the tables of a store to this version: its address, the versions before and after.

        What lists show of its runs is made in several transactions afterwards; where that is broken off, it
        is done by doing this again.

        Raises StoreVersion where they are newer, StoreError where there is no file, StoreUnavailable.
        """
        address = resolve(url)
        if address.path is not None and not address.path.exists():
            raise StoreError(f"there is no store {address}")
        engine = make_engine(address)
        try:
            versions = migrate(engine, address)
            refresh(engine)
            return address, *versions
        except (SQLAlchemyError, OSError) as error:
            raise unavailable(error, address) from None
        finally:
            engine.dispose()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # -- writing

    def write(self, *rows: r.Row) -> WriteReceipt:
        """Queue rows; they become durable together, soon. Never raises and never touches the disk."""
        return self._together.write(rows)

    def unit_of_work(self) -> AbstractContextManager[None]:
        """What this thread writes inside of it becomes durable as one: all of it, or nothing.

        Rows are queued when the block ends; `flush` and receipts have to wait until then.
        """
        return self._together

    def write_run(self, record: Record | Trajectory, *, tenant: str = "") -> WriteReceipt:
        """Queue a whole run; it replaces what is stored under its id."""
        whole = record if isinstance(record, Record) else Record(trajectory=record)
        return self.write(*run_rows(whole, tenant=tenant))

    def health(self) -> WriterHealth:
        """How many rows were written, wait, were refused or lost, and what is wrong with the database."""
        return self._writer.health()

    def flush(self, timeout_s: float | None = None, *, haste: bool = True) -> None:
        """Wait for the rows written before. Raises StoreTimeout after ``timeout_s`` seconds.

        With ``haste`` they are written at once; else they are gathered first, as those are for which nobody
        waits: for who flushes often, as it spares the database transactions.
        """
        if not self._writer.flush(timeout_s, haste=haste):
            raise StoreTimeout(
                f"rows still wait to be written after {timeout_s} s: {self.health().last_error}"
            )

    def close(self, timeout_s: float = _CLOSE_S) -> None:
        """Write what waits, for at most ``timeout_s`` seconds; what is left then is lost and counted."""
        atexit.unregister(self.close)
        self._writer.close(timeout_s)
        self._place.forget()
        self._claims.forget()

    def refresh_overviews(self) -> int:
        """Make what lists show of each run anew, from all that is stored of it; returns how many runs.

        Raises StoreUnavailable. For a store whose overviews are in doubt: writing keeps them up by itself.
        """
        self.flush(_FLUSH_S)
        try:
            return refresh(self._place.engine(), every=True)
        except (SQLAlchemyError, OSError) as error:
            raise unavailable(error, self.address) from None

    def pulse(self) -> ChangeDetector:
        """Tells, cheaply and again and again, whether anything was written; close it afterwards."""
        return ChangeDetector(self._place)

    # -- effects

    def claim(self, effect: r.EffectRow) -> StoredEffectClaim:
        """Claim an effect before it is carried out; only a claim that is ``"new"`` allows that.

        Raises:
            StoreUnavailable: the claim could not be made durable: do not carry the effect out.
            StoreError: the row cannot be stored.
        """
        return self._ledger.claim(effect)

    def settle(
        self, effect: r.EffectRow, state: Literal["done", "compensated"], *, result: r.Data | None = None
    ) -> bool:
        """Note that a claimed effect is done or compensated; ``result`` becomes its data.

        Returns False if it was never claimed, or had got that far before.
        """
        return self._ledger.settle(effect, state, result)

    def change_schemata(self, work: Work, *, known: Known | None = None, tenant: str = "") -> Known:
        """Read, change and write schemata as one; see `agentguard.store.write.schema_update.change_schemata`."""
        return change_schemata(self._place, work, known=known or {}, tenant=tenant)

    # -- forgetting

    def delete_run(self, run_id: str, *, tenant: str = "") -> Deleted:
        """Remove a run and everything that belongs to it, its claims of effects among it."""
        self.flush(_FLUSH_S)
        return self._retention.delete_run(run_id, tenant)

    def delete_tenant(self, tenant: str) -> Deleted:
        """Remove everything of a tenant, its schemata among it."""
        self.flush(_FLUSH_S)
        return self._retention.delete_tenant(tenant)

    def prune(
        self,
        *,
        older_than_s: float | None = None,
        max_bytes: int | None = None,
        keep_failed: bool = False,
        tenant: str | None = None,
    ) -> Deleted:
        """Remove what is older, and what is too much (`agentguard.store.write.retention.RetentionLimits`)."""
        limits = RetentionLimits(
            older_than_s=older_than_s, max_bytes=max_bytes, keep_failed=keep_failed, tenant=tenant
        )
        self.flush(_FLUSH_S)
        return self._retention.prune(limits)

    def forget_shared(self, *, sessions_s: float, hints_s: float) -> int:
        """Remove shared conversations and hints that nobody has renewed for so long; returns how many.

        Raises StoreUnavailable.
        """
        return self._retention.forget_shared(sessions_s=sessions_s, hints_s=hints_s)


def _after_fork() -> None:
    """A forked process has neither the writer's thread nor any right to its parent's connections.

    It gets new ones. The old are kept, unused, as closing them would speak to the database in the parent's
    name. Rows that waited are the parent's to write.
    """
    for store in list(_OPEN):
        _INHERITED.append((store._place, store._claims, store._writer))
        store._build()


os.register_at_fork(after_in_child=_after_fork)
