"""Virtual time: asyncio programs that wait for minutes run in milliseconds, and the same way each time.

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
"""Real seconds that a busy machine may take to bring through the loopback what was sent."""


class Deadlock(RuntimeError):
    """A program in virtual time waits for something that no timer and no socket will ever bring."""


class LeakedTasks(AssertionError):
    """A program ended and left tasks behind that still ran."""


class VirtualClock:
    """A clock that stands still while a program computes, and jumps to the next timer when it waits.

    It is the `Clock` of agentguard.resilience and the time of the loop that `run` makes, so asyncio's own
    sleeps and timeouts are virtual too. One thread; sockets work, and are looked at before each jump.
    """

    def __init__(self, start: float = 0.0) -> None:
        self._now = start

    def now(self) -> float:
        """Virtual seconds."""
        return self._now

    async def sleep(self, seconds: float) -> None:
        """Return after so many virtual seconds."""
        await asyncio.sleep(seconds)

    def advance(self, seconds: float) -> None:
        """Let time pass, in tests of parts that do not wait. Raises ValueError if it would go back."""
        if not seconds >= 0:
            raise ValueError(f"time does not go back: {seconds}")
        self._now += seconds

    def run(self, main: Coroutine[Any, Any, T], *, allow_leaks: bool = False) -> T:
        """Run a program to its end in a loop whose time is this clock.

        Raises:
            Deadlock: all of its tasks wait and no timer is set.
            LeakedTasks: it left tasks behind that were not done, unless ``allow_leaks``; they are cancelled.
        """
        with asyncio.Runner(loop_factory=lambda: _VirtualLoop(self)) as runner:
            return runner.run(_check_leaks(main, allow_leaks))


async def _check_leaks(main: Coroutine[Any, Any, T], allow_leaks: bool) -> T:
    result = await main
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    if left and not allow_leaks:
        raise LeakedTasks(", ".join(sorted(task.get_name() for task in left)))
    return result


class _VirtualLoop(asyncio.SelectorEventLoop):
    """asyncio's own loop, with another idea of time."""

    def __init__(self, clock: VirtualClock) -> None:
        self._virtual = clock
        super().__init__(_JumpingSelector(clock))

    def time(self) -> float:
        return self._virtual.now()


class _JumpingSelector(selectors.BaseSelector):
    """Never waits: where nothing is ready, the clock jumps by the time that the wait would have taken."""

    def __init__(self, clock: VirtualClock) -> None:
        self._clock, self._real = clock, selectors.DefaultSelector()

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        ready = self._real.select(0)
        if not ready and timeout is None:
            if len(self._real.get_map()) > 1:  # more than the loop's own pipe: it may be on its way
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
