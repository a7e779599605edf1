"""Connections of a closed store while another thread still reads."""

from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from agentguard.store import Store
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
