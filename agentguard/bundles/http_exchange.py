"""HTTP exchanges with a model API as recorded calls, for the clients of frameworks (httpx2)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import orjson

from agentguard import _sync_async
from agentguard.bundles.captured_run import build_exchange_name, decode_body
from agentguard.errors import MissingExtra

try:
    import httpx2
except ImportError as error:
    raise MissingExtra("the transport of a bundle", "chat") from error

ExchangeBody = Callable[[str, dict[str, Any]], _sync_async.SharedBody[Any]]
"""Body of an exchange with its name and request; it yields the request to send."""

# The clients of OpenAI and Anthropic decide on a retry by these headers.
_RECORDED_HEADERS: Final = ("content-type", "retry-after", "retry-after-ms", "x-should-retry")


class BoundTransport(httpx2.BaseTransport):
    """Transport whose exchanges a recording or a replay handles.

    Args:
        body: body of an exchange.
        inner: transport that sends live requests; by default httpx2's own.
    """

    def __init__(self, body: ExchangeBody, inner: httpx2.BaseTransport | None) -> None:
        self._body, self._inner = body, inner

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response; it is complete, also if it is a stream of events."""
        request.read()
        exchange = self._body(build_exchange_name(request.method, request.url.path), encode_request(request))
        return decode_response(
            _sync_async.run_sync(exchange, lambda data: self._send(_replace_body(request, data)))
        )

    def close(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            self._inner.close()

    def _send(self, request: httpx2.Request) -> dict[str, Any]:
        self._inner = self._inner or httpx2.HTTPTransport()
        response = self._inner.handle_request(request)
        try:
            response.read()
        finally:
            response.close()
        return encode_response(response)


class AsyncBoundTransport(httpx2.AsyncBaseTransport):
    """Transport like `BoundTransport`, for an asynchronous client."""

    def __init__(self, body: ExchangeBody, inner: httpx2.AsyncBaseTransport | None) -> None:
        self._body, self._inner = body, inner

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Return the response like `BoundTransport.handle_request`."""
        await request.aread()
        exchange = self._body(build_exchange_name(request.method, request.url.path), encode_request(request))
        return decode_response(
            await _sync_async.run_async(exchange, lambda data: self._send(_replace_body(request, data)))
        )

    async def aclose(self) -> None:
        """Close the inner transport."""
        if self._inner is not None:
            await self._inner.aclose()

    async def _send(self, request: httpx2.Request) -> dict[str, Any]:
        self._inner = self._inner or httpx2.AsyncHTTPTransport()
        response = await self._inner.handle_async_request(request)
        try:
            await response.aread()
        finally:
            await response.aclose()
        return encode_response(response)


def encode_request(request: httpx2.Request) -> dict[str, Any]:
    """Return the body of a request as JSON data, without headers, so without keys."""
    return {"body": decode_body(request.content)}


def encode_response(response: httpx2.Response) -> dict[str, Any]:
    """Return status, headers and body of a response as JSON data."""
    headers = {name: response.headers[name] for name in _RECORDED_HEADERS if name in response.headers}
    return {"status": response.status_code, "headers": headers, "body": decode_body(response.content)}


def decode_response(data: Mapping[str, Any]) -> httpx2.Response:
    """Return the response of recorded data."""
    return httpx2.Response(data["status"], headers=data["headers"], content=_encode_body(data["body"]))


def _replace_body(request: httpx2.Request, data: Mapping[str, Any]) -> httpx2.Request:
    """Return the request with a body that the binding has changed, otherwise the request itself."""
    if data == encode_request(request):
        return request
    headers = [pair for pair in request.headers.raw if pair[0].lower() != b"content-length"]
    content = _encode_body(data["body"])
    return httpx2.Request(
        request.method, request.url, headers=headers, content=content, extensions=request.extensions
    )


def _encode_body(body: Any) -> bytes:
    return body.encode() if isinstance(body, str) else orjson.dumps(body)


def find_error_class(name: str) -> type[Exception] | None:
    """Return the exception class of httpx2 with this name, so that a client handles a replayed error."""
    kind = getattr(httpx2, name, None)
    return kind if isinstance(kind, type) and issubclass(kind, httpx2.TransportError) else None
