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

_COMPACTION_THRESHOLD = 64
"""So many marked timers may lie about, whatever their share."""
_CLOCK_RESOLUTION_S = time.get_clock_info("monotonic").resolution  # asyncio's loops ring that early, too

TimerEntry = list[Any]
"""A timer that was set; to be handed back to `TimerHeap.off`. Its last item is what is called, or None."""


class TimerHeap:
    """The timers of one event loop."""

    __slots__ = ("__weakref__", "_cancelled_count", "_handle", "_heap", "_loop", "_next_at", "_sequence")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._heap: list[TimerEntry] = []
        self._handle: asyncio.TimerHandle | None = None
        self._next_at = math.inf  # when that rings
        self._cancelled_count = 0
        self._sequence = itertools.count()

    def schedule(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]
    ) -> TimerEntry:
        """Call back in so many seconds; in the loop that these timers are of."""
        when = loop.time() + seconds
        timer: TimerEntry = [when, next(self._sequence), callback]
        heappush(self._heap, timer)
        if when < self._next_at:
            self._arm(loop, when)
        return timer

    def cancel(self, timer: TimerEntry) -> None:
        """Switch a timer off; nothing happens if it has rung, or was off."""
        if timer[2] is not None:
            timer[2] = None
            if self._heap[0] is timer:  # as where few calls run: the next one to ring
                heappop(self._heap)
                return
            self._cancelled_count += 1
            if self._cancelled_count > _COMPACTION_THRESHOLD and self._cancelled_count * 2 > len(self._heap):
                self._heap = [one for one in self._heap if one[2] is not None]
                heapify(self._heap)
                self._cancelled_count = 0

    def _arm(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._next_at, self._handle = when, loop.call_at(when, self._run_due)

    def _run_due(self) -> None:
        """Call what is due, and set the loop's timer to the next that is not off."""
        self._handle, self._next_at = None, math.inf
        loop = self._loop()
        if loop is None:
            return
        try:
            now = loop.time() + _CLOCK_RESOLUTION_S
            while self._heap and (self._heap[0][2] is None or self._heap[0][0] <= now):
                timer = heappop(self._heap)
                call, timer[2] = timer[2], None
                if call is None:
                    self._cancelled_count -= 1
                else:
                    call()
        finally:
            if self._heap:
                self._arm(loop, self._heap[0][0])


_HEAPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, TimerHeap] = weakref.WeakKeyDictionary()
_last_heap: tuple[Callable[[], asyncio.AbstractEventLoop | None], TimerHeap] | None = None


def get_timer_heap(loop: asyncio.AbstractEventLoop) -> TimerHeap:
    """The timers of a loop; nearly always of the same one as the last time."""
    global _last_heap
    last = _last_heap
    if last is not None and last[0]() is loop:
        return last[1]
    found = _HEAPS.get(loop)
    if found is None:
        found = _HEAPS[loop] = TimerHeap(loop)
    _last_heap = (weakref.ref(loop), found)
    return found
