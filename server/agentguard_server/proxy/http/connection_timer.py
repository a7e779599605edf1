"""One timer for all that a connection waits for, set anew for a request at the price of two assignments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_TOLERANCE_S: Final = 0.001


class ConnectionTimer:
    """Has something done, unless it is put off, or something else comes in its place.

    A timer that is set already and rings earlier is left as it is, and looks again when it does: nearly every
    request is over long before, and setting and cancelling a timer for each costs more than reading it.

    Attributes:
        late: what is done when it rings; None for nothing.
    """

    __slots__ = ("_deadline", "_fires_at", "_loop", "_timer", "callback")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = self._deadline = 0.0
        self.callback: Callable[[], None] | None = None

    def arm(self, seconds: float, callback: Callable[[], None]) -> None:
        """From now on, so many seconds."""
        self._deadline, self.callback = self._loop.time() + seconds, callback
        if self._timer is None or self._deadline < self._fires_at:
            self._schedule()

    def cancel(self) -> None:
        """For good: nothing of it is left with the loop."""
        self.callback = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _schedule(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at, self._timer = self._deadline, self._loop.call_at(self._deadline, self._fire)

    def _fire(self) -> None:
        self._timer, late = None, self.callback
        if late is None:
            return
        if self._deadline - self._loop.time() > _TOLERANCE_S:
            self._schedule()
        else:
            self.callback = None
            late()
