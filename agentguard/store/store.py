"""Public interface of the store: write rows, query them, claim effects, delete runs."""

from __future__ import annotations

import atexit
import os
import time
import weakref
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Protocol

from sqlalchemy.exc import SQLAlchemyError

from agentguard.errors import StoreError, StoreTimeout
from agentguard.store.db import rows as r
from agentguard.store.db.database import Database
from agentguard.store.db.database_address import DatabaseAddress, resolve_address
from agentguard.store.db.engine import build_engine, to_unavailable_error
from agentguard.store.db.migration import migrate_tables
from agentguard.store.options import StoreOptions
from agentguard.store.read.change_detection import ChangeDetector
from agentguard.store.read.queries import QueryExecutor, StoreQueries
from agentguard.store.read.summary_queries import refresh_summaries
from agentguard.store.trajectory_mapping import build_run_rows
from agentguard.store.write.effect_claims import EffectClaims, SettledState, StoredEffectClaim
from agentguard.store.write.error_schema_update import SchemaTransform, SchemaVersions, update_schemata
from agentguard.store.write.receipt import WriteReceipt
from agentguard.store.write.retention import DeletionResult, Retention, RetentionLimits
from agentguard.store.write.search_index import update_search_index
from agentguard.store.write.writer import StoreWriter, UnitOfWork, WriterHealth
from agentguard.trajectory.model import Record, Trajectory

_CLOSE_TIMEOUT_S = 5.0
_FLUSH_TIMEOUT_S = 30.0
_PRODUCER_TIMEOUT_S = 30.0

_OPEN_STORES: weakref.WeakSet[Store] = weakref.WeakSet()
_INHERITED_RESOURCES: list[object] = []


