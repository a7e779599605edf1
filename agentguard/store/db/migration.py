"""Versions of the tables: creation in a new database, version check, migration on request."""

from __future__ import annotations

from pathlib import Path

from sqlalchemy import Connection, Engine, inspect, text

from agentguard.errors import StoreVersion
from agentguard.store.db.database_address import DatabaseAddress
from agentguard.store.db.engine import IMMEDIATE_TRANSACTION
from agentguard.store.db.tables import PREFIX

REVISIONS: tuple[str, ...] = (
    "0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010",
    "0011", "0012", "0013",
)  # fmt: skip
"""All versions of the tables, oldest first; this agentguard reads and writes the last one."""

VERSION_TABLE = f"{PREFIX}version"
_MIGRATIONS_DIR = Path(__file__).parents[1] / "migrations"
_ADVISORY_LOCK_KEY = 0x61_67_73_74_6F_72_65  # PostgreSQL: one process at a time creates or migrates tables


def ensure_tables(engine: Engine, address: DatabaseAddress) -> None:
    """Create the tables if the database has none; existing tables remain unchanged.

    Raises:
        StoreVersion: the tables are of another version; only the operator starts a migration.
        sqlalchemy.exc.SQLAlchemyError: the database cannot be used now.
    """
    with engine.connect() as connection:
        if has_tables(connection):
            check_version(connection, address)
            return
    with engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection, connection.begin():
        _acquire_lock(connection)
        if not has_tables(connection):  # another process may have been first
            _upgrade_tables(connection)
        check_version(connection, address)


def migrate_tables(engine: Engine, address: DatabaseAddress) -> tuple[str, str]:
    """Migrate the tables to this version in one transaction; return the versions before and after.

    Raises:
        StoreVersion: the tables are newer than this agentguard.
        sqlalchemy.exc.SQLAlchemyError: the database cannot be used now.
    """
    with engine.connect().execution_options(**IMMEDIATE_TRANSACTION) as connection, connection.begin():
        _acquire_lock(connection)
        before = get_revision(connection) if has_tables(connection) else ""
        if before and before not in REVISIONS:
            check_version(connection, address)
        if before != REVISIONS[-1]:
            _upgrade_tables(connection)
        return before, REVISIONS[-1]


def check_version(connection: Connection, address: DatabaseAddress) -> None:
    """Raise StoreVersion unless the tables have the version of this agentguard."""
    revision = get_revision(connection)
    if revision == REVISIONS[-1]:
        return
    place = f"the store {address} has version {revision or 'unknown'} of the tables"
    if revision and revision not in REVISIONS:
        raise StoreVersion(f"{place}, which is newer than this agentguard: update agentguard")
    raise StoreVersion(
        f"{place}; this agentguard needs {REVISIONS[-1]}: make a copy, then run `agentguard store migrate`"
    )


def has_tables(connection: Connection) -> bool:
    """Return whether the database holds a store of any version."""
    return inspect(connection).has_table(VERSION_TABLE)


def get_revision(connection: Connection) -> str:
    """Return the version of the tables; empty if the version table is empty."""
    return connection.execute(text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar() or ""  # noqa: S608


def _acquire_lock(connection: Connection) -> None:
    """Acquire the advisory lock of PostgreSQL; SQLite already holds its lock because of BEGIN IMMEDIATE."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _ADVISORY_LOCK_KEY})


def _upgrade_tables(connection: Connection) -> None:
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(_MIGRATIONS_DIR).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
