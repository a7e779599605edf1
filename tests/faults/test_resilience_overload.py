"""Overload by independent callers: three and ten times the capacity of the server."""

from __future__ import annotations

import asyncio
import heapq
import random

import pytest

from agentguard.errors import Overloaded, ResilienceError
from agentguard.resilience import (
    BasicRequest,
    ConcurrencyLimitOptions,
    LoadSheddingOptions,
    Pipeline,
    RequestPriority,
    TimeoutOptions,
)
from agentguard.testing.virtual_clock import VirtualClock

WORKERS, SERVICE_S = 10, 0.1
CAPACITY = WORKERS / SERVICE_S
SETTLE, SECONDS = 4.0, 12.0


class Server:
    """Ten workers with an unbounded queue; it finishes every accepted request, even without a caller."""

    def __init__(self, clock: VirtualClock, rng: random.Random) -> None:
        self.clock, self.rng, self.free = clock, rng, [0.0] * WORKERS

    async def send(self, request, deadline):
        start = max(self.clock.now(), heapq.heappop(self.free))
        end = start + SERVICE_S * self.rng.uniform(0.5, 1.5)
        heapq.heappush(self.free, end)
        await self.clock.sleep(end - self.clock.now())


def run(load, strategies, seed, priority=lambda rng: RequestPriority.CRITICAL):
    """Return good answers per second by priority, and the delay of rejections, after a warm-up."""
    clock, rng = VirtualClock(), random.Random(seed)
    send = Pipeline((TimeoutOptions(total_s=1.0), *strategies), clock=clock, rng=rng).bind(
        Server(clock, rng).send
    )
    good, refusals = dict.fromkeys(RequestPriority, 0), []

    async def one():
        call, before = BasicRequest(priority=priority(rng)), clock.now()
        try:
            await send(call)
        except Overloaded:
            refusals.append(clock.now() - before)
        except ResilienceError:
            pass
        else:
            good[call.priority] += before >= SETTLE

    async def main():
        calls = []
        while clock.now() < SECONDS:
            calls.append(asyncio.create_task(one()))
            await clock.sleep(rng.expovariate(load * CAPACITY))
        await asyncio.gather(*calls)

    clock.run(main())
    return {p: n / (SECONDS - SETTLE) for p, n in good.items()}, refusals


def total(load, strategies, seed):
    rates, refusals = run(load, strategies, seed)
    return sum(rates.values()), refusals


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("rule", ["aimd", "gradient"])
def test_goodput_at_triple_load_is_nine_tenths_of_peak(rule, seed):
    shed = (LoadSheddingOptions(concurrency=ConcurrencyLimitOptions(algorithm=rule)),)
    at = {load: total(load, shed, seed) for load in (0.9, 1.0, 3.0, 10.0)}
    peak = max(rate for rate, _ in at.values())
    assert peak > 0.85 * CAPACITY
    assert at[3.0][0] >= 0.9 * peak
    assert at[10.0][0] >= 0.9 * peak
    for load, quick in ((3.0, 0.9), (10.0, 0.95)):
        refusals = at[load][1]
        assert sum(seconds == 0 for seconds in refusals) >= quick * len(refusals)
        assert max(refusals) < 1.0


def test_goodput_without_shedding_collapses():
    assert total(3.0, (), seed=1)[0] < 0.2 * CAPACITY


def test_important_requests_succeed_and_others_are_shed():
    def priority(rng):
        return RequestPriority.CRITICAL_PLUS if rng.random() < 0.2 else RequestPriority.SHEDDABLE

    rates, _ = run(3.0, (LoadSheddingOptions(),), seed=1, priority=priority)
    assert rates[RequestPriority.CRITICAL_PLUS] >= 0.95 * 0.2 * 3.0 * CAPACITY
    assert rates[RequestPriority.SHEDDABLE] >= 0.2 * CAPACITY
