"""Timeouts and completeness checks for streams.

A server that sends comments defeats a read timeout, and a stream that is closed early looks complete. So only
chunks with content reset the timer, and the protocol's last event is required. A request with an ``api``
classifies the chunks of its response (`ChunkClassifier`); for other requests the options do.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol, Self

from agentguard.errors import BackendError, DeadlineExceeded, ResilienceError, Stalled
from agentguard.options import SECONDS, Options, option
from agentguard.resilience.base import Response, Runtime, Send
from agentguard.resilience.deadline import CLOCK_TOLERANCE_S, Deadline, TimerEntry, get_timer_heap
from agentguard.resilience.events import EventKind

CLOSE_TIMEOUT_S = 0.1
"""Time limit for a cancelled task or stream to end; after that it is abandoned."""


def accept_any_chunk(_chunk: Any) -> bool:
    """Return True: every chunk has content, and there are no heartbeats."""
    return True


class ChunkClassifier(Protocol):
    """Classification of a response's chunks; the ``api`` of a request implements it."""

    def has_content(self, chunk: Any) -> bool:
        """Return whether a chunk has content; a heartbeat has none."""
        ...

    def is_last(self, chunk: Any) -> bool:
        """Return whether a chunk is, or ends with, the last event of the protocol."""
        ...

    def find_chunk_error(self, chunk: Any) -> str | None:
        """Return the defect of a chunk in one clause without its content; None if it is valid."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimeoutOptions(Options):
    """Options of stream timeouts.

    Attributes:
        first_chunk_timeout_s: time limit for the first chunk with content; until then the call may be
            retried.
        idle_timeout_s: time limit between two such chunks, without the time that the reader takes.
        has_content: returns whether a chunk has content; a heartbeat has none.
        is_last: returns whether a chunk is the last one of the protocol; None if the protocol has none.
        max_leading_heartbeats: heartbeats that are buffered before the first chunk; more are an error.
    """

    name: ClassVar[str] = "stream_timeout"

    first_chunk_timeout_s: float = option(60.0, bounds=SECONDS)
    idle_timeout_s: float = option(20.0, bounds=SECONDS)
    has_content: Callable[[Any], bool] = option(accept_any_chunk, is_hidden=True)
    is_last: Callable[[Any], bool] | None = option(None, is_hidden=True)
    max_leading_heartbeats: int = option(1000, bounds=(0, 1_000_000))

    def build(self, inner: Send, runtime: Runtime) -> StreamTimeout:
        """Bind the strategy to the ``send`` of the next one."""
        return StreamTimeout(self, inner, runtime)


class StreamTimeout:
    """Strategy that returns a stream as a `MonitoredStream` after its first chunk; see `monitor_response`."""

    def __init__(self, options: StreamTimeoutOptions, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Pass the request to the next strategy, and its response to `monitor_response`."""
        response = await self._inner(request, deadline)
        return await monitor_response(response, request, deadline, self._options, self._runtime)


async def monitor_response(
    response: Response, request: Any, deadline: Deadline, options: StreamTimeoutOptions, runtime: Runtime
) -> Response:
    """Return a stream as a `MonitoredStream` after its first chunk, and any other response unchanged.

    Raises:
        Stalled: the first chunk is late; the stage is ``sent``.
    """
    if not hasattr(response, "__anext__"):
        return response
    api: ChunkClassifier | None = getattr(request, "api", None)
    stream = MonitoredStream(response, deadline, options, runtime, classifier=api)
    await stream.start()
    return stream


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
            self._timer[2] = None
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


