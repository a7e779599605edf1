"""Persistence of schemata: a file of JSON Lines, or a table of the store.

Both contain complete schemata by id; a later version replaces an earlier one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from agentguard._lazy import import_extra
from agentguard.errors import FormatError, StoreError
from agentguard.schemata.model import ErrorSchema
from agentguard.schemata.serialization import decode_schema, encode_schema, read_schemata, write_schemata

if TYPE_CHECKING:
    from agentguard.store.db.database_address import DatabaseAddress
    from agentguard.store.db.rows import SchemaRow
    from agentguard.store.store import Store
    from agentguard.store.write.error_schema_update import SchemaVersions

_DELETED_STATUS: Final = "forgotten"
_URL_PREFIXES: Final = ("sqlite:", "sqlite+", "postgresql:", "postgres:", "postgresql+")
_DATABASE_SUFFIXES: Final = (".db", ".sqlite", ".sqlite3")


StoreUpdate = Callable[[tuple[ErrorSchema, ...]], Sequence[ErrorSchema]]
"""Function from the stored schemata to the new or changed ones; a retry may call it again."""


class SchemaStore(Protocol):
    """Persistent store of schemata; thread-safe."""

    def load(self) -> tuple[ErrorSchema, ...]:
        """Return all stored schemata by id.

        Raises:
            FormatError: the stored data is not a schema.
            StoreUnavailable: the database is unavailable.
        """
        ...

    def upsert(self, schemata: Sequence[ErrorSchema]) -> None:
        """Insert schemata, or new versions of stored ones.

        Raises:
            FormatError: the file cannot be written.
        """
        ...

    def delete(self, ids: Iterable[str]) -> None:
        """Delete schemata; unknown ids are ignored."""
        ...

    def update(self, change: StoreUpdate) -> None:
        """Call ``change`` with the changes since the last call, or all schemata, and store its result
        atomically.

        Raises:
            FormatError, StoreUnavailable: see `load` and `upsert`; nothing was stored.
        """
        ...


class FileSchemaStore:
    """File of schemata, one per line; every change replaces the file.

    Only `update` is safe for use by several processes at the same time.

    Args:
        path: the file; created with the first schema.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()

    def load(self) -> tuple[ErrorSchema, ...]:
        """Implement `SchemaStore.load`."""
        with self._lock:
            return self._read_file()

    def upsert(self, schemata: Sequence[ErrorSchema]) -> None:
        """Implement `SchemaStore.upsert`.

        The change is atomic, also in a crash.
        """
        with self._lock:
            by_id = {schema.id: schema for schema in (*self._read_file(), *schemata)}
            write_schemata(self.path, _sort_by_id(by_id.values()))

    def delete(self, ids: Iterable[str]) -> None:
        """Implement `SchemaStore.delete`."""
        deleted_ids = set(ids)
        with self._lock:
            stored = self._read_file()
            remaining = [schema for schema in stored if schema.id not in deleted_ids]
            if len(remaining) < len(stored):
                write_schemata(self.path, remaining)

    def update(self, change: StoreUpdate) -> None:
        """Implement `SchemaStore.update`; other processes wait, if the system has file locks."""
        with self._lock, _lock_file(self.path):
            stored = self._read_file()
            changes = change(stored)
            if changes:
                merged = {schema.id: schema for schema in (*stored, *changes)}
                write_schemata(self.path, _sort_by_id(merged.values()))

    def _read_file(self) -> tuple[ErrorSchema, ...]:
        return _sort_by_id(read_schemata(self.path)) if self.path.exists() else ()


