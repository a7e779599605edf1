import asyncio
import math
import re
from pathlib import Path

import pytest

from agentguard import resilience
from agentguard.errors import ConfigError, DeadlineExceeded
from agentguard.resilience import Deadline
from agentguard.resilience.clock import MONOTONIC
from agentguard.testing.virtual_clock import Deadlock, LeakedTasks, VirtualClock


def test_virtual_time_jumps_and_orders_sleeps():
    clock, order = VirtualClock(), []

    async def sleeper(seconds):
        await clock.sleep(seconds)
        order.append((seconds, clock.now()))

    async def main():
        await asyncio.gather(*(sleeper(s) for s in (3600, 1, 60)))

    clock.run(main())
    assert order == [(1, 1), (60, 60), (3600, 3600)]


def test_asyncio_timeouts_use_virtual_time():
    clock = VirtualClock()

    async def main():
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(10)
        return asyncio.get_running_loop().time()

    assert clock.run(main()) == 5 == clock.now()


def test_deadlock_is_detected_at_once():
    async def main():
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Deadlock):
        VirtualClock().run(main())


def test_remaining_tasks_are_named():
    async def main():
        asyncio.get_running_loop().keep = asyncio.create_task(asyncio.sleep(9), name="forgotten")

    with pytest.raises(LeakedTasks, match="forgotten"):
        VirtualClock().run(main())
    VirtualClock().run(main(), allow_leaks=True)


def test_virtual_time_does_not_go_back():
    with pytest.raises(ValueError, match="0 or more"):
        VirtualClock().advance(-1)


def test_real_sockets_and_threads_work_in_virtual_time():
    clock = VirtualClock()

    async def echo(reader, writer):
        writer.write(await reader.readline())
        writer.close()

    async def main():
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(b"hello\n")
        line = await reader.readline()
        writer.close()
        await writer.wait_closed()
        server.close()
        await server.wait_closed()
        await asyncio.sleep(60)
        return line

    assert clock.run(main()) == b"hello\n"
    assert clock.now() >= 60


def test_real_clock_is_monotonic_and_sleeps():
    before = MONOTONIC.now()
    asyncio.run(MONOTONIC.sleep(0.001))
    assert MONOTONIC.now() > before


def test_only_retry_after_reads_the_wall_clock():
    wall = re.compile(r"time\.time\b|time_ns|datetime\.(now|utcnow|today)|localtime|gmtime")
    folder = Path(resilience.__file__).parent
    assert [path.name for path in folder.glob("*.py") if wall.search(path.read_text())] == ["retry_after.py"]


def test_earlier_of_two_deadlines_applies():
    clock = VirtualClock(100)
    outer = Deadline.after(10, clock=clock)
    assert outer.with_timeout(3).at == 103
    assert outer.with_timeout(30) is outer
    assert Deadline.never(clock=clock).minimum(outer) is outer
    assert (outer.remaining(), outer.is_expired) == (10, False)
    clock.advance(12)
    assert (outer.remaining(), outer.is_expired) == (0, True)
    assert Deadline.never(clock=clock).remaining() == math.inf


@pytest.mark.parametrize("seconds", [-1, math.nan])
def test_deadline_rejects_invalid_duration(seconds):
    with pytest.raises(ConfigError, match="0 up"):
        Deadline.after(seconds)


def test_run_ends_at_deadline_with_typed_error():
    clock = VirtualClock()

    async def main():
        deadline = Deadline.after(5, clock=clock)
        assert await deadline.run(asyncio.sleep(4, "in time")) == "in time"
        with pytest.raises(DeadlineExceeded, match="the head") as caught:
            await deadline.run(asyncio.sleep(4), "the head")
        assert (clock.now(), caught.value.stage, caught.value.code) == (5, "sent", "deadline_exceeded")
        assert caught.value.__suppress_context__
        assert asyncio.current_task().cancelling() == 0

    clock.run(main())


def test_expired_deadline_starts_nothing():
    clock, started = VirtualClock(), []

    async def work():
        started.append(1)

    async def main():
        deadline = Deadline.after(0, clock=clock)
        with pytest.raises(DeadlineExceeded) as caught:
            await deadline.run(work())
        assert caught.value.stage == "unsent"

    clock.run(main())
    assert not started


def test_nested_limits_report_the_earlier_one_and_foreign_timeouts_propagate():
    clock = VirtualClock()

    async def main():
        outer = Deadline.after(2, clock=clock)
        with pytest.raises(DeadlineExceeded, match="inner"):
            async with outer.limit("outer"), outer.with_timeout(1).limit("inner"):
                await clock.sleep(9)
        with pytest.raises(DeadlineExceeded, match="outer"):
            async with outer.limit("outer"), outer.limit("inner"):
                await clock.sleep(9)
        with pytest.raises(TimeoutError):
            async with Deadline.after(9, clock=clock).limit():
                raise TimeoutError

    clock.run(main())


def test_external_cancellation_propagates():
    clock = VirtualClock()

    async def main():
        task = asyncio.create_task(Deadline.after(5, clock=clock).run(clock.sleep(9)))
        await clock.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    clock.run(main())
    assert clock.now() == 1
