"""Heap of timers that are nearly always cancelled before they fire: every call has some.

asyncio creates an object per timer and passes each to the event loop. Here the timers are in our own heap,
and the loop has one timer for the earliest of them. Cancelling only marks a timer; marked timers are removed
when they are more than half of all. For the caller the timing is the same.
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
"""Number of marked timers that are kept, whatever their share."""
_CLOCK_RESOLUTION_S = time.get_clock_info("monotonic").resolution  # asyncio's loops also fire that early

TimerEntry = list[Any]
"""Handle of a timer for `TimerHeap.cancel`. Its last item is the callback, or None if it is cancelled."""


class TimerHeap:
    """Timers of one event loop."""

    __slots__ = ("__weakref__", "_cancelled_count", "_handle", "_heap", "_loop", "_next_at", "_sequence")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._heap: list[TimerEntry] = []
        self._handle: asyncio.TimerHandle | None = None
        self._next_at = math.inf  # when the handle fires
        self._cancelled_count = 0
        self._sequence = itertools.count()

    def schedule(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]
    ) -> TimerEntry:
        """Call back after ``seconds``; ``loop`` must be the loop of this heap."""
        fires_at = loop.time() + seconds
        timer: TimerEntry = [fires_at, next(self._sequence), callback]
        heappush(self._heap, timer)
        if fires_at < self._next_at:
            self._arm(loop, fires_at)
        return timer

    def cancel(self, timer: TimerEntry) -> None:
        """Cancel a timer; a timer that has fired or was cancelled is ignored."""
        if timer[2] is not None:
            timer[2] = None
            if self._heap[0] is timer:  # common if few calls run: it is the next timer
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
        """Run the due timers, and arm the loop's timer for the next one."""
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
    """Return the heap of a loop; the last result is cached, since the loop rarely changes."""
    global _last_heap
    last_heap = _last_heap
    if last_heap is not None and last_heap[0]() is loop:
        return last_heap[1]
    heap = _HEAPS.get(loop)
    if heap is None:
        heap = _HEAPS[loop] = TimerHeap(loop)
    _last_heap = (weakref.ref(loop), heap)
    return heap
