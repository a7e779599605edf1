"""Timer of a connection, shared by all its timeouts; a later deadline costs only two assignments."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

_TOLERANCE_S: Final = 0.001


class ConnectionTimer:
    """Timer with one callback and one deadline, both of which can be replaced.

    If the event loop's timer fires before a postponed deadline, it is scheduled again. Nearly every request
    ends long before its deadline, so this is cheaper than a new loop timer for each request.

    Attributes:
        callback: function to call at the deadline; None for no call.
    """

    __slots__ = ("_deadline", "_fires_at", "_loop", "_timer", "callback")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = self._deadline = 0.0
        self.callback: Callable[[], None] | None = None

    def arm(self, seconds: float, callback: Callable[[], None]) -> None:
        """Set callback and deadline; both replace the previous ones."""
        self._deadline, self.callback = self._loop.time() + seconds, callback
        if self._timer is None or self._deadline < self._fires_at:
            self._schedule()

    def cancel(self) -> None:
        """Cancel the callback and the event loop's timer."""
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
