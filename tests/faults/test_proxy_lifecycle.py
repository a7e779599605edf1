"""Disconnects, kills and lost resources while the proxy serves.

The numbers are those of the table of faults: the client disconnects (14), kill -9 (15), the store is locked,
removed, full or missing from the start (16), SIGTERM with open streams (20), the judge's server dies (22).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import signal
import socket
import sqlite3
import struct
import time
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentguard.store.read.pagination import Page
from agentguard.store.store import Store
from agentguard.testing.fake_backend import FakeBackend, Hang, Ok, Refuse, Stall, StatusFault, Truncate
from tests.faults.proxy_client import PATHS, Breach, Got, ask, body_for, outcome, request_bytes
from tests.faults.proxy_process import SLACK_S, Proxy, replicas, serving, soon, until
from tests.faults.test_store_outage import disk, lock_held, remove  # noqa: F401
from tests.postgres import postgres, postgres_url  # noqa: F401

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CHAT = PATHS["chat"]
CANCELLED_S = 0.1
"""Limit for the upstream cancellation after a client disconnect; `SLACK_S` is the machine's tolerance."""


def config(*backends: FakeBackend, **more: Any) -> dict[str, Any]:
    return {"backends": {"replicas": replicas(*backends), "health": "off"}, **more}


# 14: the client disconnects


def close(client: socket.socket) -> None:
    """Close with FIN."""
    client.close()


def reset(client: socket.socket) -> None:
    """Close with RST."""
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()


