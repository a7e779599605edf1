"""Spending budgets: prices, periods, several workers on one database, and outages."""

from __future__ import annotations

import json
import sqlite3
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.auth.authorization import Keyring
from agentguard_server.proxy.auth.spending_ledger import SpendingLedger, format_period
from agentguard_server.proxy.config.schema import ProxySettings
from agentguard_server.proxy.process.bootstrap import Bootstrap

from agentguard.backends.base import Response
from agentguard.errors import ConfigError
from agentguard.store.db.database_address import resolve_address
from tests.unit.server.proxy.harness import JSON, Stream, gateway, settings
from tests.unit.server.proxy.test_usage_limits import BODY, answer, event, key, send

PRICES = {"m": {"input": 1000, "cached_input": 100, "output": 2000}}
NOON = datetime(2030, 1, 31, 12, tzinfo=UTC).timestamp()


class WallClock:
    now = NOON

    def __call__(self) -> float:
        return self.now


def ledger(path: Path, clock: WallClock | None = None) -> SpendingLedger:
    return SpendingLedger(resolve_address(path / "store.db"), wall_clock=clock or WallClock())


def guarded_by_budget(spending: SpendingLedger, *answers: Any, max_usd: float = 1.0, **more: Any) -> Any:
    keys = [key("k", budget={"max_usd": max_usd, "period": "day"}), key("free")]
    gate = gateway(*answers, **{"keys": keys, "prices": PRICES, **more})
    gate.keyring = Keyring.from_settings(gate.settings, spending=spending)
    return gate


def test_request_costs_its_tokens_at_the_price_of_the_model(tmp_path: Path) -> None:
    spending = ledger(tmp_path)
    usage = {
        "prompt_tokens": 100,
        "completion_tokens": 10,
        "prompt_tokens_details": {"cached_tokens": 60},
    }
    assert send(guarded_by_budget(spending, answer(**usage))).status == 200
    assert spending.get_spent("key:k", "day") == pytest.approx((40 * 1000 + 60 * 100 + 10 * 2000) / 1e6)


def test_cost_that_the_endpoint_reports_wins(tmp_path: Path) -> None:
    spending = ledger(tmp_path)
    send(guarded_by_budget(spending, answer(prompt_tokens=9, completion_tokens=9, cost=0.25)))
    assert spending.get_spent("key:k", "day") == 0.25


def test_streamed_request_is_charged(tmp_path: Path) -> None:
    spending = ledger(tmp_path)
    stream = Stream(event(choices=[], usage={"prompt_tokens": 100, "completion_tokens": 10}))
    send(guarded_by_budget(spending, stream), body={**BODY, "stream": True})
    assert spending.get_spent("key:k", "day") == pytest.approx(0.12)


def test_spent_budget_refuses_without_retry_until_the_next_period(tmp_path: Path) -> None:
    clock = WallClock()
    spending = ledger(tmp_path, clock)
    gate = guarded_by_budget(spending, answer(prompt_tokens=600, completion_tokens=0))
    assert [send(gate).status for _ in range(3)] == [200, 200, 429]
    got = send(gate)
    assert got.json["error"]["code"] == "insufficient_quota"
    assert "the next day begins in 43200 s" in got.json["error"]["message"]
    assert (got.headers["x-should-retry"], "retry-after" in got.headers) == ("false", False)
    assert send(gate, "free").status == 200
    clock.now += 86_400
    assert send(gate).status == 200


def test_model_without_a_price_is_refused_to_keys_with_a_budget(tmp_path: Path) -> None:
    gate = guarded_by_budget(ledger(tmp_path))
    for body in ({"model": "unknown"}, {"messages": []}, {"model": ["m"]}):
        got = send(gate, body=body)
        assert (got.status, got.json["error"]["code"]) == (403, "model_not_priced")
    assert send(gate, "free", body={"model": "unknown"}).status == 200
    assert send(gate, method="GET", path="/v1/models").status == 200


def test_budget_of_a_tenant_is_shared_by_its_keys(tmp_path: Path) -> None:
    gate = guarded_by_budget(
        ledger(tmp_path),
        answer(prompt_tokens=600, completion_tokens=0),
        keys=[key("k", tenant="t"), key("l", tenant="t")],
        tenants={"t": {"budget": {"max_usd": 1, "period": "total"}}},
    )
    assert [send(gate, name).status for name in ("k", "l", "k", "l")] == [200, 200, 429, 429]


