"""One deadline over everything a call does: attempts, waits and streams.

A deadline is a point in time and not a duration, so it can be handed down through every layer and across
attempts without adding up; of two nested ones the earlier holds (gRPC's deadline propagation).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from agentguard.errors import ConfigError, DeadlineExceeded
from agentguard.resilience.clock import MONOTONIC, Clock

T = TypeVar("T")

_EARLY = 1e-6  # asyncio ends a timer up to its clock's resolution early; that still is the deadline


@dataclass(frozen=True, slots=True)
class Deadline:
    """The clock time by which a call must have ended; ``inf`` is never.

    >>> import asyncio
    >>> asyncio.run(Deadline.after(5).run(asyncio.sleep(0, "done")))
    'done'
    """

    at: float
    clock: Clock = field(default=MONOTONIC, repr=False, compare=False)

    @classmethod
    def after(cls, seconds: float, *, clock: Clock = MONOTONIC) -> Deadline:
        """A deadline so many seconds from now. Raises ConfigError unless they are a number from 0 up."""
        if not seconds >= 0:
            raise ConfigError(f"a deadline must be a number of seconds from 0 up, not {seconds!r}")
        return cls(clock.now() + seconds, clock)

    @classmethod
    def never(cls, *, clock: Clock = MONOTONIC) -> Deadline:
        """No deadline at all."""
        return cls(math.inf, clock)

    def sooner(self, seconds: float) -> Deadline:
        """The earlier of this deadline and one so many seconds from now."""
        return self.earlier(Deadline.after(seconds, clock=self.clock))

    def earlier(self, other: Deadline) -> Deadline:
        """The earlier of two deadlines of one clock."""
        return self if self.at <= other.at else other

    def remaining(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.at - self.clock.now())

    @property
    def expired(self) -> bool:
        """Whether the time is up."""
        return self.clock.now() >= self.at - _EARLY

    def limit(self, what: str = "the call") -> Limit:
        """``async with deadline.limit("the head"):`` cancels what runs inside when the time is up.

        Raises:
            DeadlineExceeded: instead of the cancellation, or at once if the time was up before; nothing
                inside was started then, and the error's stage is ``unsent``.
        """
        return Limit(self, what)

    async def run(self, awaitable: Awaitable[T], what: str = "the call") -> T:
        """Await something within the deadline. Raises DeadlineExceeded; see `limit`."""
        try:
            async with self.limit(what):
                return await awaitable
        finally:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()  # it was not started if the time was up; closing it twice does nothing


class Limit:
    """One use of a deadline around a block; see `Deadline.limit`. Serves one task, once."""

    __slots__ = ("_deadline", "_timer", "_what")

    def __init__(self, deadline: Deadline, what: str) -> None:
        self._deadline, self._what = deadline, what
        self._timer: asyncio.Timeout | None = None

    async def __aenter__(self) -> None:
        if self._deadline.at == math.inf:
            return
        if self._deadline.expired:
            raise DeadlineExceeded(f"no time was left for {self._what}", stage="unsent")
        self._timer = asyncio.timeout(self._deadline.remaining())
        await self._timer.__aenter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is None:
            return
        try:
            await self._timer.__aexit__(kind, error, trace)
        except TimeoutError:  # raised here only by the timer itself; one from inside the block passes it by
            raise DeadlineExceeded(f"{self._what} took longer than it may", stage="sent") from None