@pytest.mark.parametrize("workers", [1, 2])
def test_client_disconnect_cancels_upstream_request(tmp_path: Path, workers: int) -> None:
    """Disconnect before the first token, within a stream, and without streaming: LiteLLM #37140."""
    scenes = [
        (stream, fault, leave)
        for stream, fault in (
            (True, Hang()),
            (True, Stall(tokens=0)),
            (True, Stall(tokens=3)),
            (True, Ok(token_interval_s=20.0)),
            (False, Hang()),
            (False, Ok(first_token_delay_s=30.0)),
            (False, Stall()),
        )
        for leave in (close, reset)
    ]
    settings = {"listen": {"workers": workers}}
    with FakeBackend(name="a") as a, serving(tmp_path, config(a, **settings)) as proxy:
        late = []
        for n, (stream, fault, leave) in enumerate(scenes):
            a.set_script(fault)
            client = socket.create_connection(("127.0.0.1", proxy.port))
            client.sendall(request_bytes(CHAT, body_for("chat", stream=stream, text=f"{n}")))
            a.wait_until(lambda n=n: len(a.requests) == n + 1)  # type: ignore[misc]
            if stream and isinstance(fault, Stall | Ok) and (isinstance(fault, Ok) or fault.tokens):
                assert client.recv(100)
            time.sleep(0.05)
            left = time.monotonic()
            leave(client)
            a.wait_until(lambda n=n: a.requests[n].is_finished)  # type: ignore[misc]
            assert a.requests[n].disconnected_at is not None, (stream, fault, leave)
            late.append(a.requests[n].disconnected_at - left)
        assert max(late) < CANCELLED_S + SLACK_S
        assert (
            sorted(late)[len(late) // 2] < CANCELLED_S + 0.4
        )  # no pause of the machine affects half of them
        a.set_script(Ok())
        assert asyncio.run(ask(proxy.port, CHAT, body_for("chat"))).status == 200
        a.wait_until(lambda: a.active_requests == 0)


def test_client_disconnect_cancels_pending_retry(tmp_path: Path) -> None:
    fault = StatusFault(status=503, retry_after="100")
    with FakeBackend(fault, name="a") as a, serving(tmp_path, config(a)) as proxy:

        def inflight() -> int:
            return int(asyncio.run(proxy.status())["inflight"])

        client = socket.create_connection(("127.0.0.1", proxy.port))
        client.sendall(request_bytes(CHAT, body_for("chat")))
        a.wait_until(lambda: len(a.requests) == 1 and a.active_requests == 0)
        time.sleep(0.3)  # the answer has mostly been read, and the retry waits
        assert inflight() == 1
        client.close()
        until(lambda: inflight() == 0)
        assert len(a.requests) == 1


# 20: SIGTERM with 50 streams open


async def fifty(proxy: Proxy, a: FakeBackend, signals: Callable[[], Awaitable[None]]) -> list[Got]:
    asked = [
        asyncio.create_task(ask(proxy.port, CHAT, body_for("chat", stream=True, text=f"stream {n}")))
        for n in range(50)
    ]
    await soon(lambda: sum(one.tokens > 0 for one in list(a.requests)) >= 50)
    await signals()
    return list(await asyncio.gather(*asked))


@pytest.mark.parametrize("workers", [1, 2])
def test_drain_finishes_fifty_streams(tmp_path: Path, workers: int) -> None:
    with FakeBackend(Ok(token_interval_s=3.0), word_count=3, name="a") as a:
        settings = config(a, listen={"shutdown_timeout_s": 20.0, "workers": workers})
        with serving(tmp_path, settings) as proxy:

            async def end() -> None:
                proxy.process.send_signal(signal.SIGTERM)
                # Until all processes have received the signal, one of them may accept a request.
                while (late := await ask(proxy.port, CHAT, body_for("chat"))).end != "refused":
                    assert late.end in ("reset", "cut") or late.status in (200, 503)
                    assert a.active_requests, "requests were taken until the streams had ended"
                assert a.active_requests, "the streams had ended before requests were refused"

            got = asyncio.run(fifty(proxy, a, end))
            for n, one in enumerate(got):
                body = body_for("chat", stream=True, text=f"stream {n}")
                assert outcome("chat", one, stream=True).said == a.build_expected_response(CHAT, body).content
            assert proxy.process.wait(10) == 0


def test_drain_timeout_ends_each_stream_with_one_error(tmp_path: Path) -> None:
    with FakeBackend(Stall(tokens=2), name="a") as a:
        settings = config(a, listen={"shutdown_timeout_s": 1.0})
        settings["backends"]["pipeline"] = {
            "load_shedding": {"concurrency": {"algorithm": "fixed", "initial_limit": 100}}
        }
        with serving(tmp_path, settings) as proxy:
            began = 0.0

            async def end() -> None:
                nonlocal began
                began = time.monotonic()
                proxy.process.send_signal(signal.SIGTERM)

            got = asyncio.run(fifty(proxy, a, end))
            assert time.monotonic() - began < 1.0 + SLACK_S
            assert {outcome("chat", one, stream=True).error for one in got} == {"shutting_down"}
            assert proxy.process.wait(10) == 0
        a.wait_until(lambda: a.active_requests == 0)


# 15: kill -9


def rows(store: Path) -> int:
    """Return the rows of all tables; check the integrity of the database."""
    with contextlib.closing(sqlite3.connect(store)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        names = [one[0] for one in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        return sum(connection.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in names)


def tree(pid: int) -> list[int]:
    """Return the descendants of a process."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # it may end meanwhile
        for thread in Path(f"/proc/{pid}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                found += [child, *tree(child)]
    return found


async def traffic(proxy: Proxy, name: str, count: int) -> list[tuple[str, str, Got]]:
    """Send requests with and without effects; a kill interrupts some of them."""

    async def one(n: int) -> tuple[str, str, Got]:
        await asyncio.sleep(n * 0.03)
        api, stream = ("responses", False) if n % 2 else ("chat", True)
        mark = f"{name}-{n}"
        more = {"background": True} if api == "responses" else {}
        body = body_for(api, stream=stream, text=f"[[{mark}]]", **more)
        return api, mark, await ask(proxy.port, PATHS[api], body, seconds=20)

    return list(await asyncio.gather(*(one(n) for n in range(count))))


def test_killed_workers_and_collector_lose_only_open_requests(tmp_path: Path) -> None:
    """Twelve kills per seed, at random moments: requests continue, the store is intact, no effect repeats."""
    with ThreadPoolExecutor(3) as threads:  # each run mostly waits
        for wrong in threads.map(lambda seed: killed(tmp_path / str(seed), seed), (1, 2, 3)):
            assert not wrong


def killed(folder: Path, seed: int) -> list[str]:
    """Return the violations of one seed's run."""
    store = folder / "runs.db"
    settings = {"listen": {"workers": 2}, "capture": {"store": str(store)}, "logs": {"level": "error"}}
    fault = Ok(first_token_delay_s=0.05, token_interval_s=0.02)
    with FakeBackend(fault, name="a") as a, serving(folder, config(a, **settings)) as proxy:
        done = asyncio.run(_while_killing(proxy, seed))
        wrong = [f"seed {seed}: {what}" for api, mark, got in done for what in _wrong(a, api, mark, got)]
        answered = sum(got.end == "whole" for _, _, got in done)
        if answered < 60:
            wrong.append(f"seed {seed}: only {answered} of {len(done)} were answered")
        after = asyncio.run(ask(proxy.port, CHAT, body_for("chat")))
        if after.status != 200:
            wrong.append(f"seed {seed}: afterwards {after}")
        until(lambda: store.exists() and rows(store) > 0)
        a.wait_until(lambda: a.active_requests == 0, 30.0)
    return wrong


async def _while_killing(proxy: Proxy, seed: int) -> list[tuple[str, str, Got]]:
    rng = random.Random(seed)
    asked = asyncio.create_task(traffic(proxy, f"seed-{seed}", 160))
    for _ in range(12):
        await asyncio.sleep(rng.uniform(0.1, 0.5))
        victims = tree(proxy.pid)
        if len(victims) > 2:  # never all answering processes at once
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(victims), signal.SIGKILL)
    return await asked


def _wrong(a: FakeBackend, api: str, mark: str, got: Got) -> list[str]:
    attempts = len(a.list_attempts(mark))
    wrong = [f"{mark} came {attempts} times"] if attempts > (1 if api == "responses" else 3) else []
    if got.end == "whole":
        try:
            found = outcome(api, got, stream=api == "chat")
        except Breach as breach:
            return [*wrong, f"{mark}: {breach}"]
        wrong += [f"{mark}: {found}"] if found.error is not None else []
    return wrong


def test_killed_parent_leaves_no_process_and_restart_succeeds(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    settings = {"listen": {"workers": 2}, "capture": {"store": str(store)}}
    with FakeBackend(name="a") as a:
        kept = 0
        for life in range(2):
            with serving(tmp_path / str(life), config(a, **settings)) as proxy:
                for n in range(10):
                    got = asyncio.run(ask(proxy.port, CHAT, body_for("chat", text=f"life {life} {n}")))
                    assert got.status == 200
                until(lambda kept=kept: store.exists() and rows(store) > kept)  # type: ignore[misc]
                until(lambda: len(tree(proxy.pid)) >= 3)  # worker 1 may be ready first
                kept, children = rows(store), tree(proxy.pid)
                proxy.kill()
                until(lambda children=children: not any(map(alive, children)))  # type: ignore[misc]
                assert rows(store) >= kept
                with pytest.raises(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", proxy.port)).close()


def count_steps(url: str) -> list[int]:
    """Return the number of stored steps of each run."""
    with Store.open(url) as store:
        runs = store.list_runs(page=Page(limit=500)).rows
        return [len(run.steps) for one in runs if (run := store.get_trajectory(one.id)) is not None]


async def converse(proxies: Sequence[Proxy], number: int) -> None:
    """Send a conversation of four tasks under one of six names, each task to the next proxy."""
    history: list[dict[str, str]] = []
    for turn in range(4):
        history.append({"role": "user", "content": f"task {number}.{turn}"})
        body = json.dumps({"model": "m", "messages": history}).encode()
        name = ("agentguard-run", f"job-{number % 6}")
        got = await ask(proxies[(number + turn) % len(proxies)].port, CHAT, body, headers=[name])
        assert got.status == 200
        history.append(json.loads(got.body)["choices"][0]["message"])


@pytest.mark.parametrize("database", ["sqlite", "postgresql"])
def test_two_proxies_capture_each_task_once_into_one_store(
    database: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Two proxies with two workers each, and 24 conversations that share six names."""
    url = request.getfixturevalue("postgres_url") if database == "postgresql" else str(tmp_path / "runs.db")
    settings = {"listen": {"workers": 2}, "capture": {"store": url}, "cluster": {"store": url}}
    with FakeBackend(name="a") as a, contextlib.ExitStack() as stack:
        proxies = [
            stack.enter_context(serving(tmp_path / name, config(a, **settings))) for name in ("one", "two")
        ]

        async def send_all() -> None:
            await asyncio.gather(*(converse(proxies, number) for number in range(24)))

        asyncio.run(send_all())
        until(lambda: sum(count_steps(url)) >= 24 * 4 * 2)
    assert count_steps(url) == [2] * 24 * 4


def test_unguarded_request_of_a_named_run_does_not_replace_the_guarded_run(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    settings = {"capture": {"store": str(store)}, "guard": {}}
    with FakeBackend(name="a") as a, serving(tmp_path, config(a, **settings)) as proxy:
        for text, tools in (("title of the chat", False), ("book a seat", True)):
            body = body_for("chat", text=text, tools=tools)
            got = asyncio.run(ask(proxy.port, CHAT, body, headers=[("agentguard-run", "nightly")]))
            assert got.status == 200
            assert got.header("agentguard-run") == ("nightly" if tools else None)
        until(lambda: len(count_steps(str(store))) == 2)
        with Store.open(store) as runs:
            assert {run.id for run in runs.list_runs().rows} == {"nightly", "nightly-unguarded"}


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


# 16: the store


async def keeps_serving(proxy: Proxy, count: int = 30) -> None:
    """Check that requests are answered without delay, independent of the store."""
    for n in range(count):
        got = await ask(proxy.port, CHAT, body_for("chat", stream=bool(n % 2), text="x" * 4000 + str(n)))
        assert outcome("chat", got, stream=bool(n % 2)).error is None
        assert got.seconds < SLACK_S


def captured(proxy: Proxy) -> dict[str, Any]:
    """Return the capture section of /status."""
    found: dict[str, Any] = asyncio.run(proxy.status())["workers"][0]["capture"]
    return found


def all_kept(proxy: Proxy) -> bool:
    """Return whether no row is pending: in the worker, in transit, or at the store."""
    found = captured(proxy)
    return not (found["pending"] or found["collector"]["pending"] or found["collector"]["error"])


def test_locked_or_removed_store_fails_no_request(tmp_path: Path) -> None:
    store = tmp_path / "runs.db"
    with FakeBackend(name="a") as a, serving(tmp_path, config(a, capture={"store": str(store)})) as proxy:
        asyncio.run(keeps_serving(proxy))
        until(lambda: store.exists() and rows(store) > 0)
        with lock_held(store):
            asyncio.run(keeps_serving(proxy))
            until(lambda: captured(proxy)["collector"]["error"])
        until(lambda: all_kept(proxy))
        before = rows(store)
        remove(store)
        asyncio.run(keeps_serving(proxy))
        until(lambda: store.exists() and rows(store) > 0)
        assert before > 0
        assert captured(proxy)["lost"] == 0


def test_full_disk_fails_no_request_and_is_reported(tmp_path: Path, disk: Path) -> None:  # noqa: F811
    filler = disk / "filler"
    settings = config(None or FakeBackend(name="unused"), capture={"store": str(disk / "runs.db")})
    with FakeBackend(name="a") as a:
        settings["backends"]["replicas"] = replicas(a)
        with serving(tmp_path, settings) as proxy:
            asyncio.run(keeps_serving(proxy, 4))
            until(lambda: (disk / "runs.db").exists() and rows(disk / "runs.db") > 0)
            with contextlib.suppress(OSError):
                filler.write_bytes(bytes(1 << 20))
            # A request takes 8 KB of the store here. The number of requests is fixed: all pending rows must
            # fit on
            # the disk once it has space again, otherwise the store could not recover.
            asyncio.run(keeps_serving(proxy, 20))
            until(lambda: captured(proxy)["collector"]["error"])
            asyncio.run(keeps_serving(proxy))
            filler.unlink()
            until(lambda: all_kept(proxy))
            assert captured(proxy)["lost"] == 0


def test_missing_store_fails_no_request(tmp_path: Path) -> None:
    with contextlib.closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        nowhere = f"postgresql://user:hunter2@127.0.0.1:{held.getsockname()[1]}/runs"
    settings = {"store": nowhere, "max_queue_bytes": 65_536}
    with FakeBackend(name="a") as a, serving(tmp_path, config(a, capture=settings)) as proxy:
        asyncio.run(keeps_serving(proxy))
        until(lambda: captured(proxy)["collector"]["error"] or captured(proxy)["lost"])
        assert "hunter2" not in json.dumps(asyncio.run(proxy.status()))
    assert "hunter2" not in proxy.printed()


# 22: the judge's server dies


@pytest.mark.parametrize(
    "fault", [Refuse(), Hang(), Truncate(framing="close")], ids=lambda f: type(f).__name__
)
def test_dead_judge_fails_no_request(tmp_path: Path, fault: Any) -> None:
    with FakeBackend(name="judge") as judge, FakeBackend(name="a") as a:
        policy = {
            "version": 1,
            "judge": {"base_url": judge.url, "model": "m", "deadline_s": 2.0},
            "localizer": {"name": "fused"},
        }
        settings = config(a, guard={"policy": policy}, capture={"store": str(tmp_path / "runs.db")})
        with serving(tmp_path, settings) as proxy:
            asyncio.run(guarded_turns(proxy, "before"))
            judge.set_script(fault)
            asyncio.run(guarded_turns(proxy, "after"))
            assert asyncio.run(proxy.get("/healthz")).status == 200


async def guarded_turns(proxy: Proxy, name: str) -> None:
    """Run an agent whose tool call fails repeatedly."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": f"book a flight, {name}"}]
    for n in range(6):
        body = json.loads(body_for("chat", tools=n < 5))
        body["messages"] = messages
        headers = (("agentguard-run", name),)
        got = await ask(proxy.port, CHAT, json.dumps(body).encode(), headers=headers, seconds=30)
        outcome("chat", got, stream=False)
        assert got.seconds < 2.0 + 2 * SLACK_S
        if got.status != 200:
            return
        message = json.loads(got.body)["choices"][0]["message"]
        messages.append(message)
        messages += [
            {"role": "tool", "tool_call_id": call["id"], "content": "error: no such flight"}
            for call in message.get("tool_calls") or []
        ]
