"""Setup of SQLite and PostgreSQL connections, and classification of their errors."""

from __future__ import annotations

import os
import sqlite3
import time
from pathlib import Path
from typing import Any, Literal

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

from agentguard.errors import MissingExtra, StoreUnavailable
from agentguard.store.db.database_address import DatabaseAddress

SynchronousMode = Literal["normal", "full"]

IMMEDIATE_TRANSACTION = {"agentguard_immediate": True}
"""Execution options of a write transaction: SQLite acquires its write lock at the start.

Without them, the transaction fails if another process writes between its first read and its first write.
"""

PRESERVE_ROWCOUNT = {"preserve_rowcount": True}
"""Execution options of an insert whose row count is needed afterwards."""

_MAX_ERROR_CHARS = 200
_LOCK_RETRY_S = 0.01
# connection, authorization, rollback, resources, not ready, operator, system, internal
_OUTAGE_CLASSES = frozenset({"08", "28", "40", "53", "55", "57", "58", "XX"})
# read-only, no such database, no privilege, no such table
_OUTAGE_STATES = frozenset({"25006", "3D000", "42501", "42P01"})


def build_engine(
    address: DatabaseAddress, *, synchronous: SynchronousMode = "normal", lock_timeout_s: float = 5.0
) -> Engine:
    """Return an engine that is not connected yet. Raises MissingExtra if the driver is not installed.

    With ``synchronous="normal"`` SQLite passes a commit to the operating system. The commit survives a crash
    of the process; a power failure may lose the last ones
    (https://sqlite.org/pragma.html#pragma_synchronous). ``"full"`` waits for the disk. PostgreSQL waits for
    the disk unless it is configured otherwise.
    """
    if address.kind == "sqlite":
        return _build_sqlite_engine(address, synchronous, lock_timeout_s)
    return _build_postgresql_engine(address, lock_timeout_s)


def _build_sqlite_engine(
    address: DatabaseAddress, synchronous: SynchronousMode, lock_timeout_s: float
) -> Engine:
    engine = create_engine(
        address.url,
        hide_parameters=True,
        connect_args={"timeout": lock_timeout_s, "check_same_thread": False},
        pool_size=5,
        max_overflow=10,
    )

    @event.listens_for(engine, "do_connect")
    def _prepare(*_: Any) -> None:
        if address.path is not None:
            _create_database_file(address.path)

    @event.listens_for(engine, "connect")
    def _configure(connection: Any, _: Any) -> None:
        connection.isolation_level = None  # `_begin` sends BEGIN: sqlite3 would not begin one for DDL
        if not connection.execute("PRAGMA page_count").fetchone()[0]:
            # SQLite can return free pages to the disk only if this is set before the first table is created.
            connection.execute("PRAGMA auto_vacuum=INCREMENTAL").fetchall()
        _enable_wal(connection, lock_timeout_s)
        for pragma in (
            f"synchronous={synchronous.upper()}",
            "trusted_schema=OFF",
            "journal_size_limit=16777216",
        ):
            connection.execute(f"PRAGMA {pragma}").fetchall()

    @event.listens_for(engine, "begin")
    def _begin(connection: Connection) -> None:
        immediate = connection.get_execution_options().get("agentguard_immediate", False)
        connection.exec_driver_sql("BEGIN IMMEDIATE" if immediate else "BEGIN")

    return engine


def _enable_wal(connection: sqlite3.Connection, lock_timeout_s: float) -> None:
    """Switch the database to WAL mode. Raises sqlite3.OperationalError if it is locked for too long."""
    deadline = time.monotonic() + lock_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL").fetchall()
            return
        except sqlite3.OperationalError as error:
            # SQLite ignores its busy timeout here. Two connections that switch the mode of a new file at the
            # same time would wait for each other, so one of them fails immediately.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() >= deadline:
                raise
            time.sleep(_LOCK_RETRY_S)


def _create_database_file(path: Path) -> None:
    """Create the file with access for its owner only, as runs may contain secrets."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))


def _build_postgresql_engine(address: DatabaseAddress, lock_timeout_s: float) -> Engine:
    try:
        return create_engine(
            address.url,
            hide_parameters=True,
            pool_pre_ping=True,
            pool_size=5,
            max_overflow=10,
            connect_args={
                "connect_timeout": 5,
                "application_name": "agentguard",
                "keepalives_idle": 10,
                "keepalives_interval": 5,
                "keepalives_count": 3,
                "tcp_user_timeout": 15_000,
                "options": f"-c statement_timeout=60000 -c lock_timeout={int(lock_timeout_s * 1000)}",
            },
        )
    except ModuleNotFoundError:
        raise MissingExtra("psycopg", "postgres") from None


def is_outage(error: BaseException) -> bool:
    """Return whether the state of the database caused an error, and not the statement.

    Such an error may be temporary: full disk, lock, read-only file, lost connection, too many connections.
    For PostgreSQL the SQLSTATE decides (https://www.postgresql.org/docs/current/errcodes-appendix.html).
    """
    if isinstance(error, sqlite3.Error | OSError):
        return True
    if not isinstance(error, DBAPIError):
        return False
    state = getattr(error.orig, "sqlstate", None)
    if state is not None:
        return state[:2] in _OUTAGE_CLASSES or state in _OUTAGE_STATES
    if isinstance(error.orig, sqlite3.Error):
        return not isinstance(error.orig, sqlite3.IntegrityError | sqlite3.DataError | sqlite3.InterfaceError)
    return error.connection_invalidated or isinstance(error, OperationalError | InterfaceError)


def describe_error(error: BaseException, address: DatabaseAddress) -> str:
    """Return an error as one line without SQL, parameters or the password."""
    cause = error.orig if isinstance(error, DBAPIError) and error.orig is not None else error
    diag = getattr(cause, "diag", None)
    text = address.redact(getattr(diag, "message_primary", None) or str(cause)).strip()
    line = text.splitlines()[0] if text else type(cause).__name__
    return line[:_MAX_ERROR_CHARS]


def to_unavailable_error(error: BaseException, address: DatabaseAddress) -> StoreUnavailable:
    """Return the error for a caller that waits for the database."""
    return StoreUnavailable(f"store {address}: {describe_error(error, address)}")
