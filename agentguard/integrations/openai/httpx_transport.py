"""Guarded transport for clients on httpx 0.28: openai 1 and 2, anthropic before 1, and their dependents.

::

    client = OpenAI(http_client=DefaultHttpxClient(transport=guard.httpx_transport()))

Each transport converts requests and responses of httpx to those of httpx2, passes them to a transport of
`agentguard.integrations.openai.httpx2_transport`, and converts them back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from agentguard.errors import MissingExtra

try:
    import httpx
    import httpx2
except ImportError as error:
    raise MissingExtra("the guarded transport for httpx", "httpx") from error

from agentguard.integrations.openai.http_messages import require_request
from agentguard.integrations.openai.httpx2_transport import AsyncGuardTransport, GuardTransport

if TYPE_CHECKING:
    from agentguard.guard import Guard


class HttpxGuardTransport(httpx.BaseTransport):
    """Transport for ``httpx.Client``; created by `Guard.httpx_transport`.

    Args:
        guard: the guard whose rules apply.
        inner: transport that sends the requests; by default httpx's own.
        **options: options of `GuardTransport`.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(self, guard: Guard, *, inner: httpx.BaseTransport | None = None, **options: Any) -> None:
        transport = _OutgoingTransport(inner if inner is not None else httpx.HTTPTransport())
        self._guarded = GuardTransport(guard, inner=transport, **options)
        self.interceptor = self._guarded.interceptor

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; guard it if it calls a supported API."""
        require_request(request, httpx.Request, "httpx", "guard.transport()")
        stream = request.stream
        assert isinstance(stream, httpx.SyncByteStream)
        with _translate_errors():
            response = self._guarded.handle_request(_to_httpx2_request(request, _IncomingStream(stream)))
        assert isinstance(response.stream, httpx2.SyncByteStream)
        return _to_httpx_response(response, _OutgoingStream(response.stream))

    def close(self) -> None:
        """Close the inner transport."""
        self._guarded.close()


class AsyncHttpxGuardTransport(httpx.AsyncBaseTransport):
    """Transport for ``httpx.AsyncClient``, like `HttpxGuardTransport`; see `Guard.ahttpx_transport`."""

    def __init__(
        self, guard: Guard, *, inner: httpx.AsyncBaseTransport | None = None, **options: Any
    ) -> None:
        transport = _AsyncOutgoingTransport(inner if inner is not None else httpx.AsyncHTTPTransport())
        self._guarded = AsyncGuardTransport(guard, inner=transport, **options)
        self.interceptor = self._guarded.interceptor

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send a request; guard it if it calls a supported API."""
        require_request(request, httpx.Request, "httpx", "guard.atransport()")
        stream = request.stream
        assert isinstance(stream, httpx.AsyncByteStream)
        converted = _to_httpx2_request(request, _AsyncIncomingStream(stream))
        with _translate_errors():
            response = await self._guarded.handle_async_request(converted)
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        return _to_httpx_response(response, _AsyncOutgoingStream(response.stream))

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._guarded.aclose()


class _OutgoingTransport(httpx2.BaseTransport):
    """Transport of httpx2 that sends requests with a transport of httpx."""

    def __init__(self, inner: httpx.BaseTransport) -> None:
        self._inner = inner

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, httpx2.SyncByteStream)
        response = self._inner.handle_request(_to_httpx_request(request, _OutgoingStream(request.stream)))
        assert isinstance(response.stream, httpx.SyncByteStream)
        return _to_httpx2_response(response, _IncomingStream(response.stream))

    def close(self) -> None:
        self._inner.close()


class _AsyncOutgoingTransport(httpx2.AsyncBaseTransport):
    """Asynchronous transport of httpx2 that sends requests with a transport of httpx."""

    def __init__(self, inner: httpx.AsyncBaseTransport) -> None:
        self._inner = inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        assert isinstance(request.stream, httpx2.AsyncByteStream)
        converted = _to_httpx_request(request, _AsyncOutgoingStream(request.stream))
        response = await self._inner.handle_async_request(converted)
        assert isinstance(response.stream, httpx.AsyncByteStream)
        return _to_httpx2_response(response, _AsyncIncomingStream(response.stream))

    async def aclose(self) -> None:
        await self._inner.aclose()


class _IncomingStream(httpx2.SyncByteStream):
    """Stream of httpx as a stream of httpx2."""

    def __init__(self, stream: httpx.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        return iter(self._stream)

    def close(self) -> None:
        self._stream.close()


class _OutgoingStream(httpx.SyncByteStream):
    """Stream of httpx2 as a stream of httpx."""

    def __init__(self, stream: httpx2.SyncByteStream) -> None:
        self._stream = stream

    def __iter__(self) -> Iterator[bytes]:
        with _translate_errors():
            yield from self._stream

    def close(self) -> None:
        self._stream.close()


class _AsyncIncomingStream(httpx2.AsyncByteStream):
    """Asynchronous stream of httpx as a stream of httpx2."""

    def __init__(self, stream: httpx.AsyncByteStream) -> None:
        self._stream = stream

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self._stream.__aiter__()

    async def aclose(self) -> None:
        await self._stream.aclose()


class _AsyncOutgoingStream(httpx.AsyncByteStream):
    """Asynchronous stream of httpx2 as a stream of httpx."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        with _translate_errors():
            async for data in self._stream:
                yield data

    async def aclose(self) -> None:
        await self._stream.aclose()


def _to_httpx2_request(
    request: httpx.Request, stream: httpx2.SyncByteStream | httpx2.AsyncByteStream
) -> httpx2.Request:
    headers = list(request.headers.raw)
    return httpx2.Request(
        request.method, str(request.url), headers=headers, stream=stream, extensions=request.extensions
    )


def _to_httpx_request(
    request: httpx2.Request, stream: httpx.SyncByteStream | httpx.AsyncByteStream
) -> httpx.Request:
    headers = list(request.headers.raw)
    return httpx.Request(
        request.method, str(request.url), headers=headers, stream=stream, extensions=dict(request.extensions)
    )


def _to_httpx2_response(
    response: httpx.Response, stream: httpx2.SyncByteStream | httpx2.AsyncByteStream
) -> httpx2.Response:
    headers = list(response.headers.raw)
    return httpx2.Response(
        response.status_code, headers=headers, stream=stream, extensions=response.extensions
    )


def _to_httpx_response(
    response: httpx2.Response, stream: httpx.SyncByteStream | httpx.AsyncByteStream
) -> httpx.Response:
    headers = list(response.headers.raw)
    extensions = dict(response.extensions)
    return httpx.Response(response.status_code, headers=headers, stream=stream, extensions=extensions)


@contextmanager
def _translate_errors() -> Iterator[None]:
    """Convert the error of an incomplete response to that of httpx, which the client handles."""
    try:
        yield
    except httpx2.RemoteProtocolError as error:
        raise httpx.RemoteProtocolError(str(error)) from error
