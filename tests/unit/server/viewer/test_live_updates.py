"""Live updates of every open page, from one poll of the store."""

import asyncio
import json
import threading
import time

import pytest
from agentguard_server.viewer.live_updates import (
    MAX_IDS,
    MAX_LISTENERS,
    EventHub,
    EventListener,
    _build_runs_event,
)

from agentguard.errors import Overloaded, StoreUnavailable
from agentguard.store import Store
from agentguard.store.db.rows import DiagnosisRow, RunRow
from agentguard.store.db.run_summary import SummaryChange
from agentguard.store.read.change_detection import ChangeDetector
from tests.postgres import postgres, postgres_url  # noqa: F401


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request, tmp_path):
    url = tmp_path / "s.db" if request.param == "sqlite" else request.getfixturevalue("postgres_url")
    with Store.open(url) as opened:
        yield opened


async def event(stream, name: str = "runs", within_s: float = 60.0) -> dict:
    """Return the data of the next event of a name."""

    async def look() -> dict:
        async for part in stream:
            lines = part.decode().splitlines()
            if f"event: {name}" in lines:
                return json.loads(next(one for one in lines if one.startswith("data: "))[6:])
        raise AssertionError("the stream ended")

    return await asyncio.wait_for(look(), within_s)


def write(store, *ids: str) -> None:
    store.write(*(RunRow(id=id, task="t") for id in ids)).wait(10)


def test_pages_receive_written_runs(store):
    async def main() -> None:
        hub = EventHub(store, poll_interval_s=0.02)
        streams = [await hub.listen() for _ in range(3)]
        pending = [asyncio.ensure_future(event(one)) for one in streams]
        await asyncio.sleep(0.1)
        await asyncio.to_thread(write, store, "a")
        first = await asyncio.gather(*pending)
        assert [one["ids"] for one in first] == [["a"]] * 3
        assert first[0]["created"][0] <= first[0]["version"]
        pending = [asyncio.ensure_future(event(one)) for one in streams]
        said = DiagnosisRow(run_id="a", method="m", verdict="failed")
        await asyncio.to_thread(lambda: store.write(said).wait(10))
        assert [one["ids"] for one in await asyncio.gather(*pending)] == [["a"]] * 3
        hub.close()
        for one in streams:
            assert [part async for part in one] == []

    asyncio.run(main())


def test_pages_receive_writes_of_other_processes(store):
    other = Store(store.address, store.options)

    async def main() -> None:
        hub = EventHub(store, poll_interval_s=0.02)
        stream = await hub.listen()
        pending = asyncio.ensure_future(event(stream))
        await asyncio.sleep(0.1)
        await asyncio.to_thread(write, other, "theirs")
        assert (await pending)["ids"] == ["theirs"]
        hub.close()

    asyncio.run(main())
    other.close()


def test_missed_updates_are_sent_at_once(store):
    write(store, "old")
    since = store.list_changes(0.0)[0].updated_at
    write(store, "new")

    async def main() -> None:
        hub = EventHub(store, poll_interval_s=5.0)
        assert (await event(await hub.listen(since)))["ids"] == ["new"]
        assert sorted((await event(await hub.listen(0.0)))["ids"]) == ["new", "old"]
        hub.close()

    asyncio.run(main())


def test_missed_updates_are_queried_after_first_poll(store):
    """Otherwise neither reports a row that appears between the two."""
    write(store, "old")

    async def main() -> None:
        hub, order = EventHub(store, poll_interval_s=5.0), []
        look, changes = hub._find_changes, hub._read_changes

        def slowly(pulse):
            time.sleep(0.2)
            order.append("look")
            return look(pulse)

        async def asked(since):
            order.append("missed")
            return await changes(since)

        hub._find_changes, hub._read_changes = slowly, asked
        assert (await event(await hub.listen(0.0)))["ids"] == ["old"]
        assert order[:2] == ["look", "missed"]
        hub.close()

    asyncio.run(main())


