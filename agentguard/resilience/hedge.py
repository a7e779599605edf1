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

from agentguard.resilience._timer_heap import timers_of
from agentguard.resilience.base import Request, Response, Runtime, Send
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.options import SECONDS, StrategyOptions, check
from agentguard.resilience.retry_budget import BudgetOptions, RetryBudget
from agentguard.resilience.stream_timeout import GRACE_S, discard

_EXTRA = BudgetOptions(ratio=0.05, reserve=0.0, per_second=0.0, burst=10.0)


_EVERY = 8  # so many new latencies may come before the quantile is looked up again


@dataclass(frozen=True, slots=True, kw_only=True)
class Hedge(StrategyOptions):
    """Options of hedging.

    Attributes:
        quantile: a second request is sent when the first takes longer than this share of the last ones did.
        window: how many latencies are remembered.
        minimum: how many there must be before anything is hedged.
        floor_s: never hedge sooner than this.
        budget: most hedges, as a share of the requests.
    """

    name: ClassVar[str] = "hedge"

    quantile: float = 0.95
    window: int = 500
    minimum: int = 20
    floor_s: float = 0.001
    budget: BudgetOptions = field(default=_EXTRA)

    def __post_init__(self) -> None:
        check(self, quantile=(0.5, 0.999), window=(20, 10_000), minimum=(1, 10_000), floor_s=SECONDS)

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

    def at(self, quantile: float) -> float:
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
        self._changes = 0
        self._strays: set[asyncio.Task[Any]] = set()  # asyncio itself holds tasks only weakly

    @property
    def delay(self) -> float | None:
        """Seconds after which a second request is sent; None while too little is known."""
        if self._changes >= _EVERY or self._delay is None:
            self._changes = 0
            if len(self.latencies) < self._options.minimum:
                return None
            self._delay = max(self._options.floor_s, self.latencies.at(self._options.quantile))
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
            race = _Race(self, request, deadline, delay)
            try:
                response = await self._inner(request, deadline)
            except BaseException as error:
                response = await race.instead(race.over(error))
            else:
                race.over(None)
                if race.second is not None:
                    await race.drop_second(response)
        self.latencies.add(now() - started)
        self._changes += 1
        return response

    def second(self, request: Request, deadline: Deadline) -> asyncio.Task[Response] | None:
        """Start the second request in a task of its own, if the budget has one."""
        if not self.budget.withdraw():
            return None
        self._runtime.tell(EventKind.HEDGE, self._options.name, seconds=self.delay or 0.0)
        return asyncio.create_task(self._inner(request, deadline))

    def take(self, task: asyncio.Task[Response]) -> Response:
        """The second's answer, which came first."""
        self._runtime.tell(EventKind.HEDGE_WON, self._options.name)
        return task.result()

    async def drop(self, task: asyncio.Task[Response]) -> None:
        """Cancel a request whose answer nobody waits for; see it ended, or leave it after `GRACE_S`."""
        task.cancel()
        closing = None
        try:
            await asyncio.wait({task}, timeout=GRACE_S)
        finally:  # also where the caller leaves in the meantime
            if task.done():
                closing = self._bury(task)
            else:
                self._runtime.tell(EventKind.STRAY, self._options.name, reason="cancelled, still running")
                self._strays.add(task)
                task.add_done_callback(self._bury)
        if closing is not None:
            await asyncio.wait({closing})

    def _bury(self, task: asyncio.Task[Response]) -> asyncio.Task[None] | None:
        """Close what a dropped request brought all the same; see its error, so that asyncio need not warn."""
        self._strays.discard(task)
        if not _answered(task) or not hasattr(task.result(), "aclose"):
            return None
        closing = asyncio.create_task(discard(task.result()))
        self._strays.add(closing)
        closing.add_done_callback(self._strays.discard)
        return closing


def _answered(task: asyncio.Task[Any]) -> bool:
    return task.done() and not task.cancelled() and task.exception() is None


class _Race:
    """One request and perhaps its double. The first is interrupted the way `asyncio.timeout` does it.

    Attributes:
        second: the double, while it may still bring an answer.
    """

    __slots__ = (
        "_cancelling", "_deadline", "_first", "_hedger", "_interrupted", "_request", "_timer", "_timers",
        "second",
    )  # fmt: skip

    def __init__(self, hedger: Hedger, request: Request, deadline: Deadline, delay: float) -> None:
        self._hedger, self._request, self._deadline = hedger, request, deadline
        self.second: asyncio.Task[Response] | None = None
        self._interrupted = False
        loop = asyncio.get_running_loop()
        task = asyncio.current_task(loop)
        assert task is not None  # for mypy: a coroutine that runs is in a task
        self._first: asyncio.Task[Any] | None = task
        self._cancelling = task.cancelling()
        self._timers = timers_of(loop)
        self._timer = self._timers.after(loop, delay, self._start)

    def over(self, error: BaseException | None) -> BaseException | None:
        """The first has ended; returns its error, or that it was interrupted since the second has an answer.

        In between comes no await: nobody is interrupted by what has ended.
        """
        self._timers.off(self._timer)
        first, self._first = self._first, None
        if not self._interrupted or first is None:
            return error
        ours = isinstance(error, asyncio.CancelledError) and first.cancelling() - 1 <= self._cancelling
        first.uncancel()
        return _Interrupted() if ours else error

    async def instead(self, error: BaseException | None) -> Response:
        """The second's answer, where the first failed or was interrupted for it; else the first's error."""
        assert error is not None  # for mypy: there is one
        second, self.second = self.second, None
        if second is None:
            raise error
        if isinstance(error, Exception):
            return await self._await_second(second, error)
        await self._hedger.drop(second)
        raise error

    async def drop_second(self, answer: Response) -> None:
        """The first has brought an answer: end the second."""
        assert self.second is not None  # for mypy: there is one
        try:
            await self._hedger.drop(self.second)
        except BaseException:
            await discard(answer)
            raise

    async def _await_second(self, second: asyncio.Task[Response], error: Exception) -> Response:
        """The second's answer. Raises the first's error if there is none."""
        try:
            await asyncio.wait({second})
        except BaseException:
            await self._hedger.drop(second)
            raise
        if not _answered(second):
            raise error
        return self._hedger.take(second)

    def _start(self) -> None:
        self.second = self._hedger.second(self._request, self._deadline)
        if self.second is not None:
            self.second.add_done_callback(self._finished)

    def _finished(self, task: asyncio.Task[Response]) -> None:
        """The second has ended; if it has an answer, the first need not go on."""
        if _answered(task) and self._first is not None:
            self._interrupted = True
            self._first.cancel()


class _Interrupted(Exception):
    """The first request was cancelled because the second has an answer."""
