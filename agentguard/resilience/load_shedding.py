"""Load shedding: admit the calls that can be served in time and reject the rest at once, by priority.

Calls beyond the limit wait in a bounded queue, ordered by priority. A call that cannot be served by its
deadline is rejected when it arrives, not when it expires. So a rejection is fast and no time is spent on
responses that the caller no longer needs (Google SRE book, chapters 21 and 22).

The limit on concurrent calls can adapt. There are two algorithms:

- AIMD, as in TCP (Chiu and Jain, 1989): one more per round trip while calls succeed, a tenth less on
  overload. It only needs signs of overload, so it suits responses of very different lengths.
- Gradient (Netflix concurrency-limits, Envoy's adaptive concurrency filter): it compares latency with the
  best recent latency. It detects a queue before calls fail, and suits calls of similar length.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar, Literal, Protocol

from agentguard.errors import ConfigError, Overloaded
from agentguard.options import SECONDS, Options, option
from agentguard.resilience.base import (
    CallOutcome,
    Request,
    RequestPriority,
    Response,
    Runtime,
    Send,
    classify_outcome,
    is_overload,
)
from agentguard.resilience.deadline import Deadline
from agentguard.resilience.events import EventKind
from agentguard.resilience.stream_timeout import MonitoredStream

_LIMIT_RANGE = (1, 100_000)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConcurrencyLimitOptions(Options):
    """Options of the concurrency limit.

    Attributes:
        algorithm: ``fixed`` keeps ``initial_limit``; ``aimd`` and ``gradient`` adapt.
        initial_limit: limit at the start.
        min_limit: lower bound on the limit.
        max_limit: upper bound on the limit.
        backoff_ratio: factor by which overload reduces the limit.
        tolerance: multiple of the best latency that the gradient algorithm treats as normal.
        samples: number of latencies per update of the gradient algorithm.
    """

    name: ClassVar[str] = "concurrency"

    algorithm: Literal["fixed", "aimd", "gradient"] = option("aimd", choices=("fixed", "aimd", "gradient"))
    initial_limit: int = option(20, bounds=_LIMIT_RANGE)
    min_limit: int = option(1, bounds=_LIMIT_RANGE)
    max_limit: int = option(1000, bounds=_LIMIT_RANGE)
    backoff_ratio: float = option(0.9, bounds=(0.1, 0.99))
    tolerance: float = option(1.5, bounds=(1.0, 10.0))
    samples: int = option(20, bounds=(1, 10_000))

    def check_consistency(self) -> None:
        """Check that the initial limit is in the range of limits."""
        if not self.min_limit <= self.initial_limit <= self.max_limit:
            raise ConfigError("ConcurrencyLimitOptions.initial_limit must be from min_limit to max_limit")

    def build(self) -> ConcurrencyLimit:
        """Create the limit for the selected algorithm."""
        limits: dict[str, type[FixedLimit | AimdLimit | GradientLimit]] = {
            "fixed": FixedLimit,
            "aimd": AimdLimit,
            "gradient": GradientLimit,
        }
        return limits[self.algorithm](self)


class ConcurrencyLimit(Protocol):
    """Limit on concurrent calls that adapts to the result of each call."""

    value: float

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Record a call: its times in seconds, the number of concurrent calls, and overload."""
        ...


class FixedLimit:
    """Limit that does not adapt."""

    def __init__(self, options: ConcurrencyLimitOptions) -> None:
        self.value = float(options.initial_limit)

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Do nothing."""


class _DecreasingLimit:
    """Common base of the algorithms: overload reduces the limit once for all concurrent calls."""

    def __init__(self, options: ConcurrencyLimitOptions) -> None:
        self._options, self.value, self._decreased_at = options, float(options.initial_limit), -math.inf

    def _decrease(self, started: float, ended: float) -> None:
        if (
            started >= self._decreased_at
        ):  # calls that started before the last decrease are part of the same overload
            self.value, self._decreased_at = (
                max(self._options.min_limit, self.value * self._options.backoff_ratio),
                ended,
            )


class AimdLimit(_DecreasingLimit):
    """Additive increase, multiplicative decrease."""

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Decrease on overload; increase only if at least half of the limit was in use."""
        if overload:
            self._decrease(started, ended)
        elif inflight * 2 >= self.value:
            self.value = min(self._options.max_limit, self.value + 1 / self.value)


