"""One timer for all that a connection waits for, set anew for a request at the price of two assignments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_EARLY_S: Final = 0.001


class ConnectionTimer:
    """Has something done, unless it is put off, or something else comes in its place.

    A timer that is set already and rings earlier is left as it is, and looks again when it does: nearly every
    request is over long before, and setting and cancelling a timer for each costs more than reading it.

    Attributes:
        late: what is done when it rings; None for nothing.
    """

    __slots__ = ("_due", "_loop", "_rings", "_timer", "late")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._rings = self._due = 0.0
        self.late: Callable[[], None] | None = None

    def arm(self, seconds: float, late: Callable[[], None]) -> None:
        """From now on, so many seconds."""
        self._due, self.late = self._loop.time() + seconds, late
        if self._timer is None or self._due < self._rings:
            self._set()

    def cancel(self) -> None:
        """For good: nothing of it is left with the loop."""
        self.late = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _set(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._rings, self._timer = self._due, self._loop.call_at(self._due, self._ring)

    def _ring(self) -> None:
        self._timer, late = None, self.late
        if late is None:
            return
        if self._due - self._loop.time() > _EARLY_S:
            self._set()
        else:
            self.late = None
            late()
