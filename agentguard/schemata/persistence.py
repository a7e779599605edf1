"""Where the schemata of a cache outlive the process: a file of JSON Lines, or the store.

Both keep a whole schema under its id; what is put later replaces what was put before.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from agentguard.errors import FormatError, StoreError
from agentguard.schemata.model import ErrorSchema
from agentguard.schemata.serialization import decode_schema, encode_schema, read_schemata, write_schemata

if TYPE_CHECKING:
    from agentguard.store.db.rows import SchemaRow
    from agentguard.store.store import Store
    from agentguard.store.write.schema_update import SchemaVersions

_DELETED_STATUS: Final = "forgotten"
_URL_PREFIXES: Final = ("sqlite:", "postgresql:", "postgres:", "postgresql+")
_DATABASE_SUFFIXES: Final = (".db", ".sqlite", ".sqlite3")


StoreUpdate = Callable[[tuple[ErrorSchema, ...]], Sequence[ErrorSchema]]
"""From the schemata that are kept to those that are new or changed; may be called again if it has to."""


class SchemaStore(Protocol):
    """Keeps schemata; safe to use from several threads."""

    def load(self) -> tuple[ErrorSchema, ...]:
        """All that are kept, by id; none if nothing was ever put.

        Raises:
            FormatError: what is kept is no schema.
            StoreUnavailable: the database cannot be used now.
        """
        ...

    def upsert(self, schemata: Sequence[ErrorSchema]) -> None:
        """Add schemata, or new versions of those that are kept.

        Raises:
            FormatError: the file cannot be written.
        """
        ...

    def delete(self, ids: Iterable[str]) -> None:
        """Keep these no longer; ids that are not kept are passed over."""
        ...

    def update(self, change: StoreUpdate) -> None:
        """Give ``change`` what is new since the last time, or all, and put what it returns, as one.

        Raises:
            FormatError, StoreUnavailable: as `load` and `put`; nothing was put.
        """
        ...


class FileSchemaStore:
    """A file of schemata, one a line, replaced whole with every change.

    For one process at a time, but for `exchange`, which several may use.

    Args:
        path: the file; it is made with the first schema that is put.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._lock = threading.Lock()

    def load(self) -> tuple[ErrorSchema, ...]:
        """See `SchemaStore.load`."""
        with self._lock:
            return self._read_file()

    def upsert(self, schemata: Sequence[ErrorSchema]) -> None:
        """See `SchemaStore.put`. After a crash the file holds all of a change or nothing of it."""
        with self._lock:
            held = {schema.id: schema for schema in (*self._read_file(), *schemata)}
            write_schemata(self.path, _sort_by_id(held.values()))

    def delete(self, ids: Iterable[str]) -> None:
        """See `SchemaStore.forget`."""
        gone = set(ids)
        with self._lock:
            held = self._read_file()
            rest = [schema for schema in held if schema.id not in gone]
            if len(rest) < len(held):
                write_schemata(self.path, rest)

    def update(self, change: StoreUpdate) -> None:
        """See `SchemaStore.exchange`; other processes wait, where the system has file locks."""
        with self._lock, _lock_file(self.path):
            held = self._read_file()
            made = change(held)
            if made:
                merged = {schema.id: schema for schema in (*held, *made)}
                write_schemata(self.path, _sort_by_id(merged.values()))

    def _read_file(self) -> tuple[ErrorSchema, ...]:
        return _sort_by_id(read_schemata(self.path)) if self.path.exists() else ()


class SqlSchemaStore:
    """The table ``schemata`` of a store; writing never waits for the database.

    A schema that is forgotten stays as a row without content, which `load` passes over: the store may have
    recoveries that name it.

    Args:
        store: an open store; who opened it closes it.
        tenant: whose schemata.
    """

    def __init__(self, store: Store, *, tenant: str = "") -> None:
        self.store, self.tenant = store, tenant
        self._known: SchemaVersions = {}

    def load(self) -> tuple[ErrorSchema, ...]:
        """See `SchemaStore.load`; waits until what was put is durable."""
        self.store.flush()
        rows = self.store.list_schemata(tenant=self.tenant)
        return _sort_by_id(_from_row(row) for row in rows if row.status != _DELETED_STATUS)

    def upsert(self, schemata: Sequence[ErrorSchema]) -> None:
        """See `SchemaStore.put`; a version below the one that is stored is not taken."""
        if schemata:
            self.store.write(*(_to_row(schema, self.tenant) for schema in schemata))

    def delete(self, ids: Iterable[str]) -> None:
        """See `SchemaStore.forget`."""
        gone = set(ids)
        rows = [row for row in self.store.list_schemata(tenant=self.tenant) if row.id in gone] if gone else []
        if rows:
            self.store.write(*(replace(row, status=_DELETED_STATUS, data={}) for row in rows))

    def update(self, change: StoreUpdate) -> None:
        """See `SchemaStore.exchange`; one transaction, which other processes wait for."""

        def rows(kept: Sequence[SchemaRow]) -> list[SchemaRow]:
            made = change(_sort_by_id(_from_row(row) for row in kept if row.status != _DELETED_STATUS))
            return [_to_row(schema, self.tenant) for schema in made]

        self.store.flush()
        self._known = self.store.update_schemata(rows, known_versions=self._known, tenant=self.tenant)


@contextmanager
def _lock_file(path: Path) -> Iterator[None]:
    """Hold the lock of a file, in a file beside it."""
    try:
        import fcntl
    except ImportError:  # no such locks on this system: one process at a time, as ever
        yield
        return
    with open(f"{path}.lock", "ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextmanager
def open_schema_store(location: str | Path | None) -> Iterator[FileSchemaStore | SqlSchemaStore]:
    """The keep at a place: a database by its URL or ending, else a file; None is the default store.

    A database is closed at the end.

    Raises:
        ConfigError, StoreUnavailable, StoreVersion, MissingExtra: the database cannot be used.
    """
    if not _is_database(location):
        yield FileSchemaStore(str(location))
        return
    from agentguard.store.store import Store

    with Store.open(location) as store:
        yield SqlSchemaStore(store)


def open_for_process(location: str | Path) -> FileSchemaStore | SqlSchemaStore:
    """As `opened`, for as long as the process lives: a database is closed when it ends."""
    if not _is_database(location):
        return FileSchemaStore(location)
    from agentguard.store.store import Store

    return SqlSchemaStore(Store.open(location))


def load_schemata(location: str | Path | None) -> tuple[ErrorSchema, ...]:
    """The schemata at a place, as `opened` reads it; a place that is not there is an error, and not made.

    Raises:
        FormatError: there is no such file, or it holds no schemata.
        ConfigError, StoreError, MissingExtra: there is no such database, or it cannot be used.
    """
    if not _is_database(location):
        return _sort_by_id(read_schemata(str(location)))
    from agentguard.store.db.url import resolve_address

    address = resolve_address(location)
    if address.path is not None and not address.path.exists():
        raise StoreError(f"there is no store {address}: distil some failures first")
    with open_schema_store(location) as keep:
        return keep.load()


def _is_database(location: str | Path | None) -> bool:
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