class GradientLimit(_DecreasingLimit):
    """Gradient algorithm: the new limit is limit x gradient + sqrt(limit).

    The gradient is best latency x tolerance / current latency. The best latency is periodically measured
    again with half the limit. Otherwise a permanent queue would become part of the baseline. Envoy does the
    same with a limit of three.
    """

    PROBE_INTERVAL = 50
    """Number of batches between two measurements of the best latency."""

    def __init__(self, options: ConcurrencyLimitOptions) -> None:
        super().__init__(options)
        self._sum, self._count, self._is_saturated = 0.0, 0, False
        self._min_latency, self._batch_count = math.inf, 0
        self._limit_before_probe = 0.0  # the limit after the measurement; 0 outside of a measurement
        self._ignore_before = -math.inf  # start of the last measurement

    def update(self, *, started: float, ended: float, inflight: int, overload: bool) -> None:
        """Record a latency; after each ``samples`` latencies, move the limit."""
        if overload:
            self._decrease(started, ended)
        elif started >= self._ignore_before:
            self._sum += ended - started
            self._count += 1
            self._is_saturated = self._is_saturated or inflight * 2 >= self.value
            if self._count >= self._options.samples:
                average, is_saturated = self._sum / self._count, self._is_saturated
                self._sum, self._count, self._is_saturated = 0.0, 0, False
                self._update_from_batch(average, is_saturated, ended)

    def _update_from_batch(self, mean_latency: float, is_saturated: bool, now: float) -> None:
        options = self._options
        if self._limit_before_probe:
            self._min_latency, self.value, self._limit_before_probe = (
                mean_latency,
                max(self.value, self._limit_before_probe),
                0.0,
            )
            return
        self._min_latency = min(self._min_latency, mean_latency)
        self._batch_count += 1
        if self._batch_count % self.PROBE_INTERVAL == 0:
            self._limit_before_probe, self._ignore_before = self.value, now
            self.value = max(options.min_limit, self.value / 2)
        elif is_saturated and mean_latency > 0:
            gradient = min(1.0, max(0.5, options.tolerance * self._min_latency / mean_latency))
            target = self.value * gradient + math.sqrt(self.value)
            self.value = min(options.max_limit, max(options.min_limit, 0.8 * self.value + 0.2 * target))


class DurationEstimator:
    """Moving mean and deviation of call durations, as TCP estimates round trips (RFC 6298)."""

    def __init__(self) -> None:
        self.mean = self._deviation = 0.0

    @property
    def upper_bound(self) -> float:
        """Return the seconds within which nearly all calls end; 0 without data."""
        return self.mean + 2 * self._deviation

    def add(self, seconds: float) -> None:
        """Add the duration of a call."""
        if not self.mean:
            self.mean, self._deviation = seconds, seconds / 2
            return
        self._deviation += (abs(seconds - self.mean) - self._deviation) / 4
        self.mean += (seconds - self.mean) / 8


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSheddingOptions(Options):
    """Options of load shedding.

    Attributes:
        max_queue: maximum number of waiting calls.
        queue_timeout_s: maximum wait.
        concurrency: limit on concurrent calls.
    """

    name: ClassVar[str] = "load_shedding"

    max_queue: int = option(100, bounds=(0, 100_000))
    queue_timeout_s: float = option(5.0, bounds=SECONDS)
    concurrency: ConcurrencyLimitOptions = field(default_factory=ConcurrencyLimitOptions)

    def build(self, inner: Send, runtime: Runtime) -> LoadShedding:
        """Bind the strategy to the ``send`` of the next one."""
        return LoadShedding(self, inner, runtime)


class _Waiter:
    """Call in the queue. Its future returns None for admission, or the reason of a rejection."""

    __slots__ = ("deadline", "future", "priority")

    def __init__(self, priority: RequestPriority, deadline: Deadline) -> None:
        self.future: asyncio.Future[str | None] = asyncio.get_running_loop().create_future()
        self.priority, self.deadline = priority, deadline


