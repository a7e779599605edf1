import asyncio
import random

from agentguard.resilience.deadline import get_timer_heap
from agentguard.testing.virtual_clock import VirtualClock


def run(main):
    clock = VirtualClock()
    return clock.run(main(clock))


def test_timers_fire_in_order_unless_cancelled():
    async def main(clock):
        loop, rung = asyncio.get_running_loop(), []
        timers = get_timer_heap(loop)
        rng = random.Random(3)
        wanted = []
        for number in range(500):
            at = rng.choice((0.5, 1.0, 2.0, rng.random() * 10))
            timer = timers.schedule(loop, at, lambda at=at: rung.append((clock.now(), at)))
            if number % 3:
                timer[2] = None
            else:
                wanted.append(at)
        await clock.sleep(20)
        assert [at for _, at in rung] == sorted(wanted)
        assert all(abs(now - at) < 1e-6 for now, at in rung)
        assert not timers._heap

    run(main)


def test_cancelled_timers_do_not_accumulate():
    async def main(clock):
        loop = asyncio.get_running_loop()
        timers = get_timer_heap(loop)
        kept = timers.schedule(loop, 600, lambda: None)
        for _ in range(10_000):
            timers.schedule(loop, 600, lambda: None)[2] = None
            assert len(timers._heap) < 200
        kept[2] = None

    run(main)


def test_earlier_timer_set_later_fires_first():
    async def main(clock):
        loop, rung = asyncio.get_running_loop(), []
        timers = get_timer_heap(loop)
        timers.schedule(loop, 5, lambda: rung.append("late"))
        await clock.sleep(1)
        timers.schedule(loop, 1, lambda: rung.append("early"))
        await clock.sleep(1.5)
        assert rung == ["early"]
        await clock.sleep(5)
        assert rung == ["early", "late"]

    run(main)


def test_failing_timer_does_not_stop_others():
    async def main(clock):
        loop, rung, told = asyncio.get_running_loop(), [], []
        loop.set_exception_handler(lambda _, context: told.append(context["exception"]))
        timers = get_timer_heap(loop)

        def fails():
            raise ValueError

        timers.schedule(loop, 1, fails)
        timers.schedule(loop, 1, lambda: rung.append("same"))
        timers.schedule(loop, 2, lambda: rung.append("next"))
        await clock.sleep(3)
        assert rung == ["same", "next"]
        assert [type(error) for error in told] == [ValueError]

    run(main)


def test_each_loop_has_its_own_timers():
    async def mine():
        return get_timer_heap(asyncio.get_running_loop())

    assert asyncio.run(mine()) is not asyncio.run(mine())
