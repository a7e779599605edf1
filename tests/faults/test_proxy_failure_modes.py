"""Single faults that need their own setup, against the proxy as a process.

The numbers are those of the table of faults: refused connections and names that do not resolve (1), the
deadline over all attempts (4), the slow first token (5), Retry-After (6), silent corruption (9), slow clients
(10), overload (11), bad replicas (12), an outage (13).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import time
from email.utils import formatdate
from pathlib import Path
from typing import Any

import pytest

from agentguard.testing.fake_backend import (
    Corrupt,
    FakeBackend,
    Hang,
    Huge,
    InjectedFault,
    InvalidResponse,
    Ok,
    RecordedRequest,
    Refuse,
    Reset,
    StatusFault,
)
from tests.faults.proxy_cases import Across
from tests.faults.proxy_client import PATHS, Got, ask, body_for, outcome, request_bytes
from tests.faults.proxy_process import SLACK_S, Proxy, replicas, serving, until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CHAT = PATHS["chat"]
FEW: dict[str, Any] = {"hedge": "off", "adaptive_throttling": "off", "circuit_breaker": "off"}
AMPLE: dict[str, float] = {"reserve": 100.0, "burst": 100.0, "per_second": 100.0}
"""A budget that never runs out, for tests of retries and not of their number."""


def config(*backends: FakeBackend, pipeline: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    section = {"replicas": replicas(*backends), "health": "off", "pipeline": pipeline or FEW, **more}
    return {"backends": section}


async def many(proxy: Proxy, count: int, *, gap_s: float = 0.0, **options: Any) -> list[Got]:
    """Send the given number of requests, concurrently or with a gap between them."""

    async def one(n: int) -> Got:
        await asyncio.sleep(n * gap_s)
        return await ask(proxy.port, CHAT, body_for("chat", text=f"number {n}", **options))

    return list(await asyncio.gather(*(one(n) for n in range(count))))


def closed_port() -> int:
    with contextlib.closing(socket.socket()) as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


# 1: refused, DNS failure


@pytest.mark.parametrize("effects", [False, True])
def test_unsent_request_fails_over_regardless_of_effects(tmp_path: Path, effects: bool) -> None:
    more = {"background": True} if effects else {}
    with FakeBackend(Refuse(), name="gone") as gone, FakeBackend(name="here") as here:
        settings = config(gone, here)
        with serving(tmp_path, settings) as proxy:
            for n in range(6):
                body = body_for("responses", text=str(n), **more)
                got = asyncio.run(ask(proxy.port, PATHS["responses"], body))
                assert outcome("responses", got, stream=False).error is None
        assert len(here.requests) == 6


def test_unresolvable_name_is_a_fast_typed_error(tmp_path: Path) -> None:
    settings = {
        "backends": {
            "replicas": [{"name": "nowhere", "url": "http://nowhere.invalid/v1"}],
            "health": "off",
            "pipeline": {**FEW, "timeout": {"total_s": 5}},
        }
    }
    with serving(tmp_path, settings) as proxy:
        for stream in (False, True):
            got = asyncio.run(ask(proxy.port, CHAT, body_for("chat", stream=stream)))
            found = outcome("chat", got, stream=stream)
            assert found.error is not None
            assert found.status in (502, 503, 504)
            assert got.seconds < 5 + SLACK_S


# 4: one deadline over all attempts


def test_deadline_covers_all_attempts(tmp_path: Path) -> None:
    pipeline = {
        **FEW,
        "timeout": {"total_s": 2.0},
        "retry": {
            "max_attempts": 10,
            "budget": AMPLE,
        },  # ten seconds, if each attempt had its own deadline
        "attempt_timeout": {"seconds": 1.0},
    }
    with FakeBackend(Hang(), name="a") as a, serving(tmp_path, config(a, pipeline=pipeline)) as proxy:
        for stream in (False, True):
            got = asyncio.run(ask(proxy.port, CHAT, body_for("chat", stream=stream)))
            assert got.status == 504
            assert outcome("chat", got, stream=stream).error in ("deadline_exceeded", "retries_exhausted")
            assert got.seconds < 2.0 + SLACK_S
        a.wait_until(lambda: a.active_requests == 0)
        assert all(one.is_cancelled for one in a.requests)


# 5: hedge


def test_slow_first_token_is_hedged_and_loser_is_cancelled(tmp_path: Path) -> None:
    slow = {f"number {n}": Ok(first_token_delay_s=20.0) for n in (30, 45)}
    # A paused machine causes hedges, too, but they do not replace the two required ones.
    budget = {"reserve": 4.0, "ratio": 0.05, "per_second": 0.0}
    pipeline = {**FEW, "hedge": {"min_samples": 20, "min_delay_s": 0.3, "budget": budget}}

    def script(seen: Any) -> Any:
        text = json.loads(seen.body)["messages"][0]["content"]
        return slow.pop(text, Ok())

    with (
        FakeBackend(script, name="a") as a,
        FakeBackend(script, name="b") as b,
        serving(tmp_path, config(a, b, pipeline=pipeline)) as proxy,
    ):
        asyncio.run(_one_after_the_other(proxy, 60))
        a.wait_until(lambda: a.active_requests + b.active_requests == 0)
        both = [*a.requests, *b.requests]
        assert len(both) == 60 + 2 + _stray(both)
        assert 2 + _stray(both) <= 4 + 60 * 0.05
        losers = [one for one in both if one.fault == Ok(first_token_delay_s=20.0)]
        assert len(losers) == 2
        for loser in losers:
            winner = next(one for one in both if one is not loser and one.body == loser.body)
            assert loser.disconnected_at is not None
            assert winner.answered_at is not None
            assert loser.disconnected_at - winner.answered_at < 0.1 + SLACK_S


async def _one_after_the_other(proxy: Proxy, count: int) -> None:
    for n in range(count):
        got = await ask(proxy.port, CHAT, body_for("chat", text=f"number {n}"))
        assert outcome("chat", got, stream=False).error is None
        assert got.seconds < 10


def _stray(seen: list[Any]) -> int:
    """Return the number of hedges that only a slow machine caused; a few are allowed."""
    bodies = [one.body for one in seen if one.fault == Ok() and not one.is_cancelled]
    return sum(one.is_cancelled and one.fault == Ok() for one in seen) + len(bodies) - len(set(bodies))


# 6: Retry-After


PUSHBACKS: dict[str, tuple[str | None, int, float]] = {
    "seconds": ("1", 2, 1.0),
    "zero": ("0", 2, 0.0),
    "date": ("", 2, 2.0),  # filled in for each request: three seconds later, in whole seconds
    "negative": ("-1", 1, 0.0),
    "nan": ("NaN", 2, 0.0),
    "inf": ("inf", 1, 0.0),
    "words": ("a while", 2, 0.0),
    "beyond": ("1e9", 1, 0.0),
    "an-hour": ("3600", 1, 0.0),
    "empty": ("", 2, 0.0),
    "absent": (None, 2, 0.0),
}


def test_retry_after_is_respected_up_to_the_deadline(tmp_path: Path) -> None:
    pipeline = {
        **FEW,
        "timeout": {"total_s": 12.0},
        "retry": {"backoff": {"initial_delay_s": 0.05}, "budget": AMPLE},
    }

    def script(seen: RecordedRequest) -> InjectedFault:
        if seen.attempt:
            return Ok()
        value = formatdate(time.time() + 3, usegmt=True) if seen.key == "date" else PUSHBACKS[seen.key][0]
        return StatusFault(status=429, retry_after=value)

    with FakeBackend(script, name="a") as a, serving(tmp_path, config(a, pipeline=pipeline)) as proxy:

        async def main() -> list[Got]:
            bodies = [body_for("chat", text=f"[[{name}]]") for name in PUSHBACKS]
            return await asyncio.gather(*(ask(proxy.port, CHAT, body) for body in bodies))

        answers = asyncio.run(main())
    for (name, (_, attempts, waits)), got in zip(PUSHBACKS.items(), answers, strict=True):
        seen = a.list_attempts(name)
        assert len(seen) == attempts, name
        assert (got.status == 200) == (attempts == 2), name
        if attempts == 2:
            assert seen[1].received_at - seen[0].received_at >= waits, name
        else:
            assert got.seconds < SLACK_S, name


# 8: empty choices


@pytest.mark.parametrize(
    ("stream", "apis"),
    [
        (False, ("chat", "completions", "responses", "embeddings")),
        (True, ("chat", "completions", "responses")),
    ],
)
def test_empty_answer_is_a_typed_error(tmp_path: Path, stream: bool, apis: tuple[str, ...]) -> None:
    with FakeBackend(InvalidResponse(kind="empty"), name="a") as a, serving(tmp_path, config(a)) as proxy:
        for api in apis:
            got = asyncio.run(ask(proxy.port, PATHS[api], body_for(api, stream=stream)))
            assert outcome(api, got, stream=stream).error is not None, api


# 9: silent corruption


def test_canary_removes_corrupting_replica(tmp_path: Path) -> None:
    canary = {"prompt": "Say the number 4711.", "expected": "4711", "interval_s": 0.2, "failure_threshold": 2}
    known = {"Say the number 4711.": "4711"}
    with (
        FakeBackend(Corrupt(), name="bad", known_answers=known) as bad,
        FakeBackend(name="good", known_answers=known) as good,
    ):
        settings = config(bad, good, probe=canary)
        with serving(tmp_path, settings) as proxy:
            bad.wait_until(lambda: len(bad.requests) >= 3)
            time.sleep(0.5)
            got = asyncio.run(many(proxy, 20))
            assert all(one.status == 200 for one in got)
            assert {one.header("agentguard-replica") for one in got} == {"good"}
            assert all(b"4711" in one.body for one in bad.requests)
            status = asyncio.run(proxy.status())
            assert "bad" in json.dumps(status)
            bad.set_script(Ok())
            asyncio.run(_comes_back(proxy))


async def _comes_back(proxy: Proxy) -> None:
    end = time.monotonic() + 60
    while time.monotonic() < end:
        got = await many(proxy, 6)
        if "bad" in {one.header("agentguard-replica") for one in got}:
            return
        await asyncio.sleep(0.2)
    raise AssertionError("a replica that is right again was never used again")


@pytest.mark.parametrize("stream", [False, True])
def test_vote_masks_corrupting_replica(tmp_path: Path, stream: bool) -> None:
    with (
        FakeBackend(Corrupt(), name="bad") as bad,
        FakeBackend(Ok(delay_s=0.1), name="b") as b,
        FakeBackend(Ok(delay_s=0.1), name="c") as c,
        serving(tmp_path, config(bad, b, c)) as proxy,
    ):
        for n in range(8):
            body = body_for("chat", text=f"number {n}", tools=True, stream=stream)
            got = asyncio.run(ask(proxy.port, CHAT, body, headers=(("agentguard-quorum", "3"),)))
            assert outcome("chat", got, stream=stream).said == b.build_expected_response(CHAT, body).content
            assert "voted=2/3" in (got.header("agentguard-upstream") or "")
        assert len(b.requests) == len(c.requests) == 8
        # Once two replies agree, the third is not needed, even if its request has not been sent.
        assert 1 <= len(bad.requests) <= 8


# 10: slow clients


def test_slow_head_and_body_time_out(tmp_path: Path) -> None:
    body = body_for("chat")
    with FakeBackend(name="a") as a:
        settings = {**config(a), "limits": {"header_timeout_s": 1.0, "body_timeout_s": 1.0}}
        with serving(tmp_path, settings) as proxy:
            before = proxy.open_files()["socket"]
            asyncio.run(_slow_loris(proxy, request_bytes(CHAT, body), len(body)))
            until(lambda: proxy.open_files()["socket"] <= before)
        assert a.requests == []


async def _slow_loris(proxy: Proxy, data: bytes, body: int) -> None:
    async def drip(sent: int) -> float:
        """Send ``sent`` bytes, then single bytes; return the seconds until the proxy closes."""
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        began = time.monotonic()
        writer.write(data[:sent])
        closed = asyncio.create_task(reader.read())
        try:
            for n in range(sent, len(data) - 1):
                if (await asyncio.wait({closed}, timeout=0.2))[0]:
                    break
                writer.write(data[n : n + 1])
            return time.monotonic() - began
        finally:
            closed.cancel()
            writer.close()

    head = len(data) - body
    times = await asyncio.gather(*(drip(sent) for sent in (0, 5, 30, head, head + 5) for _ in range(20)))
    assert max(times) < 1.0 + 1.0 + SLACK_S


def test_slow_reader_applies_backpressure_and_is_disconnected(tmp_path: Path) -> None:
    with FakeBackend(Huge(part="body", size=300 << 20), name="a") as a:
        settings = {**config(a), "limits": {"write_timeout_s": 3.0}}
        with serving(tmp_path, settings) as proxy:
            before = proxy.rss()
            with contextlib.closing(socket.create_connection(("127.0.0.1", proxy.port))) as client:
                client.sendall(request_bytes(CHAT, body_for("chat", stream=True)))
                client.recv(1000)
                a.wait_until(lambda: bool(a.requests))
                time.sleep(1.5)
                assert proxy.rss() - before < 32 << 20
                a.wait_until(lambda: a.requests[0].is_finished, 3.0 + 10.0)
                assert a.requests[0].is_cancelled
                assert a.requests[0].sent_bytes < 100 << 20


# 11, 13: overload and an outage, in short


def test_overload_is_rejected_at_once_and_accepted_requests_finish(tmp_path: Path) -> None:
    pipeline = {
        **FEW,
        "timeout": {"total_s": 20.0},
        "load_shedding": {
            "concurrency": {"algorithm": "fixed", "initial_limit": 10},
            "max_queue": 10,
            "queue_timeout_s": 10.0,
        },
    }
    with (
        FakeBackend(Ok(first_token_delay_s=0.2), name="a") as a,
        serving(tmp_path, config(a, pipeline=pipeline)) as proxy,
    ):
        got = asyncio.run(many(proxy, 200, gap_s=0.005))
    done = [one for one in got if one.status == 200]
    refused = [one for one in got if one.status == 503]
    assert len(done) + len(refused) == 200
    assert len(done) >= 10 + 10  # the capacity, even if all requests arrive at once
    assert refused
    assert max(one.seconds for one in done) < 10.0 + SLACK_S
    assert sum(one.seconds < SLACK_S for one in refused) >= 0.9 * len(refused)
    for one in refused:
        assert outcome("chat", one, stream=False).error == "overloaded"
    assert len(a.requests) == len(done)


def test_outage_leaves_no_lasting_effect(tmp_path: Path) -> None:
    with FakeBackend(name="a") as a, FakeBackend(name="b") as b:
        settings = {
            "backends": {"replicas": replicas(a, b), "health": {"interval_s": 0.5, "healthy_threshold": 1}}
        }
        settings["backends"]["pipeline"] = {
            "timeout": {"total_s": 8.0},
            "circuit_breaker": {"break_duration_s": 1.0},
        }
        settings["backends"]["outlier"] = {"base_ejection_time_s": 1.0}
        with serving(tmp_path, settings) as proxy:
            began = time.monotonic()
            assert all(one.status == 200 for one in asyncio.run(many(proxy, 40, gap_s=0.02)))
            with a.refuse_connections(), b.refuse_connections():
                down = asyncio.run(many(proxy, 100, gap_s=0.02))
            assert all(outcome("chat", one, stream=False).error for one in down[5:])
            asked = 40 + 100 + asyncio.run(_recovers(proxy))
            seen = sum(
                one.method == "POST" for one in (*a.requests, *b.requests)
            )  # the others are health checks
            assert seen <= asked * (1 + 0.2 + 0.05) + 3 + 10 * (time.monotonic() - began)


async def _recovers(proxy: Proxy) -> int:
    """Check that twenty requests succeed within 10 s of the end; return the number of requests until then."""
    end, asked = time.monotonic() + 10.0 + SLACK_S, 0
    while time.monotonic() < end:
        asked += 20
        if all(one.status == 200 for one in await many(proxy, 20, gap_s=0.02)):
            return asked
    raise AssertionError("it has not recovered in 10 s")


# 12: bad replicas


def test_bad_replica_is_ejected_and_shown(tmp_path: Path) -> None:
    with (
        FakeBackend(Reset(), name="bad") as bad,
        FakeBackend(name="b") as b,
        FakeBackend(name="c") as c,
        serving(
            tmp_path, config(bad, b, c, outlier={"consecutive_failures": 3, "base_ejection_time_s": 120.0})
        ) as proxy,
    ):
        # Sequential: with concurrent requests, many could reach the bad replica before its third failure.
        asyncio.run(_one_after_the_other(proxy, 60))
        assert len(bad.requests) == 3
        assert "eject" in json.dumps(asyncio.run(proxy.status()))
        seen = len(bad.requests)
        assert all(one.status == 200 for one in asyncio.run(many(proxy, 30)))
        assert len(bad.requests) == seen


def test_all_replicas_bad_are_still_used(tmp_path: Path) -> None:
    script = Across({})
    with (
        FakeBackend(StatusFault(status=500), name="a") as a,
        FakeBackend(StatusFault(status=500), name="b") as b,
        serving(
            tmp_path, config(a, b, outlier={"consecutive_failures": 3, "base_ejection_time_s": 60.0})
        ) as proxy,
    ):
        for one in asyncio.run(many(proxy, 20, gap_s=0.01)):
            assert outcome("chat", one, stream=False).error is not None
        a.set_script(script)
        b.set_script(script)
        assert sum(one.status == 200 for one in asyncio.run(many(proxy, 10))) == 10


def test_flapping_replica_costs_no_answer(tmp_path: Path) -> None:
    with (
        FakeBackend(name="flaps") as flaps,
        FakeBackend(name="b") as b,
        serving(tmp_path, config(flaps, b, pipeline={**FEW, "retry": {"budget": AMPLE}})) as proxy,
    ):
        got = asyncio.run(_while_it_flaps(proxy, flaps))
    assert sum(one.status == 200 for one in got) >= 118
    for one in got:
        outcome("chat", one, stream=False)


async def _while_it_flaps(proxy: Proxy, flaps: FakeBackend) -> list[Got]:
    asked = asyncio.create_task(many(proxy, 120, gap_s=0.02))
    for _ in range(4):
        await asyncio.sleep(0.3)
        with flaps.refuse_connections():
            await asyncio.sleep(0.3)
    return await asked
