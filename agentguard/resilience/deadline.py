"""Deadlines and timeouts of calls.

A deadline is a point in time, not a duration. It can be passed through every layer and across attempts
without adding up. The earlier of two nested deadlines applies (gRPC's deadline propagation). The strategy
`Timeout` cancels a call after its time limit; nearly all of its timers are cancelled before they fire.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from agentguard.errors import ConfigError, DeadlineExceeded, Stage
from agentguard.options import SECONDS, Options, option
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard.resilience.events import EventKind

if TYPE_CHECKING:
    from agentguard.resilience.base import Response, Runtime, Send

T = TypeVar("T")

CLOCK_TOLERANCE_S = 1e-6
"""Tolerance for timers: asyncio fires a timer early by up to the resolution of its clock."""
_TIMER_TOLERANCE_S = 0.001
_MIN_COMPACTION_SIZE = 128
"""Size up to which a heap keeps cancelled timers."""
_CLOCK_RESOLUTION_S = time.get_clock_info("monotonic").resolution  # asyncio's loops also fire that early

TimerEntry = list[Any]
"""Timer: time, number and callback. Set the callback to None to cancel the timer."""


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


class TimerHeap:
    """Timers of one event loop that are nearly always cancelled before they fire: every call has some.

    asyncio creates an object per timer and passes each to the event loop. Here the loop has one timer for the
    earliest entry of the heap. A cancelled entry stays in the heap until it is due, or until the heap has
    grown to twice its size after the last compaction. For the caller the timing is the same.
    """

    __slots__ = ("__weakref__", "_compaction_size", "_handle", "_heap", "_loop", "_next_at", "_sequence")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._heap: list[TimerEntry] = []
        self._handle: asyncio.TimerHandle | None = None
        self._next_at = math.inf  # when the handle fires
        self._compaction_size = _MIN_COMPACTION_SIZE
        self._sequence = itertools.count()

    def schedule(
        self, loop: asyncio.AbstractEventLoop, seconds: float, callback: Callable[[], None]
    ) -> TimerEntry:
        """Call back after ``seconds``; ``loop`` must be the loop of this heap."""
        fires_at = loop.time() + seconds
        timer: TimerEntry = [fires_at, next(self._sequence), callback]
        heap = self._heap
        heappush(heap, timer)
        if fires_at < self._next_at:
            self._arm(loop, fires_at)
        if len(heap) > self._compaction_size:
            heap[:] = [entry for entry in heap if entry[2] is not None]
            heapify(heap)
            self._compaction_size = max(_MIN_COMPACTION_SIZE, 2 * len(heap))
        return timer

    def _arm(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._next_at, self._handle = when, loop.call_at(when, self._run_due)

    def _run_due(self) -> None:
        """Run the due timers, and arm the loop's timer for the next one."""
        self._handle, self._next_at = None, math.inf
        loop = self._loop()
        if loop is None:
            return
        try:
            now = loop.time() + _CLOCK_RESOLUTION_S
            while self._heap and (self._heap[0][2] is None or self._heap[0][0] <= now):
                timer = heappop(self._heap)
                call, timer[2] = timer[2], None
                if call is not None:
                    call()
        finally:
            if self._heap:
                self._arm(loop, self._heap[0][0])


_HEAPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, TimerHeap] = weakref.WeakKeyDictionary()
_last_heap: tuple[Callable[[], asyncio.AbstractEventLoop | None], TimerHeap] | None = None


def get_timer_heap(loop: asyncio.AbstractEventLoop) -> TimerHeap:
    """Return the heap of a loop; the last result is cached, since the loop rarely changes."""
    global _last_heap
    last_heap = _last_heap
    if last_heap is not None and last_heap[0]() is loop:
        return last_heap[1]
    heap = _HEAPS.get(loop)
    if heap is None:
        heap = _HEAPS[loop] = TimerHeap(loop)
    _last_heap = (weakref.ref(loop), heap)
    return heap


class ReusableTimer:
    """Timer of a connection with one callback and one time, both of which can be replaced.

    If the event loop's timer fires before a postponed time, it is scheduled again. Nearly every request ends
    long before its timeout, so this is cheaper than a new loop timer for each request.

    Attributes:
        callback: function to call at its time; None for no call.
    """

    __slots__ = ("_expires_at", "_fires_at", "_loop", "_timer", "callback")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = self._expires_at = 0.0
        self.callback: Callable[[], None] | None = None

    def arm(self, seconds: float, callback: Callable[[], None]) -> None:
        """Set callback and deadline; both replace the previous ones."""
        self._expires_at, self.callback = self._loop.time() + seconds, callback
        if self._timer is None or self._expires_at < self._fires_at:
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
        self._fires_at, self._timer = self._expires_at, self._loop.call_at(self._expires_at, self._fire)

    def _fire(self) -> None:
        self._timer, callback = None, self.callback
        if callback is None:
            return
        if self._expires_at - self._loop.time() > _TIMER_TOLERANCE_S:
            self._schedule()
        else:
            self.callback = None
            callback()


