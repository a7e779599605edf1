"""Source of time: a parameter of all strategies, so that tests need not wait.

Only monotonic time is used, because the wall clock can jump. The one exception is a Retry-After date
(`retry_after`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """Source of monotonic time, in seconds from an arbitrary start.

    It must run at the pace of the running event loop, whose timers end the waits. The real clock does, and
    so does `agentguard.testing.virtual_clock.VirtualClock`, which drives its own loop.
    """

    def now(self) -> float:
        """Return the seconds since the clock's start; never decreases."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        ...


class MonotonicClock:
    """Monotonic clock of the machine, which asyncio's loop uses too."""

    now = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        """Return after ``seconds``."""
        await asyncio.sleep(seconds)


MONOTONIC: Clock = MonotonicClock()
