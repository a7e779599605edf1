"""Where the time comes from: a parameter of everything here, so that tests need not wait.

Only monotonic time is used: the wall clock jumps. The single exception is a Retry-After date
(`retry_after`).
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    """A source of monotonic time, in seconds from an arbitrary start.

    It must run at the pace of the running event loop, whose timers end the waits: the real clock does, and
    so does `agentguard.testing.virtual_clock.VirtualClock`, which drives a loop of its own.
    """

    def now(self) -> float:
        """Seconds since the clock's start; never goes back."""
        ...

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        ...


class MonotonicClock:
    """The machine's monotonic clock, which asyncio's loop uses too."""

    now = staticmethod(time.monotonic)

    async def sleep(self, seconds: float) -> None:
        """Return after so many seconds."""
        await asyncio.sleep(seconds)


MONOTONIC: Clock = MonotonicClock()