class MonitoredStream:
    """Async iterator of chunks under a deadline. Read it to its end or close it, since it holds a connection.

    Iterating raises Stalled, DeadlineExceeded, or BackendError if the stream is interrupted or violates its
    protocol; their stage is ``committed``.

    Attributes:
        status: HTTP status of the wrapped response; this and the following are None or empty if it has none.
        headers: headers of the response.
        replica: name of the replica that responds.
        notes: notes on the attempts of the request; may be assigned.
    """

    def __init__(
        self,
        source: AsyncIterator[Any],
        deadline: Deadline,
        options: StreamTimeoutOptions,
        runtime: Runtime,
        *,
        classifier: ChunkClassifier | None = None,
    ) -> None:
        self._source, self._deadline, self._options, self._runtime = source, deadline, options, runtime
        self.status: Any = getattr(source, "status", None)
        self.headers: Any = getattr(source, "headers", ())
        self.replica: Any = getattr(source, "replica", "")
        self.notes: Any = getattr(source, "notes", ())
        self._has_content = options.has_content if classifier is None else classifier.has_content
        self._is_last = options.is_last if classifier is None else classifier.is_last
        self._find_chunk_error = None if classifier is None else classifier.find_chunk_error
        self._timeout = ReusableTimeout()
        self._buffered_chunks: deque[Any] = deque()
        self._remaining_s = options.first_chunk_timeout_s
        self._has_started = self._is_complete = self._is_finished = False
        self._callbacks: list[Callable[[BaseException | None], None]] = []
        self._error: BaseException | None = None

    def add_end_callback(self, callback: Callable[[BaseException | None], None]) -> None:
        """Call back once at the end of the stream with the error or None; at once if it has ended."""
        if self._is_finished:
            callback(self._error)
        else:
            self._callbacks.append(callback)

    async def start(self) -> None:
        """Wait for the first chunk with content; buffer it and the chunks before it for the reader."""
        while not self._has_started and not self._is_finished:
            try:
                self._buffered_chunks.append(await self._next())
            except StopAsyncIteration:
                return
            if len(self._buffered_chunks) > self._options.max_leading_heartbeats:
                await self._fail(Stalled("a stream sent only heartbeats", stage="sent"))
        self._has_started = True

    def __aiter__(self) -> Self:
        return self

    def __anext__(self) -> Coroutine[Any, Any, Any]:
        return self._next_buffered() if self._buffered_chunks or self._is_finished else self._next()

    async def _next_buffered(self) -> Any:
        """Return a buffered chunk; after the last one, end as the stream ended."""
        if self._buffered_chunks:
            return self._buffered_chunks.popleft()
        if self._error is None:
            raise StopAsyncIteration
        if isinstance(self._error, ResilienceError):
            raise self._error
        raise ResilienceError("the stream was closed before its end", stage="committed")

    async def aclose(self) -> None:
        """Close the stream and its source, for at most `CLOSE_TIMEOUT_S`."""
        self._buffered_chunks.clear()
        if not self._is_finished:
            self._finish(asyncio.CancelledError())
            await close_response(self._source)

    async def _next(self) -> Any:
        """Return the next chunk within the time limit; finish the stream at its end and on errors."""
        clock, watch = self._runtime.clock, self._timeout
        before = clock.now()
        try:
            watch.restart(max(0.0, min(self._remaining_s, self._deadline.at - before)))
            try:
                chunk = await self._source.__anext__()
            finally:
                ours = watch.stop()
            chunk_error = None if self._find_chunk_error is None else self._find_chunk_error(chunk)
            if chunk_error is not None:
                raise BackendError(f"the stream is not valid: {chunk_error}", stage=self._stage)
            if self._has_content(chunk):
                self._has_started, self._remaining_s = True, self._options.idle_timeout_s
            else:
                self._remaining_s -= clock.now() - before
            if self._has_started and not self._is_complete and self._is_last is not None:
                self._is_complete = self._is_last(chunk)  # an empty stream cannot be complete
        except StopAsyncIteration:
            if self._is_last is not None and not self._is_complete:
                await self._fail(BackendError("the stream ended before its last event", stage=self._stage))
            self._finish(None)
            raise
        except BaseException as error:
            await self._abort(
                self._build_timeout_error() if ours and isinstance(error, asyncio.CancelledError) else error
            )
        return chunk

    def _build_timeout_error(self) -> ResilienceError:
        if self._deadline.is_expired:
            return DeadlineExceeded("the stream exceeded the deadline")
        return Stalled("the stream made no progress within its time limit")

    async def _abort(self, error: BaseException) -> NoReturn:
        """Finish the stream with the error of its source, and raise the error or its translation."""
        if isinstance(error, ResilienceError):
            error.stage = self._stage  # the caller may already have a part of the response
            await self._fail(error)
        elif isinstance(error, OSError | EOFError):
            await self._fail(BackendError(f"the stream broke off: {type(error).__name__}", stage=self._stage))
        else:
            self._finish(error)
            await close_response(self._source)
        raise error

    @property
    def _stage(self) -> Any:
        return "committed" if self._has_started else "sent"

    async def _fail(self, error: ResilienceError) -> None:
        kind = EventKind.STALL if isinstance(error, Stalled) else EventKind.CUT
        self._runtime.emit_event(kind, self._options.name, reason=error.code)
        self._finish(error)
        await close_response(self._source)
        raise error

    def _finish(self, error: BaseException | None) -> None:
        self._is_finished, self._error = True, error
        self._timeout.close()
        callbacks, self._callbacks = self._callbacks, []
        for callback in callbacks:
            callback(error)


def add_end_callback(response: Response, callback: Callable[[BaseException | None], None]) -> None:
    """Call back at the end of a response: when a `MonitoredStream` ends, otherwise now."""
    if isinstance(response, MonitoredStream):
        response.add_end_callback(callback)
    else:
        callback(None)


async def close_response(response: Response) -> None:
    """Close an unneeded response within `CLOSE_TIMEOUT_S`, if it can be closed; errors are ignored."""
    close = getattr(response, "aclose", None)
    if close is not None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await close()
