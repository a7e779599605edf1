"""Cancellation of the caller at every await, before and together with the awaited result: no leaks.

Each scene runs a few calls through the whole pipeline and cancels one of them at its k-th await, for k = 1,
2, ... until the call ends first. After that, every permit, token, queue slot, task and stream must be
released, the other calls must have their answers, and the pipeline must still work.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Generator
from typing import Any

import pytest

from agentguard.errors import ResilienceError
from agentguard.resilience import (
    AdaptiveThrottlingOptions,
    AttemptTimeoutOptions,
    Backoff,
    BasicRequest,
    CircuitBreakerOptions,
    CircuitState,
    ConcurrencyLimitOptions,
    EventKind,
    HedgeOptions,
    LoadSheddingOptions,
    Pipeline,
    RetryBudgetOptions,
    RetryOptions,
    StreamTimeoutOptions,
    TimeoutOptions,
)
from agentguard.testing.virtual_clock import VirtualClock
from tests.unit.resilience.scripted_backend import (
    WHOLE,
    Backend,
    answer,
    carries,
    ends,
    fails,
    hang,
    read,
    stream,
)

TOKENS = RetryBudgetOptions(ratio=0.0, reserve=50.0, per_second=0.0, burst=50.0)


class CancelAt:
    """Awaits a coroutine and cancels its own task at the k-th suspension.

    Args:
        late: cancel together with the awaited result, not at once.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Any], k: int, *, late: bool) -> None:
        self.coroutine, self.k, self.late, self.reached = coroutine, k, late, False

    def __await__(self) -> Generator[Any, Any, Any]:
        task = asyncio.current_task()
        error: BaseException | None = None
        count = 0
        while True:
            try:
                future = self.coroutine.send(None) if error is None else self.coroutine.throw(error)
            except StopIteration as stop:
                return stop.value
            error, count = None, count + 1
            if count == self.k:
                self.reached = True
                if self.late and future is not None:
                    future.add_done_callback(lambda _: task.cancel())
                else:
                    asyncio.get_running_loop().call_soon(task.cancel)
            try:
                yield future
            except BaseException as thrown:
                error = thrown


class World:
    """The whole pipeline over a script, with budgets that are never refilled, so tokens can be counted."""

    def __init__(self, *script, limit=10):
        self.clock, self.events = VirtualClock(), []
        self.backend = Backend(self.clock, *script)
        order = (
            TimeoutOptions(total_s=60.0),
            LoadSheddingOptions(
                max_queue=10, concurrency=ConcurrencyLimitOptions(algorithm="fixed", initial_limit=limit)
            ),
            RetryOptions(backoff=Backoff(initial_delay_s=0.2, jitter=0.0), budget=TOKENS),
            HedgeOptions(min_samples=1, budget=TOKENS),
            AdaptiveThrottlingOptions(),
            CircuitBreakerOptions(minimum_throughput=3, failure_ratio=0.9, break_duration_s=1.0),
            AttemptTimeoutOptions(seconds=5.0),
            StreamTimeoutOptions(has_content=carries, is_last=ends),
        )
        self.send = Pipeline(
            order, clock=self.clock, rng=random.Random(1), observers=[self.events.append]
        ).bind(self.backend.send)

    async def call(self, payload="victim", **options):
        response = await self.send(BasicRequest(payload=payload, **options))
        return await read(response) if hasattr(response, "aclose") else response

    async def cancelled_at(self, k, late):
        """Return whether the victim was still running at its k-th await."""
        victim = CancelAt(self.call(), k, late=late)

        async def run():
            return await victim

        task = asyncio.create_task(run())
        await asyncio.wait({task})
        if not task.cancelled() and task.exception() is not None:
            assert isinstance(task.exception(), ResilienceError)
        return victim.reached

    def check(self):
        layers, kinds = self.send.bound_strategies, [event.kind for event in self.events]
        assert (layers["load_shedding"].inflight, layers["load_shedding"].queue_length) == (0, 0)
        assert (self.backend.running, self.backend.streams) == (0, 0)
        assert not layers["hedge"]._cancelled_tasks
        hedges = kinds.count(EventKind.HEDGE)
        assert 50 - layers["hedge"].budget.tokens == hedges
        retries = 50 - layers["retry"].budget.tokens
        calls = sum(self.backend.attempts.values())
        # A hedge may be cancelled before its task begins; a retry with a token is always sent.
        assert self.sent + retries <= calls <= self.sent + retries + hedges
        assert layers["circuit_breaker"]._has_probe_in_flight is False