class LoadShedding:
    """Strategy that admits calls up to a limit, queues some of the others and rejects the rest."""

    def __init__(self, options: LoadSheddingOptions, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime
        self.limit = options.concurrency.build()
        self.inflight = 0
        self._queues: tuple[deque[_Waiter], ...] = tuple(deque() for _ in RequestPriority)
        self._duration = DurationEstimator()

    @property
    def queue_length(self) -> int:
        """Return the number of waiting calls."""
        return sum(map(len, self._queues))

    async def acquire(self, priority: RequestPriority, deadline: Deadline) -> float:
        """Admit a call; return the clock time of admission, to be passed to `release`.

        Raises:
            Overloaded: the queue is full of calls of at least this priority, or the wait would be too long.
        """
        if self.inflight < int(self.limit.value) and not self.queue_length:
            # Admit it even if it seems too late: no call waits, and its duration updates the estimate.
            self.inflight += 1
            return self._runtime.clock.now()
        waiter = _Waiter(priority, deadline)
        self._enqueue(waiter, deadline)
        seconds = min(self._options.queue_timeout_s, deadline.remaining())
        try:
            async with asyncio.timeout(seconds):
                rejection = await waiter.future
        except BaseException as error:
            self._remove_waiter(waiter)
            if isinstance(error, TimeoutError):
                raise self._build_rejection("it waited too long in the queue") from None
            raise
        if rejection is not None:
            raise self._build_rejection(rejection)
        return self._runtime.clock.now()

    def release(self, started: float, *, overload: bool = False, is_sample: bool = True) -> None:
        """Release an admitted call; if ``is_sample``, its duration updates limit and estimate."""
        now = self._runtime.clock.now()
        if is_sample:
            self.limit.update(started=started, ended=now, inflight=self.inflight, overload=overload)
            self._duration.add(now - started)
        self.inflight -= 1
        if any(self._queues):
            self._admit_waiters()

    async def send(self, request: Request, deadline: Deadline) -> Response:
        """Send the call on once admitted, or raise Overloaded; a stream holds its slot until its end."""
        if self.inflight + 1 <= self.limit.value and not any(self._queues):  # fast path of `acquire`
            self.inflight += 1
            started = self._runtime.clock.now()
        else:
            started = await self.acquire(request.priority, deadline)
        try:
            response = await self._inner(request, deadline)
        except BaseException as error:
            self._on_call_end(started, error, deadline)
            raise
        if isinstance(response, MonitoredStream):
            response.add_end_callback(lambda error: self._on_call_end(started, error, deadline))
        else:
            self.release(started)
        return response

    def _on_call_end(self, started: float, error: BaseException | None, deadline: Deadline) -> None:
        """Release an admitted call with the evidence of its outcome.

        A call that the deadline ended before the usual duration is not evidence: it waited too long before.
        Counted as overload, or as a short call, it would reduce the limit and cause even longer waits.
        """
        overload = is_overload(error, deadline)
        is_sample = overload or classify_outcome(error, deadline) is not CallOutcome.IGNORED
        if overload and deadline.is_expired:
            is_sample = self._runtime.clock.now() - started >= self._duration.upper_bound
        self.release(started, overload=overload, is_sample=is_sample)

    def _misses_deadline(self, deadline: Deadline, wait_s: float = 0.0) -> bool:
        return wait_s + self._duration.upper_bound > deadline.remaining()

    def _enqueue(self, waiter: _Waiter, deadline: Deadline) -> None:
        before = sum(len(queue) for queue in self._queues[: waiter.priority + 1])
        wait = self._duration.mean * (before + 1) / max(1, int(self.limit.value))
        if wait > self._options.queue_timeout_s or self._misses_deadline(deadline, wait):
            raise self._build_rejection("it would not end before the deadline")
        if self.queue_length >= self._options.max_queue:
            self._evict_lower_priority(waiter.priority)
        self._queues[waiter.priority].append(waiter)

    def _evict_lower_priority(self, priority: RequestPriority) -> None:
        """Reject the last waiting call of the lowest priority, if it is lower than this priority."""
        for queue in reversed(self._queues[priority + 1 :]):
            while queue:
                waiter = queue.pop()
                if not waiter.future.done():
                    waiter.future.set_result("a request of higher priority took its place in the queue")
                    return
        raise self._build_rejection("the queue is full")

    def _remove_waiter(self, waiter: _Waiter) -> None:
        """Remove a call that stopped waiting; if it was just admitted, admit the next one."""
        if waiter.future.done() and not waiter.future.cancelled() and waiter.future.result() is None:
            self.inflight -= 1
            self._admit_waiters()
        elif waiter in self._queues[waiter.priority]:
            self._queues[waiter.priority].remove(waiter)

    def _admit_waiters(self) -> None:
        for queue in self._queues:
            while queue and self.inflight < int(self.limit.value):
                waiter = queue.popleft()
                if waiter.future.done():
                    continue
                if self._misses_deadline(waiter.deadline):
                    waiter.future.set_result("its turn in the queue came after the deadline")
                else:
                    waiter.future.set_result(None)
                    self.inflight += 1

    def _build_rejection(self, reason: str) -> Overloaded:
        self._runtime.emit_event(EventKind.SHED, self._options.name, reason=reason)
        return Overloaded(f"shed: {reason}", retry_after_s=self._duration.mean or None)
