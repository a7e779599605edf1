"""Hedging: send a second request when the first is slow, and use the response that arrives first.

After Dean and Barroso, The Tail at Scale (CACM 2013). "Slow" means slower than 95 % of the recent requests,
so about one request in twenty is sent twice. A budget limits that share even if all requests become slow. The
first attempt runs in the caller's own task, so an unhedged request only costs a timer.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agentguard.options import SECONDS, Options, option
from agentguard.resilience.base import Request, Response, Runtime, Send
from agentguard.resilience.deadline import Deadline, get_timer_heap
from agentguard.resilience.events import EventKind
from agentguard.resilience.retry import RetryBudget, RetryBudgetOptions
from agentguard.resilience.stream_timeout import CLOSE_TIMEOUT_S, close_response

_DEFAULT_BUDGET = RetryBudgetOptions(ratio=0.05, reserve=0.0, per_second=0.0, burst=10.0)


_UPDATE_INTERVAL = 8  # number of new latencies after which the quantile is computed again


@dataclass(frozen=True, slots=True, kw_only=True)
class HedgeOptions(Options):
    """Options of hedging.

    Attributes:
        quantile: quantile of recent latencies after which the strategy sends a second request.
        window: number of latencies that are kept.
        min_samples: number of latencies required before requests are hedged.
        min_delay_s: minimum delay before a second request.
        budget: upper bound on second requests, as a share of the requests.
    """

    name: ClassVar[str] = "hedge"

    quantile: float = option(0.95, bounds=(0.5, 0.999))
    window: int = option(500, bounds=(20, 10_000))
    min_samples: int = option(20, bounds=(1, 10_000))
    min_delay_s: float = option(0.001, bounds=SECONDS)
    budget: RetryBudgetOptions = field(default=_DEFAULT_BUDGET)

    def build(self, inner: Send, runtime: Runtime) -> Hedge:
        """Bind the strategy to the ``send`` of the next one."""
        return Hedge(self, inner, runtime)


class RecentQuantile:
    """Exact quantile of the last ``size`` values, kept in a ring and in sorted order."""

    __slots__ = ("_order", "_ring", "_size")

    def __init__(self, size: int) -> None:
        self._size, self._ring, self._order = size, deque[float](), list[float]()

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, value: float) -> None:
        """Add a value and drop the oldest one, with O(log n) comparisons."""
        if len(self._ring) == self._size:
            del self._order[bisect_left(self._order, self._ring.popleft())]
        self._ring.append(value)
        insort(self._order, value)

    def compute(self, quantile: float) -> float:
        """Return the smallest value that at least this share of the values does not exceed. Needs a value."""
        rank = -int(-quantile * len(self._order) // 1)  # the ceiling
        return self._order[max(0, rank - 1)]


class Hedge:
    """Strategy that sends a request, and a second one if the first is slow."""

    def __init__(self, options: HedgeOptions, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime
        self.budget = RetryBudget(options.budget, runtime.clock)
        self.latencies = RecentQuantile(options.window)
        self._delay: float | None = None
        self._samples_since_update = 0
        self._cancelled_tasks: set[asyncio.Task[Any]] = set()  # asyncio holds only weak references to tasks

    @property
    def delay(self) -> float | None:
        """Return the delay before a second request in seconds; None if there are too few latencies."""
        if self._samples_since_update >= _UPDATE_INTERVAL or self._delay is None:
            self._samples_since_update = 0
            if len(self.latencies) < self._options.min_samples:
                return None
            self._delay = max(self._options.min_delay_s, self.latencies.compute(self._options.quantile))
        return self._delay

    async def send(self, request: Request, deadline: Deadline) -> Response:
        """Send the request; return the first success, or raise the first request's error if both fail."""
        self.budget.deposit()
        now = self._runtime.clock.now
        started = now()
        delay = self._delay
        if delay is None or self._samples_since_update >= _UPDATE_INTERVAL:
            delay = self.delay
        if delay is None or not request.idempotent or delay >= deadline.at - started:
            response = await self._inner(request, deadline)
        else:
            race = _HedgedCall(self, request, deadline, delay)
            try:
                response = await self._inner(request, deadline)
            except BaseException as error:
                response = await race.await_fallback(race.finish_first(error))
            else:
                race.finish_first(None)
                if race.second is not None:
                    await race.cancel_second(response)
        self.latencies.add(now() - started)
        self._samples_since_update += 1
        return response

    def start_second(self, request: Request, deadline: Deadline) -> asyncio.Task[Response] | None:
        """Start the second request in a separate task if the budget allows it."""
        if not self.budget.withdraw():
            return None
        self._runtime.emit_event(EventKind.HEDGE, self._options.name, seconds=self.delay or 0.0)
        return asyncio.create_task(self._inner(request, deadline))

    def take_second(self, task: asyncio.Task[Response]) -> Response:
        """Return the response of the second request, which arrived first."""
        self._runtime.emit_event(EventKind.HEDGE_WON, self._options.name)
        return task.result()

    async def cancel_task(self, task: asyncio.Task[Response]) -> None:
        """Cancel a request that is no longer needed; wait for its end for at most `CLOSE_TIMEOUT_S`."""
        task.cancel()
        closing = None
        try:
            await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S)
        finally:  # also if the caller is cancelled meanwhile
            if task.done():
                closing = self._close_response(task)
            else:
                self._runtime.emit_event(
                    EventKind.STRAY, self._options.name, reason="cancelled, still running"
                )
                self._cancelled_tasks.add(task)
                task.add_done_callback(self._close_response)
        if closing is not None:
            await asyncio.wait({closing})

    def _close_response(self, task: asyncio.Task[Response]) -> asyncio.Task[None] | None:
        """Close the response of a cancelled request. Reading its error stops a warning of asyncio."""
        self._cancelled_tasks.discard(task)
        if not _has_response(task) or not hasattr(task.result(), "aclose"):
            return None
        closing = asyncio.create_task(close_response(task.result()))
        self._cancelled_tasks.add(closing)
        closing.add_done_callback(self._cancelled_tasks.discard)
        return closing


