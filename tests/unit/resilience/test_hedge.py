import asyncio
import random

import pytest

from agentguard.errors import BackendError
from agentguard.resilience import (
    BasicRequest,
    Deadline,
    HedgeOptions,
    Pipeline,
    RetryBudgetOptions,
    StreamTimeoutOptions,
)
from agentguard.resilience.hedge import RecentQuantile
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

FREE = RetryBudgetOptions(ratio=1.0, reserve=0.0, per_second=0.0, burst=10.0)


class Scene:
    """A hedge that has learned a latency of 0.1 s, before a script begins."""

    def __init__(self, *script, budget=FREE, progress=False):
        self.clock, self.events = VirtualClock(), []
        self.backend = Backend(self.clock, *[stream() if progress else answer(0.1)] * 20, *script)
        strategies = [HedgeOptions(budget=budget)]
        if progress:
            strategies.append(StreamTimeoutOptions(has_content=carries, is_last=ends))
        self.send = Pipeline(strategies, clock=self.clock, observers=[self.events.append]).bind(
            self.backend.send
        )
        self.hedger = self.send.bound_strategies["hedge"]
        self.progress = progress

    def run(self, then):
        async def main():
            for n in range(20):
                response = await self.send(BasicRequest(payload=n))
                if self.progress:
                    await read(response)
            self.start, self.before = self.clock.now(), len(self.backend.calls)
            return await then()

        async def whole():
            result = await main()
            assert asyncio.current_task().cancelling() == 0  # a won race leaves no request to cancel
            return result

        result = self.clock.run(whole())
        assert (self.backend.running, self.backend.streams) == (0, 0)
        return result

    @property
    def took(self):
        return round(self.clock.now() - self.start, 6)

    @property
    def kinds(self):
        return [event.kind for event in self.events]


def test_no_hedge_before_enough_samples():
    clock = VirtualClock()
    backend = Backend(clock, *[answer(0.1)] * 18, answer(9.0))
    send = Pipeline((HedgeOptions(budget=FREE),), clock=clock).bind(backend.send)

    async def main():
        for n in range(19):
            assert send.bound_strategies["hedge"].delay is None
            await send(BasicRequest(payload=n))

    clock.run(main())
    assert len(backend.calls) == 19


def test_slow_first_request_is_cancelled_when_hedge_wins():
    scene = Scene(hang(), answer(0.1))
    assert scene.run(lambda: scene.send(BasicRequest(payload="x"))) == "answer to x"
    assert scene.took == 0.2
    assert scene.kinds == ["hedge", "hedge_won"]
    assert scene.backend.cancelled[0] - scene.start <= 0.2 + 0.1


def test_first_answer_cancels_the_hedge():
    scene = Scene(answer(0.3), hang())
    assert scene.run(lambda: scene.send(BasicRequest(payload="x"))) == "answer to x"
    assert (scene.took, scene.kinds, len(scene.backend.cancelled)) == (0.3, ["hedge"], 1)


def test_fast_answer_sends_no_hedge():
    scene = Scene(answer(0.05))
    scene.run(lambda: scene.send(BasicRequest()))
    assert len(scene.backend.calls) == 21


def test_request_with_effects_is_not_hedged():
    scene = Scene(answer(5.0))
    scene.run(lambda: scene.send(BasicRequest(payload="x", idempotent=False)))
    assert scene.backend.attempts["x"] == 1


def test_failed_first_request_waits_for_the_hedge():
    scene = Scene(fails(500, seconds=0.15), answer(0.1))
    assert scene.run(lambda: scene.send(BasicRequest(payload="x"))) == "answer to x"
    assert scene.kinds == ["hedge", "hedge_won"]


@pytest.mark.parametrize("second", [fails(None, seconds=0.01), fails(None, seconds=0.2)])
def test_two_failures_raise_the_first_error(second):
    scene = Scene(fails(500, seconds=0.15), second)

    async def then():
        with pytest.raises(BackendError) as caught:
            await scene.send(BasicRequest())
        assert caught.value.status == 500

    scene.run(then)


