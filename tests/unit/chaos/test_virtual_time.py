"""Virtual time inside a block, and real time outside of it."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from agentguard.chaos.agent_execution import virtual_time
from agentguard.testing.virtual_clock import Deadlock, VirtualClock


def test_sleep_in_the_block_advances_all_clocks_by_the_same_seconds() -> None:
    clock = VirtualClock()
    with virtual_time(clock):
        begin = (time.time(), time.monotonic(), time.perf_counter(), time.time_ns(), time.monotonic_ns())
        time.sleep(3600)
        end = (time.time(), time.monotonic(), time.perf_counter(), time.time_ns(), time.monotonic_ns())
    differences = [last - first for first, last in zip(begin, end, strict=True)]
    assert differences == pytest.approx([3600, 3600, 3600, 3.6e12, 3.6e12])
    assert [type(one) for one in end] == [float, float, float, int, int]
    assert clock.now() == 3600


def test_other_threads_and_code_after_the_block_have_the_real_time() -> None:
    readings: list[float] = []
    with virtual_time(VirtualClock(start=1e9)):
        thread = threading.Thread(target=lambda: readings.append(time.monotonic()))
        thread.start()
        thread.join()
        assert time.monotonic() == 1e9
    assert readings[0] <= time.monotonic() < 1e9


def test_work_in_a_thread_of_the_loop_does_not_move_the_clock() -> None:
    async def wait_for_thread() -> float:
        is_done = threading.Event()
        asyncio.get_running_loop().call_later(3600, is_done.set)
        work = asyncio.to_thread(time.sleep, 0.05)  # without `virtual_time`: 50 ms of real time
        await asyncio.wait_for(work, 60)
        assert not is_done.is_set()
        return asyncio.get_running_loop().time()

    assert VirtualClock().run(wait_for_thread()) == 0


def test_deadlock_is_reported_also_after_work_in_a_thread() -> None:
    async def wait_forever() -> None:
        await asyncio.to_thread(lambda: None)
        await asyncio.Event().wait()

    with pytest.raises(Deadlock):
        VirtualClock().run(wait_forever())


def test_module_time_is_restored_after_the_last_block() -> None:
    before = dict(vars(time))
    with virtual_time(VirtualClock()), virtual_time(VirtualClock()):
        assert time.sleep is not before["sleep"]
    assert vars(time) == before
