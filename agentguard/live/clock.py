"""How long the steps of a live line took, so that what a recovery throws away has a price in time."""

from __future__ import annotations

import time
from collections.abc import Sequence

from agentguard.trajectory.model import Step


class Clock:
    """Wall time between the events of one run; waiting for the model and the tools is in it."""

    def __init__(self) -> None:
        self._steps: list[float] = []
        self._since = time.perf_counter()

    def committed(self, index: int) -> None:
        """Step ``index`` is there; what stood there before, and after it, was left."""
        now = time.perf_counter()
        del self._steps[index:]
        self._steps += [0.0] * (index - len(self._steps))  # a run gone on with: nobody knows what those took
        self._steps.append(now - self._since)
        self._since = now

    def lost(self, left: Sequence[Step]) -> float:
        """Seconds that steps took which are left now; one that was only proposed took all since the last."""
        now = time.perf_counter()
        proposed = any(step.index >= len(self._steps) for step in left)
        seconds = sum(self._steps[step.index] for step in left if step.index < len(self._steps))
        if proposed:
            seconds += now - self._since
            self._since = now
        return seconds