class SqlSchemaStore:
    """Table ``schemata`` of a store; a write never waits for the database.

    A deletion keeps a row without content, which `load` skips, since recoveries in the store may refer to it.

    Args:
        store: an open store; the caller closes it.
        tenant: tenant of the schemata.
    """

    def __init__(self, store: Store, *, tenant: str = "") -> None:
        self.store, self.tenant = store, tenant
        self._known: SchemaVersions = {}

    def load(self) -> tuple[ErrorSchema, ...]:
        """Implement `SchemaStore.load`; wait until earlier writes are durable."""
        self.store.flush()
        rows = self.store.list_schemata(tenant=self.tenant)
        return _sort_by_id(_from_row(row) for row in rows if row.status != _DELETED_STATUS)

    def upsert(self, schemata: Sequence[ErrorSchema]) -> None:
        """Implement `SchemaStore.upsert`; a version below the stored one is ignored."""
        if schemata:
            self.store.write(*(_to_row(schema, self.tenant) for schema in schemata))

    def delete(self, ids: Iterable[str]) -> None:
        """Implement `SchemaStore.delete`."""
        deleted_ids = set(ids)
        rows = (
            [row for row in self.store.list_schemata(tenant=self.tenant) if row.id in deleted_ids]
            if deleted_ids
            else []
        )
        if rows:
            self.store.write(*(replace(row, status=_DELETED_STATUS, data={}) for row in rows))

    def update(self, change: StoreUpdate) -> None:
        """Implement `SchemaStore.update` as one transaction; other processes wait for its end."""

        def change_rows(rows: Sequence[SchemaRow]) -> list[SchemaRow]:
            stored = _sort_by_id(_from_row(row) for row in rows if row.status != _DELETED_STATUS)
            return [_to_row(schema, self.tenant) for schema in change(stored)]

        self.store.flush()
        self._known = self.store.update_schemata(change_rows, known_versions=self._known, tenant=self.tenant)


@contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    """Hold the lock of a file, which is a separate file with the suffix ``.lock``."""
    try:
        import fcntl
    except ImportError:  # without such locks, only one process may use the file
        yield
        return
    with open(f"{path}.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def open_schema_store(location: str | Path | None) -> Iterator[FileSchemaStore | SqlSchemaStore]:
    """Open the schema store at a location: a database by its URL or suffix, else a file.

    None selects the default store. A database is closed at the end of the context.

    Raises:
        ConfigError, StoreUnavailable, StoreVersion, MissingExtra: the database is unavailable.
    """
    if not is_database(location):
        yield FileSchemaStore(str(location))
        return
    from agentguard.store.store import Store

    with Store.open(location) as store:
        yield SqlSchemaStore(store)


def resolve_location(schemata: bool | str, store: str | None) -> bool | str:
    """Return the location of a policy's schemata: for True, the address of the store, if one is given."""
    if schemata is not True or not store:
        return schemata
    addresses = import_extra("agentguard.store.db.database_address", "store")
    address: DatabaseAddress = addresses.resolve_address(store)
    return address.url.render_as_string(hide_password=False)


def load_schemata(location: str | Path | None) -> tuple[ErrorSchema, ...]:
    """Return the schemata at a location, by id; a missing location is an error and is not created.

    Raises:
        FormatError: there is no such file, or it does not contain schemata.
        ConfigError, StoreError, MissingExtra: the database does not exist or is unavailable.
    """
    if not is_database(location):
        return _sort_by_id(read_schemata(str(location)))
    address = import_extra("agentguard.store.db.database_address", "store").resolve_address(location)
    if address.path is not None and not address.path.exists():
        raise StoreError(f"the store {address} does not exist: distil some failures first")
    with open_schema_store(location) as store:
        return store.load()


def is_database(location: str | Path | None) -> bool:
    """Return whether a location is a database, by its URL or suffix; None is the default database."""
    text = str(location)
    return location is None or text.startswith(_URL_PREFIXES) or text.endswith(_DATABASE_SUFFIXES)


def _sort_by_id(schemata: Iterable[ErrorSchema]) -> tuple[ErrorSchema, ...]:
    return tuple(sorted(schemata, key=lambda schema: schema.id))


def _to_row(schema: ErrorSchema, tenant: str) -> SchemaRow:
    from agentguard.store.db.rows import SchemaRow

    return SchemaRow(
        tenant=tenant,
        created_at=schema.created_at,
        data=encode_schema(schema),
        id=schema.id,
        status=schema.status.value,
        origin=schema.provenance.origin.value,
        method=schema.provenance.method,
        code=schema.codes[0] if schema.codes else "",
        module=schema.module or "",
        version=schema.version,
        support=schema.support,
        updated_at=schema.updated_at,
    )


def _from_row(row: SchemaRow) -> ErrorSchema:
    from agentguard.trajectory.formats.sdk import JsonNode

    data: Any = row.data
    try:
        return decode_schema(JsonNode.from_value(data))
    except FormatError as error:
        raise error.with_location(file=f"schema {row.id} of the store") from None
