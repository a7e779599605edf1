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
        good: good events, and ``total`` all of them, as of the last `add` or `counts`.
    """

    SLOTS = 10

    __slots__ = ("_ends", "_last", "_now", "_slot", "_slots", "_width", "good", "total")

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._now, self._width = clock.now, seconds / self.SLOTS
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self._slots = [[0, 0] for _ in range(self.SLOTS)]
        self.good = self.total = 0
        self._go_on(int(self._now() / self._width))

    def add(self, good: bool) -> tuple[int, int]:
        """Count one event; returns the `counts` with it."""
        if self._now() >= self._ends:
            self._pass()
        slot = self._slot
        if good:
            slot[0] += 1
            self.good += 1
        slot[1] += 1
        self.total += 1
        return self.good, self.total

    def counts(self) -> tuple[int, int]:
        """(good events, all events) in the window."""
        if self._now() >= self._ends:
            self._pass()
        return self.good, self.total

    def _pass(self) -> None:
        """Go on to the slot of now, and empty those that fall out of the window."""
        now = max(self._last + 1, int(self._now() / self._width))
        for number in range(max(self._last + 1, now - self.SLOTS + 1), now + 1):
            slot = self._slots[number % self.SLOTS]
            self.good -= slot[0]
            self.total -= slot[1]
            slot[0] = slot[1] = 0
        self._go_on(now)

    def _go_on(self, number: int) -> None:
        self._last, self._ends = number, (number + 1) * self._width
        self._slot = self._slots[number % self.SLOTS]
