"""Ask a second time when the first answer is slow, and take whichever comes first.

After Dean and Barroso, The Tail at Scale (CACM 2013). "Slow" is slower than 95 % of the last answers, so
about one request in twenty is sent twice, and a budget holds that even when all of them turn slow. The
first attempt runs in the caller's own task: where there is no hedge, there is no cost but a timer.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, insort
from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

from agentguard.resilience._timer_heap import get_timer_heap
from agentguard.resilience.base import Request, Response, Runtime, Send
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.options import SECONDS, StrategyOptions, check_ranges
from agentguard.resilience.retry_budget import RetryBudget, RetryBudgetOptions
from agentguard.resilience.stream_timeout import CLOSE_TIMEOUT_S, close_response

_DEFAULT_BUDGET = RetryBudgetOptions(ratio=0.05, reserve=0.0, per_second=0.0, burst=10.0)


_UPDATE_INTERVAL = 8  # so many new latencies may come before the quantile is looked up again


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedge(StrategyOptions):
    """Options of hedging.

    Attributes:
        quantile: a second request is sent when the first takes longer than this share of the last ones did.
        window: how many latencies are remembered.
        min_samples: how many there must be before anything is hedged.
        min_delay_s: never hedge sooner than this.
        budget: most hedges, as a share of the requests.
    """

    name: ClassVar[str] = "hedge"

    quantile: float = 0.95
    window: int = 500
    min_samples: int = 20
    min_delay_s: float = 0.001
    budget: RetryBudgetOptions = field(default=_DEFAULT_BUDGET)

    def __post_init__(self) -> None:
        check_ranges(
            self, quantile=(0.5, 0.999), window=(20, 10_000), min_samples=(1, 10_000), min_delay_s=SECONDS
        )

    def build(self, inner: Send, runtime: Runtime) -> Hedger:
        """Make the working part."""
        return Hedger(self, inner, runtime)


class RecentQuantile:
    """The exact quantile of the last so many values: a ring, and the same values in order."""

    __slots__ = ("_order", "_ring", "_size")

    def __init__(self, size: int) -> None:
        self._size, self._ring, self._order = size, deque[float](), list[float]()

    def __len__(self) -> int:
        return len(self._ring)

    def add(self, value: float) -> None:
        """Remember a value and forget the oldest, in O(log n) comparisons."""
        if len(self._ring) == self._size:
            del self._order[bisect_left(self._order, self._ring.popleft())]
        self._ring.append(value)
        insort(self._order, value)

    def compute(self, quantile: float) -> float:
        """The smallest value that at least this share of the values does not exceed; there must be one."""
        rank = -int(-quantile * len(self._order) // 1)  # the ceiling
        return self._order[max(0, rank - 1)]


class Hedger:
    """Sends a request, and once more when it is slow."""

    def __init__(self, options: Hedge, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime
        self.budget = RetryBudget(options.budget, runtime.clock)
        self.latencies = RecentQuantile(options.window)
        self._delay: float | None = None
        self._samples_since_update = 0
        self._cancelled_tasks: set[asyncio.Task[Any]] = set()  # asyncio itself holds tasks only weakly

    @property
    def delay(self) -> float | None:
        """Seconds after which a second request is sent; None while too little is known."""
        if self._samples_since_update >= _UPDATE_INTERVAL or self._delay is None:
            self._samples_since_update = 0
            if len(self.latencies) < self._options.min_samples:
                return None
            self._delay = max(self._options.min_delay_s, self.latencies.compute(self._options.quantile))
        return self._delay

    async def send(self, request: Request, deadline: Deadline) -> Response:
        """Send on; the first good answer counts, and only if both fail, the first one's error."""
        self.budget.deposit()
        now = self._runtime.clock.now
        started = now()
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
        """Start the second request in a task of its own, if the budget has one."""
        if not self.budget.withdraw():
            return None
        self._runtime.emit_event(EventKind.HEDGE, self._options.name, seconds=self.delay or 0.0)
        return asyncio.create_task(self._inner(request, deadline))

    def take_second(self, task: asyncio.Task[Response]) -> Response:
        """The second's answer, which came first."""
        self._runtime.emit_event(EventKind.HEDGE_WON, self._options.name)
        return task.result()

    async def cancel_task(self, task: asyncio.Task[Response]) -> None:
        """Cancel a request whose answer nobody waits for; see it ended, or leave it after `GRACE_S`."""
        task.cancel()
        closing = None
        try:
            await asyncio.wait({task}, timeout=CLOSE_TIMEOUT_S)
        finally:  # also where the caller leaves in the meantime
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
        """Close what a dropped request brought all the same; see its error, so that asyncio need not warn."""
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
    """One request and perhaps its double. The first is interrupted the way `asyncio.timeout` does it.

    Attributes:
        second: the double, while it may still bring an answer.
    """

    __slots__ = (
        "_cancel_count", "_deadline", "_first", "_hedger", "_is_first_cancelled", "_request", "_timer", "_timers",
        "second",
    )  # fmt: skip

    def __init__(self, hedger: Hedger, request: Request, deadline: Deadline, delay: float) -> None:
        self._hedger, self._request, self._deadline = hedger, request, deadline
        self.second: asyncio.Task[Response] | None = None
        self._is_first_cancelled = False
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None  # for mypy: a coroutine that runs is in a task
        self._first: asyncio.Task[Any] | None = task
        self._cancel_count = task.cancelling()
        self._timers = get_timer_heap(loop)
        self._timer = self._timers.schedule(loop, delay, self._start)

    def finish_first(self, error: BaseException | None) -> BaseException | None:
        """The first has ended; returns its error, or that it was interrupted since the second has an answer.

        In between comes no await: nobody is interrupted by what has ended.
        """
        self._timers.cancel(self._timer)
        first, self._first = self._first, None
        if not self._is_first_cancelled or first is None:
            return error
        ours = isinstance(error, asyncio.CancelledError) and first.cancelling() - 1 <= self._cancel_count
        first.uncancel()
        return _FirstCancelled() if ours else error

    async def await_fallback(self, error: BaseException | None) -> Response:
        """The second's answer, where the first failed or was interrupted for it; else the first's error."""
        assert error is not None  # for mypy: there is one
        second, self.second = self.second, None
        if second is None:
            raise error
        if isinstance(error, Exception):
            return await self._await_second(second, error)
        await self._hedger.cancel_task(second)
        raise error

    async def cancel_second(self, response: Response) -> None:
        """The first has brought an answer: end the second."""
        assert self.second is not None  # for mypy: there is one
        try:
            await self._hedger.cancel_task(self.second)
        except BaseException:
            await close_response(response)
            raise

    async def _await_second(self, second: asyncio.Task[Response], error: Exception) -> Response:
        """The second's answer. Raises the first's error if there is none."""
        try:
            await asyncio.wait({second})
        except BaseException:
            await self._hedger.cancel_task(second)
            raise
        if not _has_response(second):
            raise error
        return self._hedger.take_second(second)

    def _start(self) -> None:
        self.second = self._hedger.start_second(self._request, self._deadline)
        if self.second is not None:
            self.second.add_done_callback(self._on_second_done)

    def _on_second_done(self, task: asyncio.Task[Response]) -> None:
        """The second has ended; if it has an answer, the first need not go on."""
        if _has_response(task) and self._first is not None:
            self._is_first_cancelled = True
            self._first.cancel()


class _FirstCancelled(Exception):
    """The first request was cancelled because the second has an answer."""
