"""Whether anything was written since one last looked, without looking at any row where that can be told."""

from __future__ import annotations

from typing import Any

from sqlalchemy.exc import SQLAlchemyError

from agentguard.store.db.database import Database
from agentguard.store.db.engine import to_unavailable_error


class ChangeDetector:
    """Looks at a store's counter of changes, from one thread.

    SQLite counts what other connections commit (https://sqlite.org/pragma.html#pragma_data_version): a look
    costs microseconds. PostgreSQL has nothing as cheap: there everything may have changed at any time, and
    who asks goes on to ask what did (`Store.changes`).

    Args:
        place: the database.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._engine: Any = None
        self._connection: Any = None
        self._data_version: int | None = None

    def has_changed(self) -> bool:
        """Whether something may have been written since the last look; True the first time.

        Raises:
            StoreUnavailable: the database cannot be read now.
        """
        try:
            return self._check_for_changes()
        except (SQLAlchemyError, OSError) as error:
            self.close()
            raise to_unavailable_error(error, self._database.address) from None

    def close(self) -> None:
        """Let go of the connection; the next look opens another and answers True."""
        if self._connection is not None:
            self._connection.close()
        self._connection = self._engine = self._data_version = None

    def _check_for_changes(self) -> bool:
        engine = self._database.get_engine()
        if engine.dialect.name != "sqlite":
            return True
        if engine is not self._engine:  # the first look, or the file is another one now
            self.close()
            self._engine, self._connection = engine, engine.raw_connection()
        cursor = self._connection.cursor()
        found = int(cursor.execute("PRAGMA data_version").fetchone()[0])
        cursor.close()
        moved, self._data_version = found != self._data_version, found
        return moved
