"""Two keys on all routes: a tenant cannot see or guess the other tenant's data."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.auth.authorization import generate_key

from agentguard.testing.fake_backend import FakeBackend
from tests.faults.proxy_client import PATHS, Got, ask, body_for
from tests.faults.proxy_process import Proxy, replicas, serving, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

MADE = {name: generate_key() for name in ("red", "blue")}
RUN = "the-red-run"


def of(name: str, *more: tuple[str, str]) -> tuple[tuple[str, str], ...]:
    return (("authorization", f"Bearer {MADE[name][0]}"), *more)


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Proxy, FakeBackend, Path]]:
    store = tmp_path_factory.mktemp("store") / "runs.db"
    keys = [
        {"name": name, "hash": hashed, "tenant": name, "scopes": ["call", "read", "admin"]}
        for name, (_, hashed) in MADE.items()
    ]
    with FakeBackend(name="a") as a:
        settings: dict[str, Any] = {
            "backends": {"replicas": replicas(a), "health": "off"},
            "keys": keys,
            "guard": {"mode": "always"},
            "capture": {"store": str(store)},
            "ui": {},
        }
        with serving(tmp_path_factory.mktemp("tenants"), settings) as proxy:
            yield proxy, a, store


def turn(proxy: Proxy, who: str, run: str, text: str) -> Got:
    body = body_for("chat", text=text, tools=True)
    return asyncio.run(ask(proxy.port, PATHS["chat"], body, headers=of(who, ("agentguard-run", run))))


def get(proxy: Proxy, who: str, path: str, *, method: str = "GET") -> Got:
    return asyncio.run(ask(proxy.port, path, method=method, headers=of(who)))


def test_equal_run_names_of_tenants_are_separate_runs(scene: tuple[Proxy, FakeBackend, Path]) -> None:
    proxy, _, _ = scene
    assert turn(proxy, "red", RUN, "a red secret").status == 200
    assert turn(proxy, "blue", RUN, "a blue secret").status == 200
    for who, other in (("red", "blue"), ("blue", "red")):
        told = get(proxy, who, "/agentguard/v1/sessions")
        assert told.status == 200
        assert f"a {other} secret".encode() not in told.body
        one = get(proxy, who, f"/agentguard/v1/sessions/{RUN}")
        assert f"a {other} secret".encode() not in one.body


def test_ids_of_another_tenant_are_not_found(scene: tuple[Proxy, FakeBackend, Path]) -> None:
    proxy, _, _ = scene
    assert turn(proxy, "red", "only-red", "red alone").status == 200
    assert turn(proxy, "blue", "only-blue", "blue alone").status == 200
    mine = [one["id"] for one in json.loads(get(proxy, "red", "/agentguard/v1/sessions").body)["sessions"]]
    theirs = [one["id"] for one in json.loads(get(proxy, "blue", "/agentguard/v1/sessions").body)["sessions"]]
    assert mine
    assert theirs
    assert not set(mine) & set(theirs) - {RUN}
    for who, ids in (("blue", mine), ("red", theirs)):
        for id in ids:
            if id == RUN:
                continue
            for path in (
                f"/agentguard/v1/sessions/{id}", f"/agentguard/v1/sessions/{id}?tenant=red", f"/ui/runs/{id}",
                f"/ui/run/{id}", f"/agentguard/v1/sessions/../sessions/{id}",
                f"/agentguard/v1/sessions/%2e/{id}",
            ):  # fmt: skip
                got = get(proxy, who, path)
                assert got.status in (400, 404), f"{who} {path}: {got.status}"
                assert b"alone" not in got.body


def test_viewer_shows_each_tenant_its_own_runs(scene: tuple[Proxy, FakeBackend, Path]) -> None:
    proxy, _, store = scene
    turn(proxy, "red", "seen-red", "red words in the viewer")
    turn(proxy, "blue", "seen-blue", "blue words in the viewer")
    until(lambda: store.exists() and b"seen-" in pages(proxy, "red") + pages(proxy, "blue"), 60.0)
    for who, other in (("red", "blue"), ("blue", "red")):
        assert f"seen-{other}".encode() not in pages(proxy, who)
        assert f"only-{other}".encode() not in pages(proxy, who)


def pages(proxy: Proxy, who: str) -> bytes:
    return b"".join(
        get(proxy, who, path).body for path in ("/ui/", "/ui/?q=seen", "/ui/failures", "/ui/compare")
    )


def test_headers_cannot_name_a_tenant(scene: tuple[Proxy, FakeBackend, Path]) -> None:
    proxy, _, _ = scene
    turn(proxy, "red", "only-red", "red alone")
    for name in (
        "agentguard-tenant",
        "x-tenant",
        "x-agentguard-tenant",
        "agentguard-key",
        "x-forwarded-user",
    ):
        got = asyncio.run(
            ask(
                proxy.port,
                "/agentguard/v1/sessions?tenant=red",
                method="GET",
                headers=of("blue", (name, "red")),
            )
        )
        assert b"only-red" not in got.body


def test_endless_recovery_is_stopped_by_budget(tmp_path: Path) -> None:
    """A looping trajectory: the budget limits the guard's extra requests for any agent."""
    policy = {
        "version": 1,
        "detectors": {"exact_loop": {"repeat": 2, "on_fail": ["hint", "rollback", "disable_tool", "stop"]}},
        "budgets": {"rollbacks": 2, "rollbacks_per_step": 1, "hints": 2, "resamples": 6, "repairs": 3},
    }
    with FakeBackend(name="a") as a:
        settings: dict[str, Any] = {
            "backends": {"replicas": replicas(a), "health": "off"},
            "guard": {"policy": policy, "mode": "always"},
        }
        with serving(tmp_path, settings) as proxy:
            turns = asyncio.run(_loop(proxy, 40))
        assert turns == 40
        # This client replaces each answer, so each request begins a session. The sessions share the budget.
        assert len(a.requests) <= 40 + 2 + 2 + 6 + 3


async def _loop(proxy: Proxy, count: int) -> int:
    """Run an agent that repeats a failing call and ignores hints."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "book a flight"}]
    call = {"id": "call_0", "type": "function", "function": {"name": "book", "arguments": '{"to": "x"}'}}
    for n in range(count):
        body = json.loads(body_for("chat", tools=True))
        body["messages"] = messages
        got = await ask(
            proxy.port,
            PATHS["chat"],
            json.dumps(body).encode(),
            headers=(("agentguard-run", "loop"),),
            seconds=20,
        )
        assert got.end == "whole"
        assert got.status < 500
        messages.append({"role": "assistant", "content": None, "tool_calls": [{**call, "id": f"call_{n}"}]})
        messages.append({"role": "tool", "tool_call_id": f"call_{n}", "content": "error: no such flight"})
    return count