def _has_response(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


class _HedgedCall:
    """One request and possibly its second copy. It interrupts the first as `asyncio.timeout` does.

    Attributes:
        second: the second request, while it may still succeed.
    """

    __slots__ = (
        "_cancel_count", "_deadline", "_first", "_hedge", "_is_first_cancelled", "_request", "_timer",
        "second",
    )  # fmt: skip

    def __init__(self, hedge: Hedge, request: Request, deadline: Deadline, delay: float) -> None:
        self._hedge, self._request, self._deadline = hedge, request, deadline
        self.second: asyncio.Task[Response] | None = None
        self._is_first_cancelled = False
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None
        self._first: asyncio.Task[Any] | None = task
        self._cancel_count = task.cancelling()
        self._timer = get_timer_heap(loop).schedule(loop, delay, self._start)

    def finish_first(self, error: BaseException | None) -> BaseException | None:
        """Record the end of the first request; return its error, or that the second request interrupted it.

        There is no await in between, so a finished request is never interrupted.
        """
        self._timer[2] = None
        first_task, self._first = self._first, None
        if not self._is_first_cancelled or first_task is None:
            return error
        is_own_cancellation = (
            isinstance(error, asyncio.CancelledError) and first_task.cancelling() - 1 <= self._cancel_count
        )
        first_task.uncancel()
        return _FirstCancelled() if is_own_cancellation else error

    async def await_fallback(self, error: BaseException | None) -> Response:
        """Return the second response if the first failed or was interrupted for it, else raise the error."""
        assert error is not None
        second_task, self.second = self.second, None
        if second_task is None:
            raise error
        if isinstance(error, Exception):
            return await self._await_second(second_task, error)
        await self._hedge.cancel_task(second_task)
        raise error

    async def cancel_second(self, response: Response) -> None:
        """Cancel the second request after the first has succeeded."""
        assert self.second is not None
        try:
            await self._hedge.cancel_task(self.second)
        except BaseException:
            await close_response(response)
            raise

    async def _await_second(self, second: asyncio.Task[Response], error: Exception) -> Response:
        """Return the second response. Raises the first request's error if the second fails."""
        try:
            await asyncio.wait({second})
        except BaseException:
            await self._hedge.cancel_task(second)
            raise
        if not _has_response(second):
            raise error
        return self._hedge.take_second(second)

    def _start(self) -> None:
        self.second = self._hedge.start_second(self._request, self._deadline)
        if self.second is not None:
            self.second.add_done_callback(self._on_second_done)

    def _on_second_done(self, task: asyncio.Task[Response]) -> None:
        """Interrupt the first request if the second has succeeded."""
        if _has_response(task) and self._first is not None:
            self._is_first_cancelled = True
            self._first.cancel()


class _FirstCancelled(Exception):
    """The first request was cancelled because the second has succeeded."""
