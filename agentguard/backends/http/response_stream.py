"""Response stream: it forwards the body while it arrives."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Self

from agentguard.backends.base import Headers
from agentguard.backends.http.connection import HttpConnection
from agentguard.backends.http.limits import HttpLimits
from agentguard.errors import BackendError, ResilienceError
from agentguard.model_api import ApiFormat
from agentguard.model_api.sse import EventSplitter


class HttpStream:
    """`StreamingResponse` over HTTP: each item is all complete events received so far, or any bytes.

    The connection is released when the last byte arrives, even if the reader is slow. Reading from the
    endpoint pauses while the reader is slow. If the reading task is cancelled, the stream is closed.
    """

    def __init__(
        self,
        connection: HttpConnection,
        release: Callable[[HttpConnection], None],
        limits: HttpLimits,
        *,
        replica: str,
    ) -> None:
        parser = connection.parser
        self.status: int = parser.status
        self.headers: Headers = parser.headers
        self.replica, self.notes = replica, tuple[tuple[str, str], ...]()
        self._connection: HttpConnection | None = connection
        self._release, self._limits = release, limits
        self._splitter = EventSplitter() if parser.is_event_stream else None
        self._ends_at_close = parser.ends_at_close
        self._api: ApiFormat | None = None
        self._chunks: list[bytes] = []
        self._size = 0
        self._last_chunk = b""
        self._has_yielded = self._is_finished = False
        self._error: ResilienceError | None = None
        self._waiter: asyncio.Future[None] | None = None

    def start(self, api: ApiFormat | None) -> Self:
        """Take over the body from the connection."""
        self._api = api
        if self._connection is not None:
            self._connection.attach_sink(self)
        return self

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        """Return the data since the last call; wait if there is no data.

        Raises:
            ResilienceError: the stream was interrupted, was closed or timed out, after all received data.
        """
        chunks = self._chunks
        while not chunks:
            if self._is_finished:
                if self._error is None:
                    raise StopAsyncIteration
                self._error.stage = "committed" if self._has_yielded else "sent"
                raise self._error
            self._waiter = waiter = asyncio.get_running_loop().create_future()
            try:
                await waiter
            except asyncio.CancelledError:
                self._close()
                raise
            finally:
                self._waiter = None
        self._has_yielded = True
        if len(chunks) > 1 or self._ends_at_close:
            return self._take_chunks()
        self._size, connection = 0, self._connection
        if connection is not None and connection.is_paused:
            connection.resume()
        return chunks.pop()

    async def aclose(self) -> None:
        """Close the stream, and the connection unless the body is complete."""
        self._close()

    def push(self, data: bytes) -> None:
        """Receive body data from the connection. Raises BackendError if an event is too large."""
        splitter, waiter = self._splitter, self._waiter
        if splitter is not None:
            data = splitter.feed(data)
            if splitter.remainder_size > self._limits.max_event_bytes:
                raise BackendError("an event of the stream is too large", stage="sent")
            if not data:
                return
        self._chunks.append(data)
        self._size += len(data)
        if self._size > self._limits.max_buffered_bytes and self._connection is not None:
            self._connection.pause()
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def finish(self, error: ResilienceError | None) -> None:
        """Handle the end of the body."""
        connection, self._connection = self._connection, None
        if error is None:
            remainder = self._splitter.remainder if self._splitter is not None else b""
            if remainder:
                self._chunks.append(remainder)
            error = self._find_truncation() if self._ends_at_close else None
            if connection is not None:
                connection.resume()  # the next request must be able to read
                self._release(connection)
        self._is_finished, self._error = True, error
        self._resolve_waiter()

    def _find_truncation(self) -> BackendError | None:
        """Return an error if a body that ends with the connection may be truncated."""
        last_chunk = self._chunks[-1] if self._chunks else self._last_chunk
        if self._api is not None and self._api.is_last(last_chunk):
            return None
        return BackendError("the connection closed before the last event of the stream", stage="sent")

    def _take_chunks(self) -> bytes:
        """Return all buffered data."""
        data = self._chunks[0] if len(self._chunks) == 1 else b"".join(self._chunks)
        self._chunks.clear()
        self._size = 0
        if self._ends_at_close:
            self._last_chunk = data
        if self._connection is not None:
            self._connection.resume()
        return data

    def _close(self) -> None:
        connection, self._connection = self._connection, None
        self._chunks.clear()
        if not self._is_finished:
            self._is_finished = True
            self._error = ResilienceError("the stream was closed before its end", stage="committed")
        if connection is not None:
            connection.abort()
        self._resolve_waiter()

    def _resolve_waiter(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
