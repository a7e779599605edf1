"""Connections of a closed store while another thread still reads."""

import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agentguard.store import Store
from agentguard.store.db.database_address import resolve_address
from agentguard.store.db.engine import build_engine
from tests.postgres import postgres, postgres_url  # noqa: F401


def test_connection_returned_after_close_is_closed(request: pytest.FixtureRequest) -> None:
    store = Store.open(request.getfixturevalue("postgres_url"))
    with store.begin_read() as connection:
        connection.execute(text("SELECT 1"))
        held: Any = connection.connection.dbapi_connection
        store.close(10)
        assert not held.closed, "it is in use"
    assert held.closed


def test_disposed_engine_still_gives_working_connections(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        engine = store._database.get_engine()
        with engine.connect():
            store._database.invalidate()
        for _ in range(3):
            with engine.connect() as connection:
                assert connection.execute(text("SELECT 1")).scalar() == 1
        engine.dispose()


def test_wal_switch_of_a_locked_file_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "store.db"
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("CREATE TABLE other (id)")
    other.execute("BEGIN IMMEDIATE")
    retries: list[float] = []

    def release_lock(seconds: float) -> None:
        retries.append(seconds)
        other.execute("ROLLBACK")

    monkeypatch.setattr(time, "sleep", release_lock)
    engine = build_engine(resolve_address(str(path)), lock_timeout_s=1.0)
    with engine.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
    engine.dispose()
    other.close()
    assert len(retries) == 1
