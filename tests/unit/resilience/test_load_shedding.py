import asyncio

import pytest

from agentguard.errors import DeadlineExceeded, Overloaded
from agentguard.resilience import (
    BasicRequest,
    ConcurrencyLimitOptions,
    Deadline,
    LoadSheddingOptions,
    Pipeline,
    RequestPriority,
    StreamTimeoutOptions,
    TimeoutOptions,
)
from agentguard.testing.virtual_clock import VirtualClock
from tests.unit.resilience.scripted_backend import Backend, answer, carries, ends, fails, hang, read, stream

TWO = ConcurrencyLimitOptions(algorithm="fixed", initial_limit=2)


def scene(*script, shed=None, after=()):
    clock, events = VirtualClock(), []
    backend = Backend(clock, *script)
    strategies = (shed or LoadSheddingOptions(max_queue=3, concurrency=TWO), *after)
    send = Pipeline(strategies, clock=clock, observers=[events.append]).bind(backend.send)
    return clock, backend, send, send.bound_strategies["load_shedding"], events


async def kinds_of(*calls):
    results = await asyncio.gather(*calls, return_exceptions=True)
    return [getattr(r, "code", r) for r in results]


def test_calls_beyond_limit_and_queue_are_rejected_at_once():
    clock, _, send, shed, events = scene(answer(1.0))

    async def main():
        calls = [asyncio.create_task(send(BasicRequest(payload=n))) for n in range(8)]
        await clock.sleep(0)
        await clock.sleep(0.001)
        assert (shed.inflight, shed.queue_length) == (2, 3)
        assert sum(call.done() for call in calls) == 3
        return await kinds_of(*calls)

    kinds = clock.run(main())
    assert kinds == [f"answer to {n}" for n in range(5)] + ["overloaded"] * 3
    assert [e.kind for e in events] == ["shed"] * 3
    assert (shed.inflight, shed.queue_length) == (0, 0)


def test_important_calls_overtake_and_less_important_are_shed():
    clock, backend, send, _, _ = scene(answer(1.0))
    order = [
        RequestPriority.CRITICAL,
        RequestPriority.CRITICAL,
        RequestPriority.SHEDDABLE,
        RequestPriority.SHEDDABLE_PLUS,
        RequestPriority.CRITICAL,
        RequestPriority.CRITICAL_PLUS,
        RequestPriority.SHEDDABLE,
    ]

    async def main():
        return await kinds_of(*(send(BasicRequest(payload=n, priority=p)) for n, p in enumerate(order)))

    kinds = clock.run(main())
    assert [n for n, kind in enumerate(kinds) if kind == "overloaded"] == [2, 6]
    assert list(backend.attempts) == [0, 1, 5, 4, 3]


def test_call_that_would_miss_its_deadline_is_rejected_at_once():
    clock, _, send, _, _ = scene(
        answer(1.0), shed=LoadSheddingOptions(max_queue=50, queue_timeout_s=60.0, concurrency=TWO)
    )

    async def main():
        await send(BasicRequest())
        deadline = Deadline.after(3.5, clock=clock)
        calls = [asyncio.create_task(send(BasicRequest(payload=n), deadline)) for n in range(20)]
        await clock.sleep(0.001)
        assert sum(call.done() for call in calls) == 20 - 2 - 3
        return await kinds_of(*calls)

    kinds = clock.run(main())
    assert kinds.count("overloaded") == 15


def test_too_long_estimate_corrects_itself():
    clock, backend, send, _, _ = scene(*[answer(30.0)] * 2, answer(0.1))

    async def main():
        await kinds_of(*(send(BasicRequest()) for _ in range(2)))
        for n in range(5):
            assert await send(BasicRequest(payload=n), Deadline.after(1.0, clock=clock)) == f"answer to {n}"

    clock.run(main())
    assert len(backend.calls) == 7


def test_short_deadline_is_not_a_sign_of_overload():
    clock, _, send, shed, _ = scene(
        answer(1.0),
        shed=LoadSheddingOptions(concurrency=ConcurrencyLimitOptions(initial_limit=10)),
        after=(TimeoutOptions(total_s=60.0),),
    )

    async def main():
        await send(BasicRequest())
        with pytest.raises(DeadlineExceeded):
            async with Deadline.after(0.2, clock=clock).limit():
                await send(BasicRequest(), Deadline.after(0.2, clock=clock))
        assert shed.limit.value == 10

    clock.run(main())


