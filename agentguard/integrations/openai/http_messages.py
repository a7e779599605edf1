"""HTTP messages of httpx2: parsing, and replacement of headers, bodies and streams."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from agentguard.errors import ConfigError, RecoveryError
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.guarded_apis import GUARDED_APIS
from agentguard.intercept.guarded_request import CandidateRequest, GuardedRequest

RUN_HEADER = "agentguard-run"
"""Request header with the run's name; ``off`` disables the guard. The transport removes the header."""


def select_adapter(request: httpx2.Request) -> ApiAdapter | None:
    """Return the adapter for the API of a request; None if the guard does not support the API."""
    if request.method != "POST":
        return None
    path = request.url.path.rstrip("/")
    return next((api.adapter for api in GUARDED_APIS.values() if path.endswith(api.path_suffix)), None)


def require_request(request: object, kind: type, library: str, remedy: str) -> None:
    """Raise ConfigError if a request is of another HTTP library than the transport."""
    if not isinstance(request, kind):
        found = type(request).__module__.partition(".")[0]
        raise ConfigError(
            f"this guarded transport is for clients that use {library}; the client uses {found}: use {remedy}"
        )


def strip_run_header(request: httpx2.Request) -> tuple[httpx2.Request, str]:
    """Return the request without the run header, and the header's value.

    Raises:
        ConfigError: the request is not an httpx2 request.
    """
    require_request(request, httpx2.Request, "httpx2", "guard.httpx_transport() or guard.ahttpx_transport()")
    run = request.headers.get(RUN_HEADER)
    if run is None:
        return request, ""
    headers = httpx2.Headers([pair for pair in request.headers.raw if pair[0].lower() != RUN_HEADER.encode()])
    forwarded = httpx2.Request(
        request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
    )
    return forwarded, run


def replace_content(request: httpx2.Request, content: bytes | None) -> httpx2.Request:
    """Return the request with another body; the same request if ``content`` is None."""
    if content is None:
        return request
    headers = httpx2.Headers([pair for pair in request.headers.raw if pair[0].lower() != b"content-length"])
    return httpx2.Request(
        request.method, request.url, headers=headers, content=content, extensions=request.extensions
    )


def parse_object(content: bytes) -> dict[str, Any] | None:
    """Parse a body; return None if it is not a JSON object."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_event_stream(response: httpx2.Response) -> bool:
    """Return whether the body is a model's response as a stream of events."""
    kind = response.headers.get("content-type", "").lower()
    return response.status_code == 200 and kind.startswith("text/event-stream")


def is_passed_through(response: httpx2.Response) -> bool:
    """Return whether the body is an error or a stream, which the transport does not read as a whole."""
    return response.status_code != 200 or is_event_stream(response)


def read_body(response: httpx2.Response) -> bytes:
    """Read the body without decompression; the inner transport may have read it before."""
    stream = response.stream
    assert isinstance(stream, httpx2.SyncByteStream)
    try:
        return b"".join(stream)
    finally:
        response.close()


async def aread_body(response: httpx2.Response) -> bytes:
    """Read the body like `read_body`."""
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)
    try:
        return b"".join([part async for part in stream])
    finally:
        await response.aclose()


def restore_body(response: httpx2.Response, content: bytes) -> httpx2.Response:
    """Return the response with a body that `read_body` returned."""
    return httpx2.Response(
        response.status_code, headers=response.headers, content=content, extensions=response.extensions
    )


@dataclass(frozen=True, slots=True)
class CandidateHttpRequest:
    """Request for another candidate; the transport reads its response completely."""

    request: httpx2.Request


def build_candidate_request(request: httpx2.Request) -> CandidateRequest:
    """Build the functions that request further candidates of the turn of ``request``."""
    return CandidateRequest(
        build_request=lambda body: CandidateHttpRequest(replace_content(request, body)),
        parse_response=_parse_candidate_response,
    )


def _parse_candidate_response(result: tuple[httpx2.Response, bytes]) -> dict[str, Any]:
    response, raw = result
    payload = parse_object(restore_body(response, raw).content) if response.status_code == 200 else None
    if payload is None:
        raise RecoveryError(
            f"the response with a candidate has status {response.status_code} and is not a JSON object"
        )
    return payload


def replace_payload(response: httpx2.Response, payload: Mapping[str, Any]) -> httpx2.Response:
    """Return the response with another JSON object as its body."""
    removed_names = (b"content-length", b"content-encoding", b"transfer-encoding")
    headers = [pair for pair in response.headers.raw if pair[0].lower() not in removed_names]
    content = json.dumps(payload, separators=(",", ":")).encode()
    return httpx2.Response(200, headers=headers, content=content, extensions=response.extensions)


def replace_stream(
    response: httpx2.Response, stream: httpx2.SyncByteStream | httpx2.AsyncByteStream
) -> httpx2.Response:
    """Return the response with another stream of uncompressed bytes."""
    removed_names = (b"content-length", b"content-encoding")
    headers = [pair for pair in response.headers.raw if pair[0].lower() not in removed_names]
    return httpx2.Response(
        response.status_code, headers=headers, stream=stream, extensions=response.extensions
    )


class GuardedByteStream(httpx2.SyncByteStream):
    """Stream that settles its guarded request at its end, or when it is closed."""

    def __init__(
        self,
        chunks: Generator[bytes, None, None],
        guarded_request: GuardedRequest,
        response: httpx2.Response,
    ) -> None:
        self._chunks, self._guarded_request, self._response = chunks, guarded_request, response

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._chunks
        finally:
            self._guarded_request.settle()

    def close(self) -> None:
        """Close the source of the stream."""
        self._chunks.close()
        self._response.close()
        self._guarded_request.settle()


class AsyncGuardedByteStream(httpx2.AsyncByteStream):
    """Async stream that settles its guarded request at its end, or when it is closed."""

    def __init__(
        self,
        chunks: AsyncGenerator[bytes, None],
        guarded_request: GuardedRequest,
        response: httpx2.Response,
    ) -> None:
        self._chunks, self._guarded_request, self._response = chunks, guarded_request, response

    async def __aiter__(self) -> AsyncIterator[bytes]:
        try:
            async for data in self._chunks:
                yield data
        finally:
            self._guarded_request.settle()

    async def aclose(self) -> None:
        """Close the source of the stream."""
        await self._chunks.aclose()
        await self._response.aclose()
        self._guarded_request.settle()
