"""Virtual time: asyncio programs that wait for minutes run in milliseconds, deterministically.

>>> import asyncio
>>> clock = VirtualClock()
>>> clock.run(asyncio.sleep(3600, "an hour later"))
'an hour later'
>>> clock.now()
3600.0
"""

from __future__ import annotations

import asyncio
import selectors
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from selectors import SelectorKey
from typing import Any, TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

_LOOPBACK_GRACE_S = 5.0
"""Real seconds that a busy machine may need to deliver data through the loopback interface."""


class Deadlock(RuntimeError):
    """Error of a program in virtual time that waits although no timer is set and no socket is ready."""


class LeakedTasks(AssertionError):
    """Error of a program that ends while tasks are still running."""


class VirtualClock:
    """Clock that stops while a program computes, and jumps to the next timer when the program waits.

    It implements `Clock` of agentguard.resilience and is the time of the loop that `run` creates. Therefore
    asyncio's own sleeps and timeouts are virtual too.

    - The clock is not thread-safe.
    - The loop polls sockets before each jump.
    - While a thread of the loop's executor runs, the loop waits in real time.

    Args:
        start: initial time in seconds.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Return the virtual time in seconds."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return after the given number of virtual seconds."""
        await asyncio.sleep(seconds)

    def advance(self, seconds: float) -> None:
        """Advance the time, for code that does not wait. Raises ValueError if ``seconds`` is negative."""
        if not seconds >= 0:
            raise ValueError(f"seconds must be 0 or more, not {seconds}")
        self._now += seconds

    def run(self, main: Coroutine[Any, Any, T], *, allow_leaks: bool = False) -> T:
        """Run a coroutine in a new event loop with the time of this clock, and return its result.

        Raises:
            Deadlock: all tasks wait and no timer is set.
            LeakedTasks: the program left unfinished tasks, unless ``allow_leaks``; they are cancelled.
        """
        with asyncio.Runner(loop_factory=lambda: _VirtualLoop(self)) as runner:
            return runner.run(_check_leaks(main, allow_leaks))


async def _check_leaks(main: Coroutine[Any, Any, T], allow_leaks: bool) -> T:
    result = await main
    pending_tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if pending_tasks and not allow_leaks:
        raise LeakedTasks(", ".join(sorted(task.get_name() for task in pending_tasks)))
    return result


class _VirtualLoop(asyncio.SelectorEventLoop):
    """Event loop of asyncio with virtual time."""

    def __init__(self, clock: VirtualClock) -> None:
        self._virtual, self._jumping = clock, _JumpingSelector(clock)
        super().__init__(self._jumping)

    def time(self) -> float:
        return self._virtual.now()

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        future = super().run_in_executor(executor, func, *args)
        self._jumping.thread_count += 1
        future.add_done_callback(self._count_thread_end)
        return future

    def _count_thread_end(self, _: asyncio.Future[Any]) -> None:
        self._jumping.thread_count -= 1


class _JumpingSelector(selectors.BaseSelector):
    """Selector that never waits: if nothing is ready, the clock jumps by the timeout."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._real = clock, selectors.DefaultSelector()
        self.thread_count = 0

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        if self.thread_count and (timeout is None or timeout > 0):
            return self._real.select(None)  # the end of a thread wakes the loop
        ready = self._real.select(0)
        if not ready and timeout is None:
            # More than the loop's own pipe, or a thread of another library: data may be in transit.
            is_waiting = len(self._real.get_map()) > 1 or threading.active_count() > 1
            # Poll again: since the first poll, a thread may have woken the loop and ended.
            ready = self._real.select(_LOOPBACK_GRACE_S if is_waiting else 0)
            if not ready:
                raise Deadlock("all tasks wait, and there is no timer")
        elif not ready and timeout is not None:
            self._clock.advance(max(0.0, timeout))
        return ready

    def register(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        return self._real.register(fileobj, events, data)

    def unregister(self, fileobj: Any) -> SelectorKey:
        return self._real.unregister(fileobj)

    def modify(self, fileobj: Any, events: int, data: Any = None) -> SelectorKey:
        return self._real.modify(fileobj, events, data)

    def close(self) -> None:
        self._real.close()

    def get_map(self) -> Any:
        return self._real.get_map()
