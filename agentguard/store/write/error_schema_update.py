"""Atomic update of schemata, so that concurrent processes do not overwrite each other's changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from sqlalchemy import Connection, select, text
from sqlalchemy.exc import SQLAlchemyError

from agentguard.errors import StoreError
from agentguard.store.db.database import Database
from agentguard.store.db.engine import IMMEDIATE_TRANSACTION, to_unavailable_error
from agentguard.store.db.row_mapping import to_row
from agentguard.store.db.rows import SchemaRow
from agentguard.store.db.tables import SCHEMATA
from agentguard.store.write.batch import apply_batch, prepare_batch

SchemaVersions = Mapping[str, tuple[int, float]]
"""Versions and update times of schemata that the caller has read, by id."""

SchemaTransform = Callable[[Sequence[SchemaRow]], Sequence[SchemaRow]]

_ADVISORY_LOCK_KEY: Final = 0x61677363
"""Key of the advisory lock that PostgreSQL holds during an update; SQLite has one writer."""


def update_schemata(
    database: Database, transform: SchemaTransform, *, known_versions: SchemaVersions, tenant: str
) -> dict[str, tuple[int, float]]:
    """Pass changed schemata to ``transform`` and write its result, in one transaction.

    Changed schemata are those whose version or update time differs from ``known_versions``.

    Returns:
        The versions after the update.

    Raises:
        StoreUnavailable: the database cannot be used now; nothing was written.
        StoreError: a schema that ``transform`` returned cannot be stored; nothing was written.
    """
    try:
        engine = database.get_engine()
        with engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection, connection.begin():
            if connection.dialect.name == "postgresql":
                connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK_KEY})
            versions = _read_versions(connection, tenant)
            rows = transform(
                _read_rows(
                    connection,
                    [id for id, updated_at in versions.items() if known_versions.get(id) != updated_at],
                    tenant,
                )
            )
            rejections = apply_batch(connection, prepare_batch(rows))
            if rejections:
                raise StoreError(f"a schema cannot be stored: {next(iter(rejections.values()))}")
            versions |= {row.id: (row.version, row.updated_at) for row in rows}
        database.verify_file(engine)
    except (SQLAlchemyError, OSError) as error:
        raise to_unavailable_error(error, database.address) from None
    return versions


def _read_versions(connection: Connection, tenant: str) -> dict[str, tuple[int, float]]:
    columns = SCHEMATA.c.id, SCHEMATA.c.version, SCHEMATA.c.updated_at
    rows = connection.execute(select(*columns).where(SCHEMATA.c.tenant == tenant))
    return {id: (version, updated_at) for id, version, updated_at in rows}


def _read_rows(connection: Connection, ids: Sequence[str], tenant: str) -> list[SchemaRow]:
    schemata: list[SchemaRow] = []
    for begin in range(0, len(ids), 500):
        some = SCHEMATA.c.id.in_(ids[begin : begin + 500])
        rows = connection.execute(select(SCHEMATA).where(SCHEMATA.c.tenant == tenant, some)).mappings()
        schemata += [to_row(SchemaRow, row) for row in rows]
    return schemata
