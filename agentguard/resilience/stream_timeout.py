"""A stream must make progress, and must end as it should: heartbeats and a quiet close don't count.

A read timeout is defeated by a server that sends comments, and a stream that is closed early looks like one
that is complete. So only chunks that carry something reset the clock, and the protocol's last event is
required. A request that has an ``api`` says itself what its answer's chunks are (`Reading`); else the
options say it.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from dataclasses import dataclass
from typing import Any, ClassVar, NoReturn, Protocol, Self

from agentguard.errors import BackendError, DeadlineExceeded, ResilienceError, Stalled
from agentguard.resilience.base import Response, Runtime, Send
from agentguard.resilience.deadline import Deadline, ReusableTimeout
from agentguard.resilience.events import EventKind
from agentguard.resilience.options import SECONDS, StrategyOptions, check_ranges

CLOSE_TIMEOUT_S = 0.1
"""How long something cancelled may take to end before it is left to itself."""


def accept_any_chunk(_chunk: Any) -> bool:
    """Every chunk carries something: there are no heartbeats."""
    return True


class ChunkClassifier(Protocol):
    """How the chunks of one request's answer are read; what a request's ``api`` is, if it has one."""

    def has_content(self, chunk: Any) -> bool:
        """Whether a chunk carries something; a heartbeat does not."""
        ...

    def is_last(self, chunk: Any) -> bool:
        """Whether a chunk is, or has at its end, the protocol's last one."""
        ...

    def find_chunk_error(self, chunk: Any) -> str | None:
        """What is wrong with a chunk, in one clause that shows nothing of it; None if nothing is."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamTimeout(StrategyOptions):
    """Options for streams.

    Attributes:
        first_chunk_timeout_s: most seconds to the first chunk that carries something; until then the call may be retried.
        idle_timeout_s: most seconds between two such chunks, not counting the time that the reader takes.
        has_content: whether a chunk carries something; a heartbeat does not.
        is_last: whether a chunk is the protocol's last one; None if there is no such thing.
        max_leading_heartbeats: most heartbeats that are kept before the first chunk; more of them are a fault.
    """

    name: ClassVar[str] = "stream_timeout"

    first_chunk_timeout_s: float = 60.0
    idle_timeout_s: float = 20.0
    has_content: Callable[[Any], bool] = accept_any_chunk
    is_last: Callable[[Any], bool] | None = None
    max_leading_heartbeats: int = 1000

    def __post_init__(self) -> None:
        check_ranges(
            self, first_chunk_timeout_s=SECONDS, idle_timeout_s=SECONDS, max_leading_heartbeats=(0, 1_000_000)
        )

    def build(self, inner: Send, runtime: Runtime) -> StreamMonitor:
        """Make the working part."""
        return StreamMonitor(self, inner, runtime)


class StreamMonitor:
    """Turns a streamed answer into a `Stream`, once its first chunk is there; leaves others as they are."""

    def __init__(self, options: StreamTimeout, inner: Send, runtime: Runtime) -> None:
        self._options, self._inner, self._runtime = options, inner, runtime

    async def send(self, request: Any, deadline: Deadline) -> Response:
        """Send on. Raises Stalled if the first chunk does not come in time, with stage ``sent``."""
        response = await self._inner(request, deadline)
        if not hasattr(response, "__anext__"):
            return response
        api: ChunkClassifier | None = getattr(request, "api", None)
        stream = MonitoredStream(response, deadline, self._options, self._runtime, classifier=api)
        await stream.start()
        return stream


class MonitoredStream:
    """An async iterator of chunks under a deadline. Read it to its end or close it; it holds a connection.

    Iterating raises Stalled, DeadlineExceeded, or BackendError if it breaks off or brings what its protocol
    does not know; stage ``committed``.

    Attributes:
        status: of the answer that it wraps, and so are the next three; None if that has none.
        headers: its head's.
        replica: who answers.
        notes: what became of the request on its way; may be set anew.
    """

    def __init__(
        self,
        source: AsyncIterator[Any],
        deadline: Deadline,
        options: StreamTimeout,
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
        """Call back once when the stream is over, with the error or None; at once if it is."""
        if self._is_finished:
            callback(self._error)
        else:
            self._callbacks.append(callback)

    async def start(self) -> None:
        """Wait for the first chunk that carries something; the reader gets it, and what came before it."""
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
        """What was read ahead; then how it ended."""
        if self._buffered_chunks:
            return self._buffered_chunks.popleft()
        if self._error is None:
            raise StopAsyncIteration
        if isinstance(self._error, ResilienceError):
            raise self._error
        raise ResilienceError("the stream was closed before its end", stage="committed")

    async def aclose(self) -> None:
        """Close it and what it reads from; at most `GRACE_S` are spent on that."""
        self._buffered_chunks.clear()
        if not self._is_finished:
            self._finish(asyncio.CancelledError())
            await close_response(self._source)

    async def _next(self) -> Any:
        """The next chunk, in the time left since the last one; ends the stream at its end and on errors."""
        clock, watch = self._runtime.clock, self._timeout
        before = clock.now()
        try:
            watch.restart(max(0.0, min(self._remaining_s, self._deadline.at - before)))
            try:
                chunk = await self._source.__anext__()
            finally:
                ours = watch.stop()
            wrong = None if self._find_chunk_error is None else self._find_chunk_error(chunk)
            if wrong is not None:
                raise BackendError(f"the stream is not what it should be: {wrong}", stage=self._stage)
            if self._has_content(chunk):
                self._has_started, self._remaining_s = True, self._options.idle_timeout_s
            else:
                self._remaining_s -= clock.now() - before
            if self._has_started and not self._is_complete and self._is_last is not None:
                self._is_complete = self._is_last(chunk)  # the end of something: of nothing there is none
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
            return DeadlineExceeded("the stream took longer than the call may")
        return Stalled("the stream made no progress in its time")

    async def _abort(self, error: BaseException) -> NoReturn:
        """End the stream with what ended its source, and raise it, or what it means."""
        if isinstance(error, ResilienceError):
            error.stage = self._stage  # whatever the backend thought: the caller may have a part of it
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
    """Call back when an answer is over: a `Stream` at its end, anything else now."""
    if isinstance(response, MonitoredStream):
        response.add_end_callback(callback)
    else:
        callback(None)


async def close_response(response: Response) -> None:
    """Close an answer nobody wants, if it can be closed; no longer than `GRACE_S`, whatever it raises."""
    close = getattr(response, "aclose", None)
    if close is not None:
        with contextlib.suppress(Exception):
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await close()
