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
from agentguard.store.db.engine import build_engine, to_unavailable_error
from agentguard.store.db.migration import migrate_tables
from agentguard.store.db.url import DatabaseAddress, resolve_address
from agentguard.store.options import StoreOptions
from agentguard.store.read.change_detection import ChangeDetector
from agentguard.store.read.queries import QueryExecutor, StoreQueries
from agentguard.store.read.run_summaries import refresh_summaries
from agentguard.store.trajectory_mapping import build_run_rows
from agentguard.store.write.effect_claims import EffectClaims, StoredEffectClaim
from agentguard.store.write.receipt import WriteReceipt
from agentguard.store.write.retention import DeletionResult, Retention, RetentionLimits
from agentguard.store.write.schema_update import SchemaTransform, SchemaVersions, update_schemata
from agentguard.store.write.writer import StoreWriter, UnitOfWork, WriterHealth
from agentguard.trajectory.model import Record, Trajectory

_CLOSE_TIMEOUT_S = 5.0
_FLUSH_TIMEOUT_S = 30.0

_OPEN_STORES: weakref.WeakSet[Store] = weakref.WeakSet()
_INHERITED_RESOURCES: list[object] = []


class Store(StoreQueries):
    """Rows on disk; safe to use from many threads, and from several processes at once.

    `write` never waits for the database and never raises. Everything else answers from the database, waits
    for it, and raises StoreUnavailable where it cannot be used now; in asyncio code call it through
    ``asyncio.to_thread``. Questions are answered from what is durable: `flush` first to see one's own rows.
    """

    def __init__(self, address: DatabaseAddress, options: StoreOptions) -> None:
        """Use `open`. Nothing is connected here."""
        self.address, self.options = address, options
        self._build_components()
        atexit.register(self.close)
        _OPEN_STORES.add(self)

    def _build_components(self) -> None:
        o = self.options
        self._database = Database(self.address, synchronous=o.synchronous, lock_timeout_s=o.lock_timeout_s)
        self._writer = StoreWriter(self._database, max_rows=o.max_rows, max_bytes=o.max_bytes)
        self._unit_of_work = UnitOfWork(self._writer)
        self._executor = QueryExecutor(self._database)
        self._retention = Retention(self._database)
        # A claim that a power cut forgets would let an effect happen twice: it always waits for the disk.
        self._claims_database = Database(self.address, synchronous="full", lock_timeout_s=o.lock_timeout_s)
        self._effect_claims = EffectClaims(self._claims_database)

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
        store = cls(resolve_address(url), options or StoreOptions())
        if connect:
            try:
                store._database.get_engine()
            except (SQLAlchemyError, OSError) as error:
                store.close()
                raise to_unavailable_error(error, store.address) from None
            except BaseException:
                store.close()
                raise
        return store

    @staticmethod
    def migrate(url: str | Path | None = None) -> tuple[DatabaseAddress, str, str]:
        """Bring the tables of a store to this version: its address, the versions before and after.

        What lists show of its runs is made in several transactions afterwards; where that is broken off, it
        is done by doing this again.

        Raises StoreVersion where they are newer, StoreError where there is no file, StoreUnavailable.
        """
        address = resolve_address(url)
        if address.path is not None and not address.path.exists():
            raise StoreError(f"there is no store {address}")
        engine = build_engine(address)
        try:
            versions = migrate_tables(engine, address)
            refresh_summaries(engine)
            return address, *versions
        except (SQLAlchemyError, OSError) as error:
            raise to_unavailable_error(error, address) from None
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
        return self._unit_of_work.write(rows)

    def unit_of_work(self) -> AbstractContextManager[None]:
        """What this thread writes inside of it becomes durable as one: all of it, or nothing.

        Rows are queued when the block ends; `flush` and receipts have to wait until then.
        """
        return self._unit_of_work

    def write_run(self, record: Record | Trajectory, *, tenant: str = "") -> WriteReceipt:
        """Queue a whole run; it replaces what is stored under its id."""
        whole = record if isinstance(record, Record) else Record(trajectory=record)
        return self.write(*build_run_rows(whole, tenant=tenant))

    def get_health(self) -> WriterHealth:
        """How many rows were written, wait, were refused or lost, and what is wrong with the database."""
        return self._writer.get_health()

    def flush(self, timeout_s: float | None = None, *, immediate: bool = True) -> None:
        """Wait for the rows written before. Raises StoreTimeout after ``timeout_s`` seconds.

        With ``haste`` they are written at once; else they are gathered first, as those are for which nobody
        waits: for who flushes often, as it spares the database transactions.
        """
        if not self._writer.flush(timeout_s, immediate=immediate):
            raise StoreTimeout(
                f"rows still wait to be written after {timeout_s} s: {self.get_health().last_error}"
            )

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Write what waits, for at most ``timeout_s`` seconds; what is left then is lost and counted."""
        atexit.unregister(self.close)
        self._writer.close(timeout_s)
        self._database.invalidate()
        self._claims_database.invalidate()

    def rebuild_run_summaries(self) -> int:
        """Make what lists show of each run anew, from all that is stored of it; returns how many runs.

        Raises StoreUnavailable. For a store whose overviews are in doubt: writing keeps them up by itself.
        """
        self.flush(_FLUSH_TIMEOUT_S)
        try:
            return refresh_summaries(self._database.get_engine(), rebuild_all=True)
        except (SQLAlchemyError, OSError) as error:
            raise to_unavailable_error(error, self.address) from None

    def open_change_detector(self) -> ChangeDetector:
        """Tells, cheaply and again and again, whether anything was written; close it afterwards."""
        return ChangeDetector(self._database)

    # -- effects

    def claim(self, effect: r.EffectRow) -> StoredEffectClaim:
        """Claim an effect before it is carried out; only a claim that is ``"new"`` allows that.

        Raises:
            StoreUnavailable: the claim could not be made durable: do not carry the effect out.
            StoreError: the row cannot be stored.
        """
        return self._effect_claims.claim(effect)

    def settle(
        self, effect: r.EffectRow, state: Literal["done", "compensated"], *, result: r.RowData | None = None
    ) -> bool:
        """Note that a claimed effect is done or compensated; ``result`` becomes its data.

        Returns False if it was never claimed, or had got that far before.
        """
        return self._effect_claims.settle(effect, state, result)

    def update_schemata(
        self, transform: SchemaTransform, *, known_versions: SchemaVersions | None = None, tenant: str = ""
    ) -> SchemaVersions:
        """Read, change and write schemata as one; see
        `agentguard.store.write.schema_update.update_schemata`.
        """
        return update_schemata(self._database, transform, known_versions=known_versions or {}, tenant=tenant)

    # -- forgetting

    def delete_run(self, run_id: str, *, tenant: str = "") -> DeletionResult:
        """Remove a run and everything that belongs to it, its claims of effects among it."""
        self.flush(_FLUSH_TIMEOUT_S)
        return self._retention.delete_run(run_id, tenant)

    def delete_tenant(self, tenant: str) -> DeletionResult:
        """Remove everything of a tenant, its schemata among it."""
        self.flush(_FLUSH_TIMEOUT_S)
        return self._retention.delete_tenant(tenant)

    def prune(
        self,
        *,
        older_than_s: float | None = None,
        max_bytes: int | None = None,
        keep_failed: bool = False,
        tenant: str | None = None,
    ) -> DeletionResult:
        """Remove what is older, and what is too much (`agentguard.store.write.retention.RetentionLimits`)."""
        limits = RetentionLimits(
            older_than_s=older_than_s, max_bytes=max_bytes, keep_failed=keep_failed, tenant=tenant
        )
        self.flush(_FLUSH_TIMEOUT_S)
        return self._retention.prune(limits)

    def delete_expired_shared_state(self, *, session_ttl_s: float, hint_ttl_s: float) -> int:
        """Remove shared conversations and hints that nobody has renewed for so long; returns how many.

        Raises StoreUnavailable.
        """
        return self._retention.delete_expired_shared_state(session_ttl_s=session_ttl_s, hint_ttl_s=hint_ttl_s)


def _reopen_after_fork() -> None:
    """A forked process has neither the writer's thread nor any right to its parent's connections.

    It gets new ones. The old are kept, unused, as closing them would speak to the database in the parent's
    name. Rows that waited are the parent's to write.
    """
    for store in list(_OPEN_STORES):
        _INHERITED_RESOURCES.append((store._database, store._claims_database, store._writer))
        store._build_components()


os.register_at_fork(after_in_child=_reopen_after_fork)
