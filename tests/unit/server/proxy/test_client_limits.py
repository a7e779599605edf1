"""Limits of a key over several workers: workers share their grants, and none waits for another."""

from __future__ import annotations

import multiprocessing
import time
from pathlib import Path
from typing import Any

import pytest
from agentguard_server.proxy.auth.authorization import Caller, Keyring
from agentguard_server.proxy.auth.shared_counters import SharedCounters
from agentguard_server.proxy.config.schema import ClientLimits, KeyOptions
from agentguard_server.proxy.errors import ProxyError
from hypothesis import HealthCheck, given, settings, strategies as st

HASH = "sha256:" + "ab" * 32


def ring(folder: Path, worker: int, workers: int = 2, **limits: int) -> Caller:
    quotas = SharedCounters(folder, worker=worker, workers=workers)
    keys = Keyring([KeyOptions(name="k", hash=HASH, limits=ClientLimits(**limits))], counters=quotas)
    found = keys.find_by_name("k")
    assert found is not None
    return found[1]


def wait_of(caller: Caller, now: float) -> float | None:
    """Begin a request; return None if it is accepted, else the seconds until a retry."""
    try:
        caller.acquire(now)
    except ProxyError as refusal:
        assert (refusal.status, refusal.code) == (429, "rate_limit_exceeded")
        return refusal.retry_after_s
    return None


def test_concurrency_limit_is_shared_by_workers(tmp_path: Path) -> None:
    one, other = ring(tmp_path, 0, max_concurrent=3), ring(tmp_path, 1, max_concurrent=3)
    assert [wait_of(one, 1.0) for _ in range(3)] == [None] * 3
    assert wait_of(other, 1.0) == wait_of(one, 1.0) == 1.0
    one.release()
    assert wait_of(other, 1.0) is None
    assert wait_of(one, 1.0) == 1.0


def test_concurrency_of_dead_worker_expires(tmp_path: Path) -> None:
    one, other = ring(tmp_path, 0, max_concurrent=2), ring(tmp_path, 1, max_concurrent=2)
    assert [wait_of(one, 1.0), wait_of(one, 1.0), wait_of(other, 1.0)] == [None, None, 1.0]
    in_its_place = ring(tmp_path, 0, max_concurrent=2)
    assert [wait_of(other, 1.0), wait_of(in_its_place, 1.0), wait_of(other, 1.0)] == [None, None, 1.0]


def test_reload_keeps_granted_and_used_limits(tmp_path: Path) -> None:
    quotas = SharedCounters(tmp_path, worker=0, workers=2)

    def made(**limits: int) -> Caller:
        found = Keyring(
            [KeyOptions(name="k", hash=HASH, limits=ClientLimits(**limits))], counters=quotas
        ).find_by_name("k")
        assert found is not None
        return found[1]

    before = made(max_concurrent=1, requests_per_minute=2)
    assert wait_of(before, 10.0) is None
    after = made(max_concurrent=1, requests_per_minute=2)
    assert wait_of(after, 10.0) == 1.0
    before.release()
    assert wait_of(after, 10.0) is None
    after.release()
    wait = wait_of(after, 10.0)
    assert wait is not None
    assert 29 < wait <= 30


def test_rate_limited_request_does_not_hold_concurrency(tmp_path: Path) -> None:
    caller = ring(tmp_path, 0, max_concurrent=1, requests_per_minute=1)
    assert wait_of(caller, 5.0) is None
    caller.release()
    assert (wait_of(caller, 5.0) or 0) > 50
    assert wait_of(caller, 66.0) is None


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    limit=st.integers(1, 60),
    asks=st.lists(st.tuples(st.integers(0, 2), st.floats(0, 10, allow_nan=False)), min_size=1, max_size=80),
)
def test_workers_together_admit_as_much_as_one(
    tmp_path: Path, limit: int, asks: list[tuple[int, float]]
) -> None:
    """The reference is a token bucket; requests go to any worker."""
    (tmp_path / "quotas").unlink(missing_ok=True)
    workers = [ring(tmp_path, number, 3, requests_per_minute=limit) for number in range(3)]
    tokens, refilled_at = float(limit), 0.0
    now = 1000.0
    for number, gap in asks:
        now += gap
        tokens, refilled_at = min(limit, tokens + (now - refilled_at) * limit / 60), now
        wait, expected = wait_of(workers[number], now), None if tokens >= 1 else (1 - tokens) * 60 / limit
        tokens -= expected is None
        if (wait is None) != (expected is None):  # rounding differs between the two
            assert (wait or expected or 0) < 1e-4
            return
        assert wait is None or wait == pytest.approx(expected, abs=1e-4)


_PAUSE_S = 0.0005


def _takes(folder: Path, worker: int, most: int, ready: Any, let_in: Any) -> None:
    caller, seen, running = ring(folder, worker, 4, max_concurrent=most, requests_per_minute=600), 0, 0
    quota = SharedCounters(folder, worker=3, workers=4).find_or_create(b"key:k")
    ready.wait(60)
    until, halted = time.monotonic() + 5.0, 0.0
    while (asked := time.monotonic()) < until:
        entered = wait_of(caller, asked) is None
        took = time.monotonic() - asked
        halted += took if took > _PAUSE_S else 0.0
        if entered:
            running = max(running, quota.in_flight)
            seen += 1
            caller.release()
        time.sleep(_PAUSE_S)
    let_in.put((seen, running, halted))


@pytest.mark.slow
def test_processes_never_exceed_the_limit(tmp_path: Path) -> None:
    """600 per minute are 600 at once and ten per second; the race of processes loses almost nothing.

    A process that is paused while it counts a request misses the grants of the pause. The tolerance is the
    number of requests that a process can send in that time.
    """
    method = multiprocessing.get_context("spawn")
    queue, ready = method.Queue(), method.Barrier(2)
    processes = [method.Process(target=_takes, args=(tmp_path, n, 2, ready, queue)) for n in range(2)]
    began = time.monotonic()
    for one in processes:
        one.start()
    got = [queue.get(timeout=60) for _ in processes]
    for one in processes:
        one.join(30)
    seconds = time.monotonic() - began
    forgotten = sum(halted for *_, halted in got) / _PAUSE_S
    assert sum(seen for seen, *_ in got) <= 600 + 10 * seconds + 6 + forgotten
    assert all(seen > 0 for seen, *_ in got)
    assert max(running for _, running, _ in got) <= 3, "two, and one that is counted as it is refused"


def test_keys_beyond_table_rows_get_a_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agentguard_server.proxy.auth.shared_counters._MAX_ROWS", 2)
    quotas = SharedCounters(tmp_path, worker=0, workers=2)
    options = [
        KeyOptions(name=f"k{n}", hash=f"sha256:{n:064x}", limits=ClientLimits(max_concurrent=2))
        for n in range(1, 4)
    ]
    keys = Keyring(options, counters=quotas)
    callers = [found[1] for n in range(1, 4) if (found := keys.find_by_name(f"k{n}"))]
    assert [[wait_of(one, 1.0), wait_of(one, 1.0)] for one in callers].count([None, None]) == 2
    assert wait_of(callers[-1], 1.0) == 1.0
