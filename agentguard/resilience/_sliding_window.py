"""Sliding window of event counts, in slots, with constant cost per event."""

from __future__ import annotations

from agentguard.resilience.clock import Clock


class SlidingWindow:
    """Two counters over a sliding window, which advances by a tenth of its length (Hystrix's rolling counts).

    Args:
        seconds: length of the window; an event counts for between 9/10 of it and all of it.
        clock: source of time.

    Attributes:
        SLOTS: number of slots.
        successes: number of successful events at the last `add` or `get_counts`.
        total: number of all events at the last `add` or `get_counts`.
    """

    SLOTS = 10

    __slots__ = (
        "_now",
        "_slot",
        "_slot_ends_at",
        "_slot_number",
        "_slot_width",
        "_slots",
        "successes",
        "total",
    )

    def __init__(self, seconds: float, clock: Clock) -> None:
        self._now, self._slot_width = clock.now, seconds / self.SLOTS
        self.clear()

    def clear(self) -> None:
        """Reset both counters."""
        self._slots = [[0, 0] for _ in range(self.SLOTS)]
        self.successes = self.total = 0
        self._start_slot(int(self._now() / self._slot_width))

    def add(self, is_success: bool) -> tuple[int, int]:
        """Count one event; return the new counts like `get_counts`."""
        if self._now() >= self._slot_ends_at:
            self._advance()
        slot = self._slot
        if is_success:
            slot[0] += 1
            self.successes += 1
        slot[1] += 1
        self.total += 1
        return self.successes, self.total

    def get_counts(self) -> tuple[int, int]:
        """Return the successful events and all events in the window."""
        if self._now() >= self._slot_ends_at:
            self._advance()
        return self.successes, self.total

    def _advance(self) -> None:
        """Advance to the current slot, and clear the slots that left the window."""
        now = max(self._slot_number + 1, int(self._now() / self._slot_width))
        for number in range(max(self._slot_number + 1, now - self.SLOTS + 1), now + 1):
            slot = self._slots[number % self.SLOTS]
            self.successes -= slot[0]
            self.total -= slot[1]
            slot[0] = slot[1] = 0
        self._start_slot(now)

    def _start_slot(self, slot_number: int) -> None:
        self._slot_number, self._slot_ends_at = slot_number, (slot_number + 1) * self._slot_width
        self._slot = self._slots[slot_number % self.SLOTS]
