"""Many timers of which nearly none ever rings: every call has some, and is over long before.

asyncio makes an object for each, and hands each to the event loop. Here they lie in a heap of our own, for
which the loop has one timer, set to the first; switching one off is a mark, and marked ones are swept out
when they are half of all. To the caller the times are the same.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
import weakref
from collections.abc import Callable
from heapq import heapify, heappop, heappush
from typing import Any

_SWEEP = 64
"""So many marked timers may lie about, whatever their share."""
_EARLY = time.get_clock_info("monotonic").resolution  # asyncio's loops ring that early, too

Timer = list[Any]
"""A timer that was set; to be handed back to `Timers.off`. Its last item is what is called, or None."""


class Timers:
    """The timers of one event loop."""

    __slots__ = ("__weakref__", "_at", "_handle", "_heap", "_loop", "_number", "_off")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._heap: list[Timer] = []
        self._handle: asyncio.TimerHandle | None = None
        self._at = math.inf  # when that rings
        self._off = 0
        self._number = itertools.count()

    def after(self, loop: asyncio.AbstractEventLoop, seconds: float, call: Callable[[], None]) -> Timer:
        """Call back in so many seconds; in the loop that these timers are of."""
        when = loop.time() + seconds
        timer: Timer = [when, next(self._number), call]
        heappush(self._heap, timer)
        if when < self._at:
            self._set(loop, when)
        return timer

    def off(self, timer: Timer) -> None:
        """Switch a timer off; nothing happens if it has rung, or was off."""
        if timer[2] is not None:
            timer[2] = None
            if self._heap[0] is timer:  # as where few calls run: the next one to ring
                heappop(self._heap)
                return
            self._off += 1
            if self._off > _SWEEP and self._off * 2 > len(self._heap):
                self._heap = [one for one in self._heap if one[2] is not None]
                heapify(self._heap)
                self._off = 0

    def _set(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._at, self._handle = when, loop.call_at(when, self._ring)

    def _ring(self) -> None:
        """Call what is due, and set the loop's timer to the next that is not off."""
        self._handle, self._at = None, math.inf
        loop = self._loop()
        if loop is None:
            return
        try:
            now = loop.time() + _EARLY
            while self._heap and (self._heap[0][2] is None or self._heap[0][0] <= now):
                timer = heappop(self._heap)
                call, timer[2] = timer[2], None
                if call is None:
                    self._off -= 1
                else:
                    call()
        finally:
            if self._heap:
                self._set(loop, self._heap[0][0])


_ALL: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, Timers] = weakref.WeakKeyDictionary()
_last: tuple[Callable[[], asyncio.AbstractEventLoop | None], Timers] | None = None


def timers_of(loop: asyncio.AbstractEventLoop) -> Timers:
    """The timers of a loop; nearly always of the same one as the last time."""
    global _last
    last = _last
    if last is not None and last[0]() is loop:
        return last[1]
    found = _ALL.get(loop)
    if found is None:
        found = _ALL[loop] = Timers(loop)
    _last = (weakref.ref(loop), found)
    return found