def test_page_opened_while_last_one_closes_receives_updates(store, monkeypatch):
    closing, closed = threading.Event(), threading.Event()
    close = ChangeDetector.close

    def slowly(pulse):
        closing.set()
        assert closed.wait(60)
        close(pulse)

    monkeypatch.setattr(ChangeDetector, "close", slowly)

    async def main() -> None:
        hub = EventHub(store, poll_interval_s=0.01)
        first = await hub.listen()
        await anext(first)
        await first.aclose()
        assert await asyncio.to_thread(closing.wait, 60)
        second = await hub.listen()
        closed.set()
        pending = asyncio.ensure_future(event(second, within_s=20))
        await asyncio.to_thread(write, store, "new")
        assert (await pending)["ids"] == ["new"]
        hub.close()

    asyncio.run(main())


def test_one_task_polls_only_while_pages_are_open(tmp_path):
    with Store.open(tmp_path / "s.db") as store:

        async def main() -> None:
            looks = 0
            hub = EventHub(store, poll_interval_s=0.01)
            look = hub._find_changes

            def counted(pulse):
                nonlocal looks
                looks += 1
                return look(pulse)

            hub._find_changes = counted
            await asyncio.sleep(0.05)
            assert looks == 0
            began = time.monotonic()
            streams = [await hub.listen() for _ in range(20)]
            tasks = [asyncio.ensure_future(event(one)) for one in streams]
            async with asyncio.timeout(60):
                while looks < 10:
                    await asyncio.sleep(0.01)
            assert looks <= 1 + (time.monotonic() - began) / 0.01
            for one in tasks:
                one.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            for one in streams:
                await one.aclose()
            await asyncio.wait_for(hub._task, 60)
            before = looks
            await asyncio.sleep(0.1)
            assert looks == before

        asyncio.run(main())


def test_too_many_pages_are_rejected(tmp_path):
    with Store.open(tmp_path / "s.db") as store:

        async def main() -> None:
            hub = EventHub(store)
            streams = [await hub.listen() for _ in range(MAX_LISTENERS)]
            with pytest.raises(Overloaded, match="close some"):
                await hub.listen()
            hub.close()
            for one in streams:
                [_ async for _ in one]
            await hub.listen()

        asyncio.run(main())


def test_idle_connection_receives_heartbeat(tmp_path):
    with Store.open(tmp_path / "s.db") as store:

        async def main() -> None:
            hub = EventHub(store, heartbeat_interval_s=0.02)
            stream = await hub.listen()
            assert await anext(stream) == b"retry: 3000\n\n"
            assert await asyncio.wait_for(anext(stream), 60) == b": still here\n\n"
            hub.close()

        asyncio.run(main())


def test_unavailable_store_recovers(tmp_path, monkeypatch):
    with Store.open(tmp_path / "s.db") as store:

        async def main() -> None:
            monkeypatch.setattr("agentguard_server.viewer.live_updates._ERROR_PAUSE_S", 0.02)
            hub = EventHub(store, poll_interval_s=0.01)
            look, away = hub._find_changes, True

            def failing(pulse):
                if away:
                    raise StoreUnavailable("gone")
                return look(pulse)

            hub._find_changes = failing
            stream = await hub.listen()
            pending = asyncio.ensure_future(event(stream))
            await asyncio.sleep(0.1)
            away = False
            await asyncio.to_thread(write, store, "a")
            assert (await pending)["ids"] == ["a"]
            hub.close()

        asyncio.run(main())


def test_loading_progress_is_sent(tmp_path):
    with Store.open(tmp_path / "s.db") as store:

        async def main() -> None:
            state = {"total": 2, "done": 0, "runs": 0, "broken": 0, "running": True}
            hub = EventHub(store, poll_interval_s=0.01, read_load_progress=lambda: dict(state))
            stream = await hub.listen()
            assert (await event(stream, "loading"))["done"] == 0
            state.update(done=1, runs=5)
            assert (await event(stream, "loading"))["runs"] == 5
            hub.close()

        asyncio.run(main())


def test_slow_page_receives_one_combined_event():
    page = EventListener()
    for i in range(200):
        page.push("runs", _build_runs_event([SummaryChange(f"r{i % 70}", float(i), 0.0)]))
    page.push("loading", {"done": 1})
    page.push("loading", {"done": 2})
    assert page.pending_events["loading"] == {"done": 2}
    assert len(page.pending_events["runs"]["ids"]) == MAX_IDS == len(set(page.pending_events["runs"]["ids"]))
    assert page.pending_events["runs"]["more"] is True
    assert page.pending_events["runs"]["version"] == 199.0
