"""The database a store is in: opened when it is needed, made when it is new, opened anew when it was lost."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, event
from sqlalchemy.pool import ConnectionPoolEntry

from agentguard.errors import StoreUnavailable
from agentguard.store.db.engine import SynchronousMode, build_engine
from agentguard.store.db.migration import ensure_tables
from agentguard.store.db.url import DatabaseAddress


class Database:
    """Hands out an engine whose tables are known to be there; safe to use from any thread.

    A file that was removed still takes rows, from those who have it open: they vanish with it. So the file
    is looked at before and after each transaction, and rows count as written only if it is still there.
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
        """The engine.

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
        """Raise StoreUnavailable if the file that ``engine`` wrote to is no longer where it was."""
        with self._lock:
            same = self._engine is engine and self._file_identity == _get_file_identity(self.address.path)
        if not same:
            raise StoreUnavailable(f"store {self.address}: the file was removed or replaced")

    def invalidate(self) -> None:
        """Open everything anew next time: after an error nothing is known of the connections."""
        with self._lock:
            self._dispose()

    def _dispose(self) -> None:
        if self._engine is not None:
            # Who still uses a connection brings it back to a pool that nobody looks after any more.
            event.listen(self._engine.pool, "checkin", _close_connection)
            self._engine.dispose()
            self._engine = None


def _close_connection(_: Any, entry: ConnectionPoolEntry) -> None:
    """Close a connection so that whoever takes it out of the pool again gets a new one."""
    entry.close()


def _get_file_identity(path: Path | None) -> tuple[int, int] | None:
    """What tells one file from another of the same name."""
    if path is None:
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
