"""Connection of a store to its database: opens it on demand, creates the tables, reopens it after a loss."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from agentguard.errors import StoreUnavailable
from agentguard.store.db.database_address import DatabaseAddress
from agentguard.store.db.engine import SynchronousMode, build_engine
from agentguard.store.db.migration import ensure_tables


class Database:
    """Provider of an engine whose tables exist; safe to use from any thread.

    A process that has a SQLite file open can still write to it after its deletion; those rows are lost. So
    the file is checked before and after each transaction. Rows count as written only if it still exists.

    Args:
        address: address of the database.
        synchronous: durability of commits in SQLite; see `build_engine`.
        lock_timeout_s: seconds to wait for a database lock.
    """

    def __init__(
        self,
        address: DatabaseAddress,
        *,
        synchronous: SynchronousMode = "normal",
        lock_timeout_s: float = 5.0,
    ) -> None:
        self.address = address
        self._synchronous, self._lock_timeout_s = synchronous, lock_timeout_s
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._file_identity: tuple[int, int] | None = None

    def get_engine(self) -> Engine:
        """Return the engine; open the database if it is not open or its file was replaced.

        Raises:
            StoreVersion: the tables are of another version.
            sqlalchemy.exc.SQLAlchemyError, OSError: the database cannot be used now.
        """
        with self._lock:
            if self._engine is not None and self._file_identity != _get_file_identity(self.address.path):
                self._dispose()
            if self._engine is None:
                engine = build_engine(
                    self.address, synchronous=self._synchronous, lock_timeout_s=self._lock_timeout_s
                )
                try:
                    ensure_tables(engine, self.address)
                except BaseException:
                    engine.dispose()
                    raise
                self._engine, self._file_identity = engine, _get_file_identity(self.address.path)
            return self._engine

    def verify_file(self, engine: Engine) -> None:
        """Raise StoreUnavailable if the file that ``engine`` wrote to was removed or replaced."""
        with self._lock:
            same = self._engine is engine and self._file_identity == _get_file_identity(self.address.path)
        if not same:
            raise StoreUnavailable(f"store {self.address}: the file was removed or replaced")

    def invalidate(self) -> None:
        """Dispose of the engine after an error, so that the next call of `get_engine` reconnects."""
        with self._lock:
            self._dispose()

    def _dispose(self) -> None:
        if self._engine is not None:
            # A connection in use returns to the disposed pool later, which would keep it open.
            event.listen(self._engine.pool, "checkin", _close_connection)
            self._engine.dispose()
            self._engine = None


def _close_connection(_: Any, entry: ConnectionPoolEntry) -> None:
    """Close a returned connection, so that the next checkout opens a new one."""
    entry.close()


def _get_file_identity(path: Path | None) -> tuple[int, int] | None:
    """Return device and inode of the file, which change when another file replaces it."""
    if path is None:
        return None
    try:
        stat = path.stat()
    except OSError:
        return None
    return stat.st_dev, stat.st_ino
