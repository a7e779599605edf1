"""Spending budgets of a real proxy: two workers on one database, and a restart."""

from __future__ import annotations

import contextlib
import json
import sqlite3
from pathlib import Path
from typing import Any

from agentguard_server.proxy.auth.spending_ledger import SpendingLedger

from agentguard.store.db.database_address import resolve_address
from agentguard.testing.fake_backend import FakeBackend
from tests.integration.test_proxy_operation import CALL, READ, bearer, key
from tests.proxy_server import Proxy, chat, serving, within


def configuration(backend: FakeBackend) -> dict[str, Any]:
    limited = key("call", CALL, "call") | {"tenant": "t"}
    return {
        "listen": {"port": 0, "shutdown_timeout_s": 1, "workers": 2},
        "backends": {"replicas": [{"name": "a", "url": backend.url}], "health": "off"},
        "keys": [limited, key("read", READ, "read")],
        "tenants": {"t": {"budget": {"max_usd": 0.05, "period": "total"}}},
        "prices": {"m": {"input": 1000, "output": 1000}},
        "cluster": {"store": "sqlite:///spent.db", "health_hints": False, "sessions": False},
    }


def ask(proxy: Proxy) -> int:
    status, _, body = proxy.ask(chat(), **bearer(CALL))
    if status == 429:
        assert json.loads(body)["error"]["code"] == "insufficient_quota"
    return status


def read_spent(path: Path) -> float:
    """Return what the database has; 0 before the proxy has created the table."""
    query = "SELECT usd FROM agentguard_spending WHERE subject = 'tenant:t'"
    with contextlib.closing(sqlite3.connect(path)) as database, contextlib.suppress(sqlite3.OperationalError):
        found = database.execute(query).fetchone()
        return 0.0 if found is None else float(found[0])
    return 0.0


def test_budget_holds_over_workers_and_a_restart(tmp_path: Path) -> None:
    with FakeBackend() as backend:
        with serving(tmp_path, configuration(backend)) as proxy:
            within(60, lambda: ask(proxy) == 429)
            within(30, lambda: all(ask(proxy) == 429 for _ in range(10)))
            received = len(backend.requests)
            within(30, lambda: read_spent(tmp_path / "spent.db") >= 0.05)
        with serving(tmp_path, configuration(backend)) as proxy:
            within(30, lambda: ask(proxy) == 429)
            _, _, body = proxy.ask(path="/status", method="GET", **bearer(READ))
            workers = json.loads(body)["workers"]
            assert workers[0]["spending"]["tenant:t"]["max_usd"] == 0.05
        assert len(backend.requests) <= received + 20, (
            "at most the requests before the first look at the database"
        )


def test_proxies_on_several_machines_share_a_budget_in_postgresql(
    postgres_url: str,
) -> None:
    one, other = (SpendingLedger(resolve_address(postgres_url), sync_interval_s=60) for _ in range(2))
    for amount, spending in ((1.5, one), (2.0, other), (0.5, one)):
        spending.add("tenant:t", "month", amount)
        assert spending.synchronize()
    assert other.synchronize()
    assert one.get_spent("tenant:t", "month") == other.get_spent("tenant:t", "month") == 4.0
    one.close()
    other.close()
