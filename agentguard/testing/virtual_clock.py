"""Virtual time: asyncio programs that wait for minutes run in milliseconds, and deterministically.

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
from collections.abc import Coroutine
from selectors import SelectorKey
from typing import Any, TypeVar

T = TypeVar("T")

_LOOPBACK_GRACE_S = 5.0
"""Real seconds that a busy machine may need to deliver data through the loopback interface."""


class Deadlock(RuntimeError):
    """Error of a program in virtual time that waits although no timer is set and no socket is ready."""


class LeakedTasks(AssertionError):
    """Error of a program that ends while tasks are still running."""


class VirtualClock:
    """Clock that stops while a program computes, and jumps to the next timer when the program waits.

    It implements `Clock` of agentguard.resilience and is the time of the loop that `run` creates. Therefore
    asyncio's own sleeps and timeouts are virtual too. The clock works in one thread. Sockets work; the loop
    polls them before each jump.
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
        """Advance the time, in tests of code that does not wait. Raises ValueError for a negative value."""
        if not seconds >= 0:
            raise ValueError(f"time does not go back: {seconds}")
        self._now += seconds

    def run(self, main: Coroutine[Any, Any, T], *, allow_leaks: bool = False) -> T:
        """Run a program to its end in a loop whose time is this clock.

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
        self._virtual = clock
        super().__init__(_JumpingSelector(clock))

    def time(self) -> float:
        return self._virtual.now()


class _JumpingSelector(selectors.BaseSelector):
    """Selector that never waits: if nothing is ready, the clock jumps by the timeout."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._real = clock, selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready and timeout is None:
            if len(self._real.get_map()) > 1:  # more than the loop's own pipe: data may be in transit
                ready = self._real.select(_LOOPBACK_GRACE_S)
            if not ready:
                raise Deadlock("every task waits, and no timer is set")
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
