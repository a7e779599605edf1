"""Counts over the last so many seconds, in slots, at a constant cost an event."""

from __future__ import annotations

from agentguard.resilience.clock import Clock


class Window:
    """Two counters over a sliding window, which moves on by a tenth of its length (Hystrix's rolling counts).

    Args:
        seconds: length of the window; an event counts for between 9/10 of it and all of it.
        clock: source of the time.

    Attributes:
        SLOTS: how many slots there are.
    """

    SLOTS = 10

    __slots__ = ("_clock", "_good", "_last", "_slots", "_total", "_width")

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._clock, self._width = clock, seconds / self.SLOTS
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._slots = [[0, 0] for _ in range(self.SLOTS)]
        self._good = self._total = 0
        self._last = int(self._clock.now() / self._width)

    def add(self, good: bool) -> tuple[int, int]:
        """Count one event; returns the `counts` with it."""
        now = int(self._clock.now() / self._width)
        if now > self._last:
            self._pass(now)
        slot = self._slots[self._last % self.SLOTS]
        slot[0] += good
        slot[1] += 1
        self._good += good
        self._total += 1
        return self._good, self._total

    def counts(self) -> tuple[int, int]:
        """(good events, all events) in the window."""
        now = int(self._clock.now() / self._width)
        if now > self._last:
            self._pass(now)
        return self._good, self._total

    def _pass(self, now: int) -> None:
        """Go on to a slot, and empty those that fall out of the window."""
        for number in range(max(self._last + 1, now - self.SLOTS + 1), now + 1):
            slot = self._slots[number % self.SLOTS]
            self._good -= slot[0]
            self._total -= slot[1]
            slot[0] = slot[1] = 0
        self._last = now
