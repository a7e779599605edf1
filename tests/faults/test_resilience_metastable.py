"""Metastable failures: an outage of five seconds at 80 % load must not persist after its cause.

The server processes requests even after their callers have left, as HTTP servers do. Retries of calls that
timed out then keep it busy with useless answers. This keeps the server overloaded after the trigger is gone,
unless the pipeline reduces the load (Bronson et al., Metastable Failures, 2021).
"""

from __future__ import annotations

import asyncio
import heapq
import random

import pytest

from agentguard.errors import ResilienceError
from agentguard.resilience import (
    AttemptTimeoutOptions,
    BasicRequest,
    CircuitBreakerOptions,
    Pipeline,
    RetryBudgetOptions,
    RetryOptions,
    TimeoutOptions,
    build_standard_strategies,
)
from agentguard.testing.virtual_clock import VirtualClock

WORKERS, SERVICE_S = 10, 0.08
RATE = 0.8 * WORKERS / SERVICE_S
FROZEN, THAWED, END = 10.0, 15.0, 30.0
UNBOUNDED = RetryBudgetOptions(ratio=1.0, reserve=1e6, per_second=1e6, burst=1e6)
TIMES = TimeoutOptions(total_s=3.0), AttemptTimeoutOptions(seconds=1.0)


class Server:
    """A queue with ten workers. It freezes for five seconds, and never detects that a caller has left."""

    def __init__(self, clock: VirtualClock) -> None:
        self.clock = clock
        self.free = [0.0] * WORKERS
        self.calls = 0

    async def send(self, request, deadline):
        self.calls += 1
        start = max(self.clock.now(), heapq.heappop(self.free))
        end = start + SERVICE_S
        if start < THAWED and end > FROZEN:
            end += THAWED - max(start, FROZEN)
        heapq.heappush(self.free, end)
        await self.clock.sleep(end - self.clock.now())


def goodput(strategies, seed):
    """Return the share of successful calls by second of arrival, and the calls that reached the server."""
    clock, rng = VirtualClock(), random.Random(seed)
    server = Server(clock)
    send = Pipeline(strategies, clock=clock, rng=rng).bind(server.send)
    came, good = [0] * int(END), [0] * int(END)

    async def one():
        second = int(clock.now())
        came[second] += 1
        try:
            await send(BasicRequest())
        except ResilienceError:
            return
        good[second] += 1

    async def main():
        calls = []
        while True:
            await clock.sleep(rng.expovariate(RATE))
            if clock.now() >= END:
                break
            calls.append(asyncio.create_task(one()))
        await asyncio.gather(*calls)

    clock.run(main())
    return [g / c for g, c in zip(good, came, strict=True)], server.calls


def after(shares):
    """Return the mean goodput from 10 s after the trigger's end on."""
    late = shares[int(THAWED) + 10 :]
    return sum(late) / len(late)


SEEDS = pytest.mark.parametrize("seed", [1, 2, 3])


@SEEDS
def test_retries_without_budget_never_recover(seed):
    shares, _ = goodput((TIMES[0], RetryOptions(budget=UNBOUNDED), TIMES[1]), seed)
    assert min(shares[:9]) == 1.0
    assert after(shares) < 0.2


@SEEDS
def test_retry_budget_alone_does_not_recover(seed):
    shares, _ = goodput((TIMES[0], RetryOptions(), TIMES[1]), seed)
    assert min(shares[:9]) == 1.0
    assert after(shares) < 0.5


@SEEDS
def test_budget_and_breaker_recover_within_ten_seconds(seed):
    shares, calls = goodput((TIMES[0], RetryOptions(), CircuitBreakerOptions(), TIMES[1]), seed)
    assert min(shares[:9]) == 1.0
    assert min(shares[25:]) >= 0.95
    assert calls < 1.2 * RATE * END


@SEEDS
def test_standard_order_recovers_within_ten_seconds(seed):
    shares, _ = goodput(build_standard_strategies(total_timeout_s=3.0, attempt_timeout_s=1.0), seed)
    assert min(shares[:9]) >= 0.95
    assert min(shares[25:]) >= 0.95
