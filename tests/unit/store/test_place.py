"""The connections of a store that is closed while another thread still reads."""

from typing import Any

import pytest
from sqlalchemy import text

from agentguard.store import Store
from tests.postgres import postgres, postgres_url  # noqa: F401


def test_a_connection_that_comes_back_after_the_end_is_closed(request: pytest.FixtureRequest) -> None:
    store = Store.open(request.getfixturevalue("postgres_url"))
    with store.reading() as connection:
        connection.execute(text("SELECT 1"))
        held: Any = connection.connection.dbapi_connection
        store.close(10)
        assert not held.closed, "it is in use"
    assert held.closed
