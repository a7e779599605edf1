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
from agentguard.resilience._timer_heap import TimerEntry, get_timer_heap
from agentguard.resilience.clock import MONOTONIC, Clock

T = TypeVar("T")

CLOCK_TOLERANCE_S = 1e-6
"""asyncio ends a timer up to its clock's resolution early; that still is the deadline."""


@dataclass(slots=True, unsafe_hash=True)
class Deadline:
    """The clock time by which a call must have ended; ``inf`` is never. It is not to be changed.

    Not frozen, as other values are: one is made for each request, and that would take three times as long.

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

    def with_timeout(self, seconds: float) -> Deadline:
        """The earlier of this deadline and one so many seconds from now."""
        at = self.clock.now() + seconds
        return self if self.at <= at else Deadline(at, self.clock)

    def minimum(self, other: Deadline) -> Deadline:
        """The earlier of two deadlines of one clock."""
        return self if self.at <= other.at else other

    def remaining(self) -> float:
        """Seconds left, at least 0."""
        return max(0.0, self.at - self.clock.now())

    @property
    def is_expired(self) -> bool:
        """Whether the time is up."""
        return self.clock.now() >= self.at - CLOCK_TOLERANCE_S

    def limit(self, operation: str = "the call") -> DeadlineLimit:
        """``async with deadline.limit("the head"):`` cancels what runs inside when the time is up.

        Raises:
            DeadlineExceeded: instead of the cancellation, or at once if the time was up before; nothing
                inside was started then, and the error's stage is ``unsent``.
        """
        return DeadlineLimit(self, operation)

    async def run(self, awaitable: Awaitable[T], operation: str = "the call") -> T:
        """Await something within the deadline. Raises DeadlineExceeded; see `limit`."""
        try:
            async with self.limit(operation):
                return await awaitable
        finally:
            if asyncio.iscoroutine(awaitable):
                awaitable.close()  # it was not started if the time was up; closing it twice does nothing


class TaskTimeout:
    """Cancels the present task in so many seconds, unless it is over before: what `asyncio.timeout` does.

    Without its objects and coroutines, since several of these run in every call. Use it only like this::

        alarm = Alarm(seconds)
        try:
            ...
        except asyncio.CancelledError:
            if alarm.over(): raise ... from None     # it was the alarm, and nobody else
            raise
        finally:
            alarm.over()
    """

    __slots__ = ("_cancelling", "_caused_cancellation", "_has_fired", "_task", "_timer", "_timers")

    def __init__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None  # for mypy: whoever awaits is in a task
        self._task, self._cancelling = task, task.cancelling()
        self._has_fired = self._caused_cancellation = False
        self._timers = get_timer_heap(loop)
        self._timer: TimerEntry | None = self._timers.schedule(loop, seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        self._has_fired, self._timer = True, None
        self._task.cancel()

    def stop(self) -> bool:
        """Switch it off; whether a cancellation that came is this alarm's alone. May be called again."""
        if self._timer is not None:
            self._timers.cancel(self._timer)
            self._timer = None
        if self._has_fired:
            self._has_fired = False
            self._caused_cancellation = self._task.uncancel() <= self._cancelling
        return self._caused_cancellation


class ReusableTimeout:
    """An alarm for the many waits of a stream: wound anew for each, it keeps one timer for all.

    Used as `Alarm` is, with `wind` in place of making one, and `off` when there are no more waits.
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
        """Cancel the present task in so many seconds, unless `over` is called before."""
        loop = self._loop
        task = asyncio.current_task(loop)
        assert task is not None  # for mypy: whoever awaits is in a task
        self._task, self._cancelling, self._caused_cancellation = task, task.cancelling(), False
        self._expires_at = at = loop.time() + seconds
        if self._timer is None or at < self._fires_at:
            self._schedule(seconds)

    def stop(self) -> bool:
        """The wait is over; whether a cancellation in it was this watch's alone. May be called again."""
        if self._has_fired and self._task is not None:
            self._has_fired = False
            self._caused_cancellation = self._task.uncancel() <= self._cancelling
        self._task = None
        return self._caused_cancellation

    def close(self) -> None:
        """There are no more waits."""
        if self._timer is not None:
            self._timers.cancel(self._timer)
            self._timer = None

    def _schedule(self, seconds: float) -> None:
        self.close()
        self._fires_at = self._loop.time() + seconds
        self._timer = self._timers.schedule(self._loop, seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        """The time of some wait is up; if the present one began later, look again when its own is."""
        self._timer = None
        if self._task is None:
            return
        left = self._expires_at - self._loop.time()
        if left > CLOCK_TOLERANCE_S:
            self._schedule(left)
        else:
            self._has_fired = True
            self._task.cancel()


class DeadlineLimit:
    """One use of a deadline around a block; see `Deadline.limit`. Serves one task, once."""

    __slots__ = ("_deadline", "_operation", "_timeout")

    def __init__(self, deadline: Deadline, operation: str) -> None:
        self._deadline, self._operation = deadline, operation
        self._timeout: TaskTimeout | None = None

    def start(self) -> None:
        """Begin; without ``async with``, `stop` must follow, whatever happens."""
        if self._deadline.at == math.inf:
            return
        left = self._deadline.remaining()
        if left <= CLOCK_TOLERANCE_S:
            raise DeadlineExceeded(f"no time was left for {self._operation}", stage="unsent")
        self._timeout = TaskTimeout(left)

    def stop(self, error_type: type[BaseException] | None) -> None:
        """End, with the kind of what was raised inside. Raises DeadlineExceeded for our own cancellation."""
        if self._timeout is not None and self._timeout.stop() and error_type is asyncio.CancelledError:
            raise DeadlineExceeded(f"{self._operation} took longer than it may", stage="sent") from None

    async def __aenter__(self) -> None:
        self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(kind)