async def plain(world, k, late):
    world.sent = 1
    return await world.cancelled_at(k, late)


async def behind_others(world, k, late):
    """Cancel a waiting call; the two before it and the one behind it must not be affected."""
    before = [asyncio.create_task(world.call(n)) for n in range(2)]
    await world.clock.sleep(0.01)
    behind = asyncio.create_task(world.clock.sleep(0.02))
    behind.add_done_callback(lambda _: before.append(asyncio.create_task(world.call("behind"))))
    reached = await world.cancelled_at(k, late)
    await behind
    answers = await asyncio.gather(*before)
    assert answers == ["answer to 0", "answer to 1", "answer to behind"]
    world.sent = 3 + world.backend.attempts["victim"]
    return reached


async def hedged(world, k, late):
    world.sent = 1 + await warm(world)
    return await world.cancelled_at(k, late)


async def probing(world, k, late):
    """Cancel the probe of a half-open breaker; the next call must get its permit."""
    for n in range(3):
        with pytest.raises(ResilienceError):
            await world.call(n, idempotent=False)
    assert world.send.bound_strategies["circuit_breaker"].state is CircuitState.OPEN
    await world.clock.sleep(1.0)
    reached = await world.cancelled_at(k, late)
    world.sent = 3 + (world.backend.attempts["victim"] > 0)
    return reached


async def warm(world):
    assert await world.call("warm") in ("answer to warm", WHOLE)
    return 1


SCENES = {
    "plain": (plain, [answer(0.1)], 10),
    "stream": (plain, [stream(beats=2)], 10),
    "stream cut": (plain, [stream(tokens=2, then="cut"), stream()], 10),
    "failover before the first token": (plain, [stream(tokens=0, then="stall"), stream()], 10),
    "retries": (plain, [fails(503), fails(429, retry_after_s=0.3), answer(0.1)], 10),
    "retries in vain": (plain, [fails(503)], 10),
    "attempt out of time": (plain, [hang(), answer(0.1)], 10),
    "queue": (behind_others, [answer(0.1)], 1),
    "hedge wins": (hedged, [answer(0.1), hang(), answer(0.1)], 10),
    "hedge loses": (hedged, [answer(0.1), answer(0.3), hang()], 10),
    "hedge helps a first that fails": (hedged, [answer(0.1), fails(500, seconds=0.15), answer(0.1)], 10),
    "hedged stream": (hedged, [stream(), stream(first=50.0), stream()], 10),
    "both at once": (hedged, [answer(0.1), answer(0.2), answer(0.1)], 10),
    "probe": (probing, [*[fails(500)] * 3, answer(0.1)], 10),
}


@pytest.mark.parametrize("late", [False, True], ids=["at once", "in the instant"])
@pytest.mark.parametrize("scene", SCENES)
def test_cancellation_at_every_await_leaks_nothing(scene, late):
    program, script, limit = SCENES[scene]
    k = 0
    reached = True
    while reached:
        k += 1
        world = World(*script, limit=limit)

        async def main(world=world, k=k):
            reached = await program(world, k, late)
            world.check()
            if world.send.bound_strategies["circuit_breaker"].state is not CircuitState.CLOSED:
                await world.clock.sleep(2.0)
            world.backend.script = [answer(0.1)]
            assert await world.call("next") == "answer to next"
            return reached

        reached = world.clock.run(main())
    assert k > 1, "the scene never waits"


@pytest.mark.parametrize(
    ("act", "seconds"),
    [(hang(), 1.0), (stream(first=50.0), 1.0), (stream(gap=5.0), 7.0), (stream(then="stall"), 1.0)],
    ids=["whole", "before the first token", "mid-stream", "in a stall"],
)
def test_upstream_ends_at_the_time_of_cancellation(act, seconds):
    world = World(act)

    async def main():
        task = asyncio.create_task(world.call())
        await world.clock.sleep(seconds)
        assert world.backend.running + world.backend.streams == 1
        task.cancel()
        await asyncio.wait({task})
        assert world.clock.now() == seconds
        assert task.cancelled()
        world.sent = 1
        world.check()

    world.clock.run(main())
