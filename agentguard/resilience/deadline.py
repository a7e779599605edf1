"""Deadline of a call, over all its attempts, waits and streams.

A deadline is a point in time, not a duration. It can be passed through every layer and across attempts
without adding up. The earlier of two nested deadlines applies (gRPC's deadline propagation).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Awaitable
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

from agentguard.errors import ConfigError, DeadlineExceeded
from agentguard.resilience._timer_heap import TimerEntry, get_timer_heap
from agentguard.resilience.clock import MONOTONIC, Clock

T = TypeVar("T")

CLOCK_TOLERANCE_S = 1e-6
"""Tolerance for timers: asyncio fires a timer early by up to the resolution of its clock."""


@dataclass(slots=True, unsafe_hash=True)
class Deadline:
    """Clock time by which a call must have ended; ``inf`` means no deadline. Treat it as immutable.

    It is not frozen like other values: one is created per request, and a frozen class takes three times as
    long.

    >>> import asyncio
    >>> asyncio.run(Deadline.after(5).run(asyncio.sleep(0, "done")))
    'done'
    """

    at: float
    clock: Clock = field(default=MONOTONIC, repr=False, compare=False)

    @classmethod
    def after(cls, seconds: float, *, clock: Clock = MONOTONIC) -> Deadline:
        """Return a deadline ``seconds`` from now. Raises ConfigError if that is negative or not a number."""
        if not seconds >= 0:
            raise ConfigError(f"a deadline must be a number of seconds from 0 up, not {seconds!r}")
        return cls(clock.now() + seconds, clock)

    @classmethod
    def never(cls, *, clock: Clock = MONOTONIC) -> Deadline:
        """Return a deadline that never expires."""
        return cls(math.inf, clock)

    def with_timeout(self, seconds: float) -> Deadline:
        """Return the earlier of this deadline and one ``seconds`` from now."""
        expires_at = self.clock.now() + seconds
        return self if self.at <= expires_at else Deadline(expires_at, self.clock)

    def minimum(self, other: Deadline) -> Deadline:
        """Return the earlier of two deadlines of the same clock."""
        return self if self.at <= other.at else other

    def remaining(self) -> float:
        """Return the seconds left, at least 0."""
        return max(0.0, self.at - self.clock.now())

    @property
    def is_expired(self) -> bool:
        """Return whether the deadline has passed."""
        return self.clock.now() >= self.at - CLOCK_TOLERANCE_S

    def limit(self, operation: str = "the call") -> DeadlineLimit:
        """Return a context manager that cancels its block when the deadline passes.

        Use it as ``async with deadline.limit("the head"):``.

        Raises:
            DeadlineExceeded: in place of the cancellation. If the deadline had passed before, it is raised at
                once with stage ``unsent``, and the block does not run.
        """
        return DeadlineLimit(self, operation)

    async def run(self, awaitable: Awaitable[T], operation: str = "the call") -> T:
        """Await an awaitable within the deadline. Raises DeadlineExceeded; see `limit`."""
        try:
            async with self.limit(operation):
                return await awaitable
        finally:
            if asyncio.iscoroutine(awaitable):
                # after an expired deadline it was never started; a second close has no effect
                awaitable.close()


class TaskTimeout:
    """Cancels the current task after some seconds unless it is stopped before, like `asyncio.timeout`.

    It avoids the objects and coroutines of asyncio, since every call uses several timeouts. Use it only so::

        timeout = TaskTimeout(seconds)
        try:
            ...
        except asyncio.CancelledError:
            if timeout.stop(): raise ... from None     # only the timeout caused the cancellation
            raise
        finally:
            timeout.stop()
    """

    __slots__ = ("_cancelling", "_caused_cancellation", "_has_fired", "_task", "_timer", "_timers")

    def __init__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._has_fired = self._caused_cancellation = False
        self._timers = get_timer_heap(loop)
        self._timer: TimerEntry | None = self._timers.schedule(loop, seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        self._has_fired, self._timer = True, None
        self._task.cancel()

    def stop(self) -> bool:
        """Stop the timeout; return whether it alone caused a cancellation. May be called repeatedly."""
        if self._timer is not None:
            self._timers.cancel(self._timer)
            self._timer = None
        if self._has_fired:
            self._has_fired = False
            self._caused_cancellation = self._task.uncancel() <= self._cancelling
        return self._caused_cancellation


class ReusableTimeout:
    """Timeout for the many waits of a stream; it is restarted for each and keeps one timer for all.

    Use it like `TaskTimeout`, with `restart` in place of the constructor, and `close` after the last wait.
    """

    __slots__ = (
        "_cancelling",
        "_caused_cancellation",
        "_expires_at",
        "_fires_at",
        "_has_fired",
        "_loop",
        "_task",
        "_timer",
        "_timers",
    )

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._timers = get_timer_heap(self._loop)
        self._timer: TimerEntry | None = None
        self._task: asyncio.Task[object] | None = None
        self._expires_at = self._fires_at = 0.0
        self._cancelling = 0
        self._has_fired = self._caused_cancellation = False

    def restart(self, seconds: float) -> None:
        """Cancel the current task after ``seconds`` unless `stop` is called before."""
        loop = self._loop
        task = asyncio.current_task(loop)
        assert task is not None
        self._task, self._cancelling, self._caused_cancellation = task, task.cancelling(), False
        self._expires_at = expires_at = loop.time() + seconds
        if self._timer is None or expires_at < self._fires_at:
            self._schedule(seconds)

    def stop(self) -> bool:
        """End the wait; return whether the timeout alone caused a cancellation. May be called repeatedly."""
        if self._has_fired and self._task is not None:
            self._has_fired = False
            self._caused_cancellation = self._task.uncancel() <= self._cancelling
        self._task = None
        return self._caused_cancellation

    def close(self) -> None:
        """Cancel the timer after the last wait."""
        if self._timer is not None:
            self._timers.cancel(self._timer)
            self._timer = None

    def _schedule(self, seconds: float) -> None:
        self.close()
        self._fires_at = self._loop.time() + seconds
        self._timer = self._timers.schedule(self._loop, seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        """Cancel the task if its wait has expired; reschedule if the wait began after the timer was set."""
        self._timer = None
        if self._task is None:
            return
        remaining_s = self._expires_at - self._loop.time()
        if remaining_s > CLOCK_TOLERANCE_S:
            self._schedule(remaining_s)
        else:
            self._has_fired = True
            self._task.cancel()


class DeadlineLimit:
    """One use of a deadline around a block, by one task; see `Deadline.limit`."""

    __slots__ = ("_deadline", "_operation", "_timeout")

    def __init__(self, deadline: Deadline, operation: str) -> None:
        self._deadline, self._operation = deadline, operation
        self._timeout: TaskTimeout | None = None

    def start(self) -> None:
        """Start the limit; without ``async with``, `stop` must always follow."""
        if self._deadline.at == math.inf:
            return
        remaining_s = self._deadline.remaining()
        if remaining_s <= CLOCK_TOLERANCE_S:
            raise DeadlineExceeded(f"no time was left for {self._operation}", stage="unsent")
        self._timeout = TaskTimeout(remaining_s)

    def stop(self, error_type: type[BaseException] | None) -> None:
        """Stop the limit, given the type of the block's error. Raises DeadlineExceeded if it expired."""
        if self._timeout is not None and self._timeout.stop() and error_type is asyncio.CancelledError:
            raise DeadlineExceeded(f"{self._operation} took longer than it may", stage="sent") from None

    async def __aenter__(self) -> None:
        self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(kind)