def test_workers_and_restarts_share_what_was_spent(tmp_path: Path) -> None:
    one, other = ledger(tmp_path), ledger(tmp_path)
    for amount, spending in ((1.0, one), (2.0, other), (4.0, one)):
        spending.add("key:k", "month", amount)
        assert spending.synchronize()
    other.synchronize()
    assert one.get_spent("key:k", "month") == other.get_spent("key:k", "month") == 7.0
    one.add("key:k", "month", 8.0)
    assert one.get_spent("key:k", "month") == 15.0, "new amounts count before they are written"
    one.close()
    after = ledger(tmp_path)
    after.synchronize()
    assert after.get_spent("key:k", "month") == 15.0


def test_outage_of_the_database_loses_nothing(tmp_path: Path) -> None:
    spending = ledger(tmp_path)
    spending.add("key:k", "total", 1.0)
    spending.synchronize()
    path = tmp_path / "store.db"
    blocker = sqlite3.connect(path)
    blocker.execute("ALTER TABLE agentguard_spending RENAME TO hidden")
    spending.add("key:k", "total", 2.0)
    blocker.execute("CREATE TABLE agentguard_spending (other INTEGER)")
    assert not spending.synchronize()
    assert spending.get_spent("key:k", "total") == 3.0
    blocker.execute("DROP TABLE agentguard_spending")
    blocker.execute("ALTER TABLE hidden RENAME TO agentguard_spending")
    blocker.close()
    assert spending.synchronize()
    assert (spending.get_spent("key:k", "total"), spending.failed_syncs) == (3.0, 1)


def test_removed_database_file_is_created_again(tmp_path: Path) -> None:
    spending = ledger(tmp_path)
    spending.add("key:k", "total", 1.0)
    spending.synchronize()
    for file in tmp_path.iterdir():
        file.unlink()
    spending.add("key:k", "total", 2.0)
    spending.synchronize()
    assert spending.synchronize()
    assert spending.get_spent("key:k", "total") == 2.0, "what was in the file is lost with it"


@pytest.mark.parametrize(
    ("period", "name", "reset_s"),
    [("day", "2030-01-31", 43_200.0), ("month", "2030-01", 43_200.0), ("total", "total", None)],
)
def test_period_is_named_in_utc(tmp_path: Path, period: Any, name: str, reset_s: float | None) -> None:
    assert format_period(period, NOON) == name
    assert ledger(tmp_path).compute_reset_s(period) == reset_s


def test_budget_without_prices_is_a_configuration_error() -> None:
    with pytest.raises(ConfigError, match="a budget needs the prices"):
        settings(keys=[key("k", budget={"max_usd": 1})])


def test_budget_without_a_store_is_a_configuration_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTGUARD_STORE", raising=False)
    with pytest.raises(ConfigError, match=r"needs a store .* capture\.store"):
        Bootstrap(settings(keys=[key("k", budget={"max_usd": 1})], prices=PRICES))


def test_status_shows_spending_without_keys(tmp_path: Path) -> None:
    document = {
        "backends": {"replicas": [{"name": "a", "url": "http://127.0.0.1:1/v1"}]},
        "keys": [key("k", budget={"max_usd": 2, "period": "total"})],
        "prices": PRICES,
        "cluster": {"store": str(tmp_path / "store.db")},
    }
    bootstrap = Bootstrap(ProxySettings.parse(document))
    assert bootstrap._describe_spending() == {
        "key:k": {"period": "total", "max_usd": 2.0, "spent_usd": 0.0},
        "failed_syncs": 0,
    }


def test_unreadable_usage_costs_its_estimate(tmp_path: Path) -> None:
    spending = ledger(tmp_path)
    send(guarded_by_budget(spending, Response(status=200, headers=JSON, body=b"x" * 400)))
    tokens = len(json.dumps(BODY)) // 4 + 1
    assert spending.get_spent("key:k", "day") == pytest.approx((tokens * 1000 + 100 * 2000) / 1e6)
