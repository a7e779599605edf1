"""State that proxies share over a database: SQLite on one machine, PostgreSQL across machines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.cluster.conversation_store import SharedConversationStore
from agentguard_server.proxy.cluster.services import ClusterServices
from agentguard_server.proxy.config.schema import ClusterOptions

from agentguard.backends.health.peer_hints import MAX_HINT_S, Hint
from agentguard.errors import ConfigError
from agentguard.store import Store
from agentguard.store.db.rows import HealthHintRow, SessionRow
from tests.postgres import postgres, postgres_url  # noqa: F401

KEY, OTHER = b"\x01" * 32, b"\x02" * 32


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: Any, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return str(tmp_path / "store.db")
    found: str = request.getfixturevalue("postgres_url")
    return found


@pytest.fixture
def two(url: str) -> Iterator[tuple[ClusterServices, ClusterServices]]:
    """Return two proxies over one database."""
    options = ClusterOptions(store=url, poll_interval_s=0.05, lookup_timeout_s=5)
    one, other = ClusterServices(options), ClusterServices(options)
    yield one, other
    one.close()
    other.close()


def sessions_of(shared: ClusterServices) -> SharedConversationStore:
    assert shared.conversations is not None
    return shared.conversations


async def until(holds: Any, seconds: float = 60.0) -> None:
    """Wait until the condition is true."""
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not come true in time"
        await asyncio.sleep(0.02)


def test_conversation_continues_at_another_proxy(two: tuple[ClusterServices, ClusterServices]) -> None:
    one, other = two
    state = {"line": [1, 2, {"told": "again, please"}], "text": "é"}

    async def go_on() -> None:
        sessions_of(one).save([KEY, OTHER], state, tenant="t", run="r", version=2)
        one.store.flush(10)
        for keys in ([KEY], [b"\x09" * 32, OTHER]):
            assert await sessions_of(other).load(keys, tenant="t") == state
        assert await sessions_of(other).load([KEY], tenant="someone else") is None
        assert await sessions_of(other).load([b"\x09" * 32], tenant="t") is None
        assert await sessions_of(other).load([], tenant="t") is None
        assert sessions_of(other).missed_lookups == 0

    asyncio.run(go_on())


def test_older_version_does_not_overwrite_newer(two: tuple[ClusterServices, ClusterServices]) -> None:
    one, other = two

    async def go_on() -> None:
        for version in (3, 2):
            sessions_of(one).save([KEY], {"version": version}, tenant="", run="r", version=version)
            one.store.flush(10)
        assert await sessions_of(other).load([KEY], tenant="") == {"version": 3}

    asyncio.run(go_on())


def test_deleting_a_run_deletes_its_conversation(
    two: tuple[ClusterServices, ClusterServices],
) -> None:
    one, other = two

    async def go_on() -> None:
        sessions_of(one).save([KEY], {"prompt": "x"}, tenant="t", run="r", version=1)
        one.store.flush(10)
        await asyncio.to_thread(one.store.delete_run, "r", tenant="t")
        assert await sessions_of(other).load([KEY], tenant="t") is None

    asyncio.run(go_on())


def test_health_hints_reach_only_other_proxies(two: tuple[ClusterServices, ClusterServices]) -> None:
    one, other = two
    assert one.health_hints is not None
    assert other.health_hints is not None
    heard: list[Hint] = []
    own: list[Hint] = []

    async def tell() -> None:
        assert one.health_hints is not None
        assert other.health_hints is not None
        other.health_hints.subscribe(heard.append)
        one.health_hints.subscribe(own.append)
        one.start()
        other.start()
        one.health_hints.publish(Hint(replica="a", problem="open", duration_s=9))
        one.health_hints.publish(Hint(replica="b", problem="down", duration_s=1e9))
        await until(lambda: len(heard) >= 2)
        one.health_hints.publish(Hint(replica="a", problem=None))
        await until(lambda: len(heard) >= 3)
        await asyncio.sleep(0.2)

    asyncio.run(tell())
    found = {(hint.replica, hint.problem): hint.duration_s for hint in heard}
    assert len(heard) == 3
    assert 0 < found["a", "open"] <= 9
    assert 0 < found["b", "down"] <= MAX_HINT_S
    assert ("a", None) in found
    assert own == []


def test_new_proxy_receives_only_current_hints(url: str) -> None:
    Store.open(url).close()  # created here, since it takes long on a busy machine
    now = time.time()
    with Store.open(url) as store:
        store.write(
            HealthHintRow(
                machine="m", backend="over", trouble="open", seconds=5, updated_at=now - 20, number=1
            ),
            HealthHintRow(
                machine="m", backend="holds", trouble="down", seconds=30, updated_at=now - 5, number=2
            ),
            HealthHintRow(
                machine="m", backend="odd", trouble="on fire", seconds=30, updated_at=now, number=3
            ),
        )
        store.flush(10)
    shared = ClusterServices(ClusterOptions(store=url, poll_interval_s=0.05))
    heard: list[Hint] = []

    async def listen() -> None:
        assert shared.health_hints is not None
        shared.health_hints.subscribe(heard.append)
        shared.start()
        await until(lambda: heard)
        await asyncio.sleep(0.2)

    asyncio.run(listen())
    passed = time.time() - now
    shared.close()
    (hint,) = heard
    assert (hint.replica, hint.problem) == ("holds", "down")
    assert 25 - passed <= hint.duration_s <= 25.5


def test_expired_state_is_deleted(url: str) -> None:
    old = time.time() - 1000
    with Store.open(url) as store:
        store.write(
            SessionRow(key="aa", tenant="t", updated_at=old, data={"a": 1}),
            SessionRow(key="bb", tenant="t", data={"b": 1}),
            HealthHintRow(machine="m", backend="a", updated_at=old),
        )
        store.flush(10)
        assert store.delete_expired_shared_state(session_ttl_s=500, hint_ttl_s=500) == 2
        assert store.delete_expired_shared_state(session_ttl_s=500, hint_ttl_s=500) == 0


def test_missing_database_is_counted_and_does_not_block(tmp_path: Path) -> None:
    url = "postgresql://nobody:secret-word@127.0.0.1:1/none"
    shared = ClusterServices(ClusterOptions(store=url, poll_interval_s=0.05, lookup_timeout_s=1))
    try:
        began = time.monotonic()

        async def go_on() -> None:
            assert shared.health_hints is not None
            shared.health_hints.subscribe(lambda hint: None)
            shared.start()
            shared.health_hints.publish(Hint(replica="a", problem="open", duration_s=5))
            for _ in range(50):
                sessions_of(shared).save([KEY], {}, tenant="", run="r", version=1)
                assert await sessions_of(shared).load([KEY], tenant="") is None
            await until(lambda: shared.health_hints is not None and shared.health_hints.failed_polls)

        asyncio.run(go_on())
        assert time.monotonic() - began < 25, "fifty that wait would take fifty seconds"
        assert sessions_of(shared).missed_lookups == 50
        figures = {labels: value for _, labels, value in shared.collect_metrics()}
        assert figures["sessions",] == 50
        assert figures["hints",] >= 1
        assert "secret-word" not in str(shared.status())
    finally:
        shared.close()


def test_hanging_database_delays_request_only_up_to_timeout(tmp_path: Path) -> None:
    import socket

    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen(8)  # accepts connections and never answers
        port = silent.getsockname()[1]
        shared = ClusterServices(
            ClusterOptions(store=f"postgresql://u:p@127.0.0.1:{port}/none", lookup_timeout_s=1)
        )
        try:

            async def look() -> float:
                began = time.monotonic()
                for _ in range(20):
                    assert await sessions_of(shared).load([KEY], tenant="") is None
                return time.monotonic() - began

            assert asyncio.run(look()) < 10, "the first waits a second, the others not at all"
            assert sessions_of(shared).missed_lookups == 20
        finally:
            shared.close()


def test_cluster_options_without_database_are_rejected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AGENTGUARD_STORE", raising=False)
    with pytest.raises(ConfigError, match=r"cluster\.store"):
        ClusterServices(ClusterOptions())


def test_cluster_options_without_database_use_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AGENTGUARD_STORE", str(tmp_path / "runs.db"))
    shared = ClusterServices(ClusterOptions())
    assert shared.store.address.path == tmp_path / "runs.db"
    shared.close()


def test_capture_database_is_the_default_store(tmp_path: Path) -> None:
    shared = ClusterServices(ClusterOptions(health_hints=False), fallback_url=str(tmp_path / "runs.db"))
    assert shared.health_hints is None
    assert shared.conversations is not None
    shared.close()


@pytest.mark.slow
def test_restarted_database_is_reconnected(request: Any) -> None:
    server, url = request.getfixturevalue("postgres"), request.getfixturevalue("postgres_url")
    options = ClusterOptions(store=url, poll_interval_s=0.1, lookup_timeout_s=1)
    one, other = ClusterServices(options), ClusterServices(options)
    heard: list[Hint] = []

    async def found() -> bool:
        return await sessions_of(other).load([KEY], tenant="") is not None

    async def sought() -> None:
        for _ in range(100):
            if await found():
                return
            await asyncio.sleep(0.2)
        raise AssertionError("the conversation was not found")

    async def go_on() -> None:
        assert one.health_hints is not None
        assert other.health_hints is not None
        other.health_hints.subscribe(heard.append)
        other.start()
        sessions_of(one).save([KEY], {"a": 1}, tenant="", run="r", version=1)
        await asyncio.to_thread(one.store.flush, 10)
        await sought()  # a new connection may take longer than a request waits
        missed = sessions_of(other).missed_lookups
        await asyncio.to_thread(server.stop)
        try:
            began = time.monotonic()
            for _ in range(30):
                one.health_hints.publish(Hint(replica="a", problem="open", duration_s=30))
                assert not await found()
            assert time.monotonic() - began < 15, "nobody waits for what is away: that were 30 seconds"
            assert sessions_of(other).missed_lookups == missed + 30
        finally:
            await asyncio.to_thread(server.start)
        await until(lambda: bool(heard), 60)  # pending rows are written once it is back
        await sought()

    try:
        asyncio.run(go_on())
    finally:
        one.close()
        other.close()
