"""Detection of changes to the store since the last poll."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from agentguard.store.db.database import Database
from agentguard.store.db.engine import to_unavailable_error


class ChangeDetector:
    """Detector of changes, for use in one thread.

    For SQLite a poll reads the number of commits of other connections and costs microseconds
    (https://sqlite.org/pragma.html#pragma_data_version). PostgreSQL has no such counter: `has_changed` always
    returns True, and the caller queries the changes (`Store.list_changes`).

    Args:
        database: the database of the store.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine: Any = None
        self._connection: Any = None
        self._data_version: int | None = None

    def has_changed(self) -> bool:
        """Return whether the store may have changed since the last call; True for the first call.

        Raises:
            StoreUnavailable: the database cannot be read now.
        """
        try:
            return self._check_for_changes()
        except (SQLAlchemyError, OSError) as error:
            self.close()
            raise to_unavailable_error(error, self._database.address) from None

    def close(self) -> None:
        """Close the connection; the next poll opens another one and returns True."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._engine = self._data_version = None

    def _check_for_changes(self) -> bool:
        engine = self._database.get_engine()
        if engine.dialect.name != "sqlite":
            return True
        if engine is not self._engine:  # first poll, or the file was replaced
            self.close()
            self._engine, self._connection = engine, engine.raw_connection()
        cursor = self._connection.cursor()
        data_version = int(cursor.execute("PRAGMA data_version").fetchone()[0])
        cursor.close()
        has_changed, self._data_version = data_version != self._data_version, data_version
        return has_changed
