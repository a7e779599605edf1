"""Clock of a judge's loop that a test advances, so that a deadline passes when the test requires it.

A busy machine never exceeds a deadline of a minute, and the test lets it pass at once where needed.
"""

from __future__ import annotations

import asyncio
import time

from agentguard.judge.llm.background_loop import BackgroundLoop
from agentguard.judge.llm.client import JudgeEndpoint


class Clock:
    """The time of all loops that it has created: real seconds plus the advances."""

    def __init__(self) -> None:
        self.ahead = 0.0
        self._loops: list[asyncio.AbstractEventLoop] = []

    def now(self) -> float:
        return time.monotonic() + self.ahead

    def forward(self, seconds: float) -> None:
        """Advance the clock and notify the loops; callable from any thread."""
        self.ahead += seconds
        for loop in self._loops:
            loop.call_soon_threadsafe(lambda: None)

    def on(self, endpoint: JudgeEndpoint) -> JudgeEndpoint:
        """Give an unused endpoint a loop of this clock."""
        endpoint.loop = BackgroundLoop("agentguard-judge", loop_factory=self._make)
        return endpoint

    def _make(self) -> asyncio.AbstractEventLoop:
        loop = _Loop(self)
        self._loops.append(loop)
        return loop


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self, clock: Clock) -> None:
        self._of = clock
        super().__init__()

    def time(self) -> float:
        return self._of.now()