class TaskTimeout:
    """Timeout that cancels the current task unless it is stopped before, like `asyncio.timeout`.

    It avoids the objects and coroutines of asyncio, since every call uses several timeouts. Use it only
    in this form::

        timeout = TaskTimeout(seconds)
        try:
            ...
        except asyncio.CancelledError:
            if timeout.stop(): raise ... from None     # only the timeout caused the cancellation
            raise
        finally:
            timeout.stop()
    """

    __slots__ = ("_cancelling", "_caused_cancellation", "_has_fired", "_task", "_timer")

    def __init__(self, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._has_fired = self._caused_cancellation = False
        self._timer = get_timer_heap(loop).schedule(loop, seconds, self._on_timeout)

    def _on_timeout(self) -> None:
        self._has_fired = True
        self._task.cancel()

    def stop(self) -> bool:
        """Stop the timeout; return whether it alone caused a cancellation. May be called repeatedly."""
        self._timer[2] = None
        if self._has_fired:
            self._has_fired = False
            self._caused_cancellation = self._task.uncancel() <= self._cancelling
        return self._caused_cancellation


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
            raise DeadlineExceeded(f"the deadline passed before {self._operation}", stage="unsent")
        self._timeout = TaskTimeout(remaining_s)

    def stop(self, error_type: type[BaseException] | None) -> None:
        """Stop the limit, given the type of the block's error. Raises DeadlineExceeded if it expired."""
        if self._timeout is not None and self._timeout.stop() and error_type is asyncio.CancelledError:
            raise DeadlineExceeded(f"{self._operation} exceeded its time limit", stage="sent") from None

    async def __aenter__(self) -> None:
        self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(kind)


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeoutOptions(Options):
    """Deadline of the whole call: attempts, waits and streams. An earlier deadline of the caller applies."""

    name: ClassVar[str] = "timeout"

    total_s: float = option(600.0, bounds=SECONDS)

    def build(self, inner: Send, runtime: Runtime) -> Timeout:
        """Bind the strategy to the ``send`` of the next one."""
        return Timeout(self.name, self.total_s, inner, runtime, propagates=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptTimeoutOptions(Options):
    """Time limit of one attempt up to its head or first chunk; the stream after it has the whole deadline."""

    name: ClassVar[str] = "attempt_timeout"

    seconds: float = option(60.0, bounds=SECONDS)

    def build(self, inner: Send, runtime: Runtime) -> Timeout:
        """Bind the strategy to the ``send`` of the next one."""
        return Timeout(self.name, self.seconds, inner, runtime, propagates=False)


class Timeout:
    """Strategy that cancels a call, or one attempt of it, after its time limit.

    Args:
        name: name in events.
        seconds: time limit.
        inner: the next strategy.
        runtime: clock and observers.
        propagates: whether the next strategy gets the earlier deadline; otherwise it gets that of the caller.
    """

    def __init__(self, name: str, seconds: float, inner: Send, runtime: Runtime, *, propagates: bool) -> None:
        self._name, self._seconds, self._inner, self._runtime = name, seconds, inner, runtime
        self._propagates = propagates

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Pass the request to the next strategy. Raises DeadlineExceeded after the time limit."""
        # Same as `Deadline.limit` without its objects, because every attempt passes here twice.
        now = deadline.clock.now()
        expires_at = now + self._seconds
        if deadline.at <= expires_at:
            expires_at = deadline.at
        elif self._propagates:
            deadline = Deadline(expires_at, deadline.clock)
        if expires_at - now <= CLOCK_TOLERANCE_S:
            raise self._build_error("no time was left for", "unsent")
        timer = TaskTimeout(expires_at - now)
        try:
            return await self._inner(request, deadline)
        except asyncio.CancelledError:
            if timer.stop():
                raise self._build_error("too much time went into", "sent") from None
            raise
        except DeadlineExceeded:
            # otherwise an inner timer expired
            if self._runtime.clock.now() >= expires_at - CLOCK_TOLERANCE_S:
                self._emit_timeout()
            raise
        finally:
            timer.stop()

    def _build_error(self, reason: str, stage: Stage) -> DeadlineExceeded:
        """Report the timeout, and build its error."""
        self._emit_timeout()
        return DeadlineExceeded(f"{reason} {'the call' if self._propagates else 'the attempt'}", stage=stage)

    def _emit_timeout(self) -> None:
        self._runtime.emit_event(EventKind.TIMEOUT, self._name, seconds=self._seconds)