def test_failed_hedge_does_not_affect_first_request():
    scene = Scene(answer(0.3), fails(500))
    assert scene.run(lambda: scene.send(BasicRequest(payload="x"))) == "answer to x"
    assert scene.took == 0.3


def test_simultaneous_answers_give_one_answer():
    scene = Scene(answer(0.2), answer(0.1))
    assert scene.run(lambda: scene.send(BasicRequest(payload="x"))) == "answer to x"


def test_losing_stream_is_closed():
    scene = Scene(stream(first=50.0), stream(first=0.1), progress=True)

    async def then():
        return await read(await scene.send(BasicRequest()))

    assert scene.run(then) == WHOLE


def test_hedge_budget_is_five_percent_even_if_all_are_slow():
    clock = VirtualClock()
    backend = Backend(clock, *[answer(0.1)] * 100, answer(2.0))
    send = Pipeline((HedgeOptions(),), clock=clock).bind(backend.send)

    async def main():
        for n in range(100):
            await send(BasicRequest(payload=n))
        await asyncio.gather(*(send(BasicRequest(payload=n)) for n in range(100, 1000)))

    clock.run(main())
    assert 1000 < len(backend.calls) <= 1050


def test_hedging_reduces_tail_latency():
    """One backend answer in thirty takes 2 s: the 98th percentile falls from 2 s to well under 0.3 s."""
    clock, rng = VirtualClock(), random.Random(5)

    async def sometimes(request, deadline):
        await clock.sleep(2.0 if rng.random() < 1 / 30 else 0.1 * rng.uniform(0.9, 1.1))

    async def times(send):
        took = []
        for _ in range(600):
            before = clock.now()
            await send(BasicRequest(), Deadline.never(clock=clock))
            took.append(clock.now() - before)
        return sorted(took)[588]

    assert clock.run(times(sometimes)) == 2.0
    assert clock.run(times(Pipeline((HedgeOptions(),), clock=clock).bind(sometimes))) < 0.3


def test_loser_that_ignores_cancellation_is_abandoned_after_100_ms():
    async def stubborn(backend, request):
        try:
            await backend.clock.sleep(1e6)
        except asyncio.CancelledError:
            await backend.clock.sleep(5)

    scene = Scene(answer(0.3), stubborn)

    async def then():
        await scene.send(BasicRequest())
        assert scene.took == 0.4
        await scene.clock.sleep(6)

    scene.run(then)
    assert scene.kinds == ["hedge", "stray"]
    assert not scene.hedger._cancelled_tasks


def test_late_answer_of_abandoned_loser_is_closed():
    closed = []

    class Answer:
        async def aclose(self):
            closed.append(1)

    async def stubborn(backend, request):
        try:
            await backend.clock.sleep(1e6)
        except asyncio.CancelledError:
            return Answer()

    scene = Scene(answer(0.3), stubborn)
    scene.run(lambda: scene.send(BasicRequest()))
    assert closed == [1]


def test_cancellation_cancels_both_requests():
    scene = Scene(hang())

    async def then():
        task = asyncio.create_task(scene.send(BasicRequest()))
        await scene.clock.sleep(0.5)
        assert scene.backend.running == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert scene.backend.running == 0
        assert scene.took == 0.5

    scene.run(then)


def test_quantile_is_exact_over_last_values():
    rng, recent, values = random.Random(2), RecentQuantile(50), []
    for _ in range(300):
        values.append(rng.choice([rng.random(), 0.5]))
        recent.add(values[-1])
        last = sorted(values[-50:])
        for quantile in (0.5, 0.9, 0.95, 0.999):
            got = recent.compute(quantile)
            assert got in last
            assert sum(v <= got for v in last) >= quantile * len(last)
            assert sum(v < got for v in last) < quantile * len(last)
