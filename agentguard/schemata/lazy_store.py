"""Lazy schema store: a database that is opened only if it has schemata.

Guards use the schemata of their store by default, and most stores have no schema. Without a schema, no
database library and no index is imported, and no file is created.
"""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING, Final

from agentguard._lazy import import_extra
from agentguard.store.default_location import find_default_location

if TYPE_CHECKING:
    from agentguard.schemata.persistence import SqlSchemaStore
    from agentguard.store.store import Store

_HAS_SCHEMATA: Final = "SELECT 1 FROM agentguard_schemata WHERE tenant = ? AND status = 'active' LIMIT 1"
_LOCK_TIMEOUT_S: Final = 1.0


class _StoreHandle:
    """Handle of a store that opens it at the first use; thread-safe."""

    def __init__(self, source: Store | str | Path) -> None:
        self._source = source
        self._lock = threading.Lock()
        self.file = _find_file(source)

    @property
    def exists(self) -> bool:
        """True if the store is open, on a server, or an existing file."""
        is_open = not isinstance(self._source, (str, Path))
        return is_open or self.file is None or self.file.is_file()

    def open(self) -> Store:
        """Return the open store."""
        with self._lock:
            if isinstance(self._source, (str, Path)):
                store: Store = import_extra("agentguard.store.store", "store").Store.open(self._source)
                self._source = store
            return self._source


class LazySchemaStore:
    """Schemata of one tenant in a store that may not exist; thread-safe.

    Args:
        source: an open store, which the caller closes, or the address of a store; None selects the default
            store.
    """

    def __init__(self, source: Store | str | Path | None = None) -> None:
        self._handle = _StoreHandle(find_default_location() if source is None else source)
        self.tenant = ""

    def for_tenant(self, tenant: str) -> LazySchemaStore:
        """Return the schemata of another tenant in the same store."""
        other = copy(self)
        other.tenant = tenant
        return other

    def has_schemata(self) -> bool:
        """Return whether there is an active schema; False if the file cannot be read.

        Raises:
            StoreUnavailable, StoreVersion, ConfigError, MissingExtra: a database server cannot be used.
        """
        file = self._handle.file
        if file is None:
            return bool(self._handle.open().list_schemata(status="active", tenant=self.tenant))
        if not self._handle.exists:
            return False
        try:
            address = f"{file.as_uri()}?mode=rw"
            with closing(sqlite3.connect(address, uri=True, timeout=_LOCK_TIMEOUT_S)) as connection:
                return connection.execute(_HAS_SCHEMATA, (self.tenant,)).fetchone() is not None
        except sqlite3.Error:  # not a store; a command that needs the store reports the error
            return False

    def open(self) -> SqlSchemaStore | None:
        """Open the schemata for the lifetime of the process; return None if there is no such file.

        Raises:
            StoreUnavailable, StoreVersion, ConfigError, MissingExtra: the database cannot be used.
        """
        from agentguard.schemata.persistence import SqlSchemaStore

        if not self._handle.exists:
            return None
        return SqlSchemaStore(self._handle.open(), tenant=self.tenant)


def _find_file(source: Store | str | Path) -> Path | None:
    """Return the file of an SQLite database; None for a database server."""
    if not isinstance(source, (str, Path)):
        return source.address.path
    scheme, separator, path = str(source).partition("://")
    if not separator:
        return Path(source).expanduser().absolute()
    return Path(path[1:]).expanduser().absolute() if scheme.startswith("sqlite") else None