def test_queue_timeout_rejects_and_frees_the_place():
    clock, _, send, shed, _ = scene(
        hang(), shed=LoadSheddingOptions(max_queue=3, queue_timeout_s=2.0, concurrency=TWO)
    )

    async def main():
        running = [asyncio.create_task(send(BasicRequest())) for _ in range(2)]
        await clock.sleep(0.1)
        with pytest.raises(Overloaded, match="waited too long"):
            await send(BasicRequest())
        assert (clock.now(), shed.queue_length) == (2.1, 0)
        for task in running:
            task.cancel()
        await asyncio.wait(running)

    clock.run(main())
    assert shed.inflight == 0


def test_permit_granted_during_cancellation_goes_to_next_call():
    clock, _, send, shed, _ = scene(
        answer(1.0),
        shed=LoadSheddingOptions(
            max_queue=5, concurrency=ConcurrencyLimitOptions(algorithm="fixed", initial_limit=1)
        ),
    )

    async def main():
        first = asyncio.create_task(send(BasicRequest(payload=1)))
        second = asyncio.create_task(send(BasicRequest(payload=2)))
        third = asyncio.create_task(send(BasicRequest(payload=3)))
        await clock.sleep(0.5)
        first.add_done_callback(lambda _: second.cancel())
        await asyncio.wait({first, second, third})
        assert second.cancelled()
        assert third.result() == "answer to 3"

    clock.run(main())
    assert (shed.inflight, shed.queue_length) == (0, 0)


def test_stream_keeps_its_permit_until_its_end():
    clock, _, send, shed, _ = scene(
        stream(), after=(StreamTimeoutOptions(has_content=carries, is_last=ends),)
    )

    async def main():
        response = await send(BasicRequest())
        assert shed.inflight == 1
        await read(response)
        assert shed.inflight == 0
        response = await send(BasicRequest())
        await response.aclose()
        assert shed.inflight == 0

    clock.run(main())


def test_aimd_decreases_once_per_round_and_increases_by_one():
    limit = ConcurrencyLimitOptions(initial_limit=20).build()
    for _ in range(20):
        limit.update(started=0.0, ended=1.0, inflight=20, overload=True)
    assert limit.value == 18
    limit.update(started=1.5, ended=2.0, inflight=20, overload=True)
    assert limit.value == pytest.approx(16.2)
    for _ in range(17):
        limit.update(started=3.0, ended=4.0, inflight=17, overload=False)
    assert 17.1 < limit.value < 17.3
    before = limit.value
    limit.update(started=4.0, ended=5.0, inflight=2, overload=False)
    assert limit.value == before


@pytest.mark.parametrize("rule", ["aimd", "gradient"])
def test_limits_stay_in_their_range(rule):
    limit = ConcurrencyLimitOptions(
        algorithm=rule, initial_limit=5, min_limit=2, max_limit=8, samples=1
    ).build()
    for n in range(300):
        limit.update(started=n, ended=n + 0.1, inflight=8, overload=False)
    assert 7 < limit.value <= 8
    for n in range(1000, 1300):
        limit.update(started=n, ended=n + 1.0, inflight=8, overload=True)
    assert limit.value == 2


def test_gradient_detects_a_queue_before_failures():
    clock = VirtualClock()
    gate = asyncio.Semaphore(10)
    worst = []

    async def backend(request, deadline):
        before = clock.now()
        async with gate:
            await clock.sleep(0.1)
        worst.append(clock.now() - before)

    shed = LoadSheddingOptions(
        max_queue=0, concurrency=ConcurrencyLimitOptions(algorithm="gradient", initial_limit=5)
    )
    send = Pipeline((shed,), clock=clock).bind(backend)

    async def main():
        tasks = []
        for _ in range(4000):  # twice the backend's capacity
            tasks.append(asyncio.create_task(send(BasicRequest())))
            await clock.sleep(0.005)
        await asyncio.gather(*tasks, return_exceptions=True)

    clock.run(main())
    assert 10 <= send.bound_strategies["load_shedding"].limit.value <= 25
    assert max(worst[-500:]) < 0.3
    assert len(worst) > 1800


def test_overload_reduces_limit_and_cancellation_does_not():
    clock, _, send, shed, _ = scene(
        hang(),
        shed=LoadSheddingOptions(concurrency=ConcurrencyLimitOptions(initial_limit=10)),
        after=(TimeoutOptions(total_s=1.0),),
    )

    async def main():
        task = asyncio.create_task(send(BasicRequest()))
        await clock.sleep(0.5)
        task.cancel()
        await asyncio.wait({task})
        assert shed.limit.value == 10
        with pytest.raises(DeadlineExceeded):
            await send(BasicRequest())
        assert shed.limit.value == 9

    clock.run(main())
    clock, _, send, shed, _ = scene(
        fails(429), shed=LoadSheddingOptions(concurrency=ConcurrencyLimitOptions(initial_limit=10))
    )
    clock.run(kinds_of(send(BasicRequest())))
    assert shed.limit.value == 9