class RowProducer(Protocol):
    """Background work that writes rows, for example the diagnosis of runs that have ended."""

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until all work is done; return False after the timeout."""
        ...


class Store(StoreQueries):
    """Durable storage of rows; safe to share between threads, and between processes on one database.

    - `write` never waits for the database and never raises.
    - All other methods wait for the database and raise StoreUnavailable if it cannot be used. In asyncio
      code, call them with ``asyncio.to_thread``.
    - Queries return only committed rows: call `flush` before you query rows that you have just written.
    """

    def __init__(self, address: DatabaseAddress, options: StoreOptions) -> None:
        """Create the store without connecting; use `open` instead."""
        self.address, self.options = address, options
        self._build_components()
        atexit.register(self.close)
        _OPEN_STORES.add(self)

    def _build_components(self) -> None:
        o = self.options
        self._database = Database(self.address, synchronous=o.synchronous, lock_timeout_s=o.lock_timeout_s)
        self._writer = StoreWriter(
            self._database,
            max_rows=o.max_rows,
            max_bytes=o.max_bytes,
            max_commit_delay_s=o.max_commit_delay_s,
        )
        self._unit_of_work = UnitOfWork(self._writer)
        self._producers: weakref.WeakSet[RowProducer] = weakref.WeakSet()
        self._executor = QueryExecutor(self._database)
        self._retention = Retention(self._database)
        # Without its claim, an effect could run twice after a power failure. So claims wait for the disk.
        self._claims_database = Database(self.address, synchronous="full", lock_timeout_s=o.lock_timeout_s)
        self._effect_claims = EffectClaims(self._claims_database, self._database)

    @classmethod
    def open(
        cls, url: str | Path | None = None, *, connect: bool = True, options: StoreOptions | None = None
    ) -> Store:
        """Open a store, and create its tables if the database has none.

        Args:
            url: a path, ``sqlite:///path`` or ``postgresql://user:password@host/name``. The default is the
                environment variable ``AGENTGUARD_STORE``, then ``.agentguard/store.db``.
            connect: connect to the database now. If False, the writer retries until it can connect.
            options: limits and durability.

        Raises:
            ConfigError: the address is not that of a supported database.
            MissingExtra: the database driver is not installed.
            StoreVersion: the tables are of another version of agentguard.
            StoreUnavailable: the database cannot be used now (only with ``connect``).
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
        """Migrate the tables of a store; return its address and the versions before and after.

        Then refresh the run summaries in several transactions. After an interruption, call this method again.

        Raises:
            StoreVersion: the tables are newer than this agentguard.
            StoreError: the database file does not exist.
            StoreUnavailable: the database cannot be used now.
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
        """Queue rows, which the writer commits together. Never raises and never accesses the disk."""
        return self._unit_of_work.write(rows)

    def unit_of_work(self) -> AbstractContextManager[None]:
        """Return a context manager that commits all rows this thread writes in it, or none.

        The rows are queued when the block ends. `flush` and receipts do not complete before that.
        """
        return self._unit_of_work

    def write_run(self, record: Record | Trajectory, *, tenant: str = "") -> WriteReceipt:
        """Queue a whole run; it replaces the stored run of the same id."""
        full_record = record if isinstance(record, Record) else Record(trajectory=record)
        return self.write(*build_run_rows(full_record, tenant=tenant))

    def get_health(self) -> WriterHealth:
        """Return the counts of written, pending, refused and lost rows, and the last database error."""
        return self._writer.get_health()

    def flush(self, timeout_s: float | None = None, *, immediate: bool = True) -> None:
        """Wait until all rows queued so far are settled. Raises StoreTimeout after ``timeout_s`` seconds.

        With ``immediate`` the writer commits them at once. Without it, the writer first gathers rows for a
        larger batch, which saves transactions for callers that flush often.
        """
        if not self._writer.flush(timeout_s, immediate=immediate):
            raise StoreTimeout(f"rows are still queued after {timeout_s} s: {self.get_health().last_error}")

    def register_producer(self, producer: RowProducer) -> None:
        """Register a producer for which `close` waits, so that its last rows are written.

        The store has only a weak reference to the producer.
        """
        self._producers.add(producer)

    def close(self, timeout_s: float = _CLOSE_TIMEOUT_S) -> None:
        """Write the pending rows for at most ``timeout_s`` seconds; the rest is lost and counted.

        Before that, wait at most 30 s for the registered producers.
        """
        atexit.unregister(self.close)
        deadline = time.monotonic() + _PRODUCER_TIMEOUT_S
        for producer in tuple(self._producers):
            producer.flush(max(0.0, deadline - time.monotonic()))
        self._writer.close(timeout_s)
        self._database.invalidate()
        self._claims_database.invalidate()

    def rebuild_run_summaries(self) -> int:
        """Rebuild the summaries of all runs from their stored rows; return the number of runs.

        The writer updates summaries, so this is needed only to repair them.

        Raises:
            StoreUnavailable: the database cannot be used now.
        """
        self.flush(_FLUSH_TIMEOUT_S)
        try:
            return refresh_summaries(self._database.get_engine(), rebuild_all=True)
        except (SQLAlchemyError, OSError) as error:
            raise to_unavailable_error(error, self.address) from None

    def update_search_index(
        self, *, min_age_s: float = 0.0, timeout_s: float | None = None, tenant: str | None = None
    ) -> int:
        """Add the words of changed runs to the index of `search_steps`; return the number of runs.

        Until then, a search reads the steps of these runs. The viewer calls this method in the background. An
        interruption loses no data.

        Args:
            min_age_s: minimum time in seconds since the last change of a run.
            timeout_s: time after which the update ends; some runs may remain.
            tenant: only runs of this tenant; None means all tenants.

        Raises:
            StoreError: the SQLite library has no FTS5.
            StoreUnavailable: the database cannot be used now.
        """
        self.flush(_FLUSH_TIMEOUT_S)
        try:
            return update_search_index(
                self._database.get_engine(), min_age_s=min_age_s, timeout_s=timeout_s, tenant=tenant
            )
        except (SQLAlchemyError, OSError) as error:
            raise to_unavailable_error(error, self.address) from None

    def open_change_detector(self) -> ChangeDetector:
        """Return a detector for polling the store for changes at low cost; the caller closes it."""
        return ChangeDetector(self._database)

    # -- effects

    def claim(self, effect: r.EffectRow) -> StoredEffectClaim:
        """Claim an effect before it is executed; execute it only if the claim is ``"new"``.

        Raises:
            StoreUnavailable: the claim could not be made durable: do not execute the effect.
            StoreError: the row cannot be stored.
        """
        return self._effect_claims.claim(effect)

    def settle(self, effect: r.EffectRow, state: SettledState, *, result: r.RowData | None = None) -> bool:
        """Record the state of a claimed effect; ``result`` becomes its data.

        Returns False if the effect was never claimed or already had this state.
        """
        return self._effect_claims.settle(effect, state, result)

    def update_schemata(
        self, transform: SchemaTransform, *, known_versions: SchemaVersions | None = None, tenant: str = ""
    ) -> SchemaVersions:
        """Read, transform and write schemata atomically (`agentguard.store.write.error_schema_update`)."""
        return update_schemata(self._database, transform, known_versions=known_versions or {}, tenant=tenant)

    # -- deletion

    def delete_run(self, run_id: str, *, tenant: str = "") -> DeletionResult:
        """Delete a run and all its rows, including its effect claims."""
        self.flush(_FLUSH_TIMEOUT_S)
        return self._retention.delete_run(run_id, tenant)

    def delete_saved_view(self, name: str, *, tenant: str = "") -> bool:
        """Delete a saved view of the list of runs; return False if no view has the name."""
        self.flush(_FLUSH_TIMEOUT_S)
        return self._retention.delete_saved_view(name, tenant)

    def delete_tenant(self, tenant: str) -> DeletionResult:
        """Delete all rows of a tenant, including its schemata."""
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
        """Delete runs beyond the given age and size (`agentguard.store.write.retention.RetentionLimits`)."""
        limits = RetentionLimits(
            older_than_s=older_than_s, max_bytes=max_bytes, keep_failed=keep_failed, tenant=tenant
        )
        self.flush(_FLUSH_TIMEOUT_S)
        return self._retention.prune(limits)

    def delete_expired_shared_state(self, *, session_ttl_s: float, hint_ttl_s: float) -> int:
        """Delete shared sessions and hints not renewed within their TTL; return the number of rows.

        Raises:
            StoreUnavailable: the database cannot be used now.
        """
        return self._retention.delete_expired_shared_state(session_ttl_s=session_ttl_s, hint_ttl_s=hint_ttl_s)


def _reopen_after_fork() -> None:
    """Give each open store a new writer and new connections in a forked process.

    The child has no threads of the parent and must not use its connections. The old objects remain referenced
    and unused, since their deletion would send data on the parent's connections. The parent writes its
    pending rows.
    """
    for store in list(_OPEN_STORES):
        _INHERITED_RESOURCES.append((store._database, store._claims_database, store._writer))
        store._build_components()


os.register_at_fork(after_in_child=_reopen_after_fork)
