"""Requests and responses of httpx2 with replaced headers, bodies or streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from agentguard.errors import ConfigError, RecoveryError
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.guarded_request import CandidateRequest, GuardedRequest
from agentguard.intercept.registry import GUARDED_APIS

RUN_HEADER = "agentguard-run"
"""Header with the run of a request; ``off`` disables the guard. It is never forwarded."""


def select_adapter(request: httpx2.Request) -> ApiAdapter | None:
    """Return the adapter for a request, by its method and path; None if the API cannot be guarded."""
    if request.method != "POST":
        return None
    path = request.url.path.rstrip("/")
    return next((api.adapter for api in GUARDED_APIS.values() if path.endswith(api.path_suffix)), None)


def require_request(request: object, kind: type, library: str, remedy: str) -> None:
    """Raise ConfigError if a request is of another HTTP library than the transport."""
    if not isinstance(request, kind):
        found = type(request).__module__.partition(".")[0]
        raise ConfigError(
            f"this guarded transport is for clients on {library}, and the client is on {found}; use {remedy}"
        )


def strip_run_header(request: httpx2.Request) -> tuple[httpx2.Request, str]:
    """Return the request without the run header, and the header's value.

    Raises:
        ConfigError: the request is not of httpx2.
    """
    require_request(request, httpx2.Request, "httpx2", "guard.httpx_transport() or guard.ahttpx_transport()")
    run = request.headers.get(RUN_HEADER)
    if run is None:
        return request, ""
    headers = httpx2.Headers([pair for pair in request.headers.raw if pair[0].lower() != RUN_HEADER.encode()])
    made = httpx2.Request(
        request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
    )
    return made, run


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
    """Return whether the body is an answer as a stream of events."""
    kind = response.headers.get("content-type", "").lower()
    return response.status_code == 200 and kind.startswith("text/event-stream")


def is_passed_through(response: httpx2.Response) -> bool:
    """Return whether the transport must not read the whole body."""
    return response.status_code != 200 or is_event_stream(response)


def read_body(response: httpx2.Response) -> bytes:
    """Read the body, still compressed if it was; works also if the inner transport has read it."""
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
    """Return the response with the body that was read."""
    return httpx2.Response(
        response.status_code, headers=response.headers, content=content, extensions=response.extensions
    )


@dataclass(frozen=True, slots=True)
class CandidateHttpRequest:
    """Request of another candidate; its response is always read completely."""

    request: httpx2.Request


def build_candidate_request(request: httpx2.Request) -> CandidateRequest:
    """Return the functions that request further candidates of the turn of ``request``."""
    return CandidateRequest(
        build_request=lambda body: CandidateHttpRequest(replace_content(request, body)),
        parse_response=_parse_candidate_response,
    )


def _parse_candidate_response(result: tuple[httpx2.Response, bytes]) -> dict[str, Any]:
    response, raw = result
    payload = parse_object(restore_body(response, raw).content) if response.status_code == 200 else None
    if payload is None:
        raise RecoveryError(
            f"the request of a candidate returned status {response.status_code} without a JSON object"
        )
    return payload


def replace_payload(response: httpx2.Response, payload: Mapping[str, Any]) -> httpx2.Response:
    """Return the response with another JSON object as its body."""
    gone = (b"content-length", b"content-encoding", b"transfer-encoding")
    headers = [pair for pair in response.headers.raw if pair[0].lower() not in gone]
    content = json.dumps(payload, separators=(",", ":")).encode()
    return httpx2.Response(200, headers=headers, content=content, extensions=response.extensions)


def replace_stream(
    response: httpx2.Response, stream: httpx2.SyncByteStream | httpx2.AsyncByteStream
) -> httpx2.Response:
    """Return the response with another stream of uncompressed bytes."""
    gone = (b"content-length", b"content-encoding")
    headers = [pair for pair in response.headers.raw if pair[0].lower() not in gone]
    return httpx2.Response(
        response.status_code, headers=headers, stream=stream, extensions=response.extensions
    )


class GuardedByteStream(httpx2.SyncByteStream):
    """Stream that settles its guarded request when it ends, normally or not."""

    def __init__(
        self, chunks: Iterator[bytes], guarded_request: GuardedRequest, response: httpx2.Response
    ) -> None:
        self._chunks, self._guarded_request, self._response = chunks, guarded_request, response

    def __iter__(self) -> Iterator[bytes]:
        try:
            yield from self._chunks
        finally:
            self._guarded_request.settle()

    def close(self) -> None:
        """Close the source of the stream."""
        getattr(self._chunks, "close", _do_nothing)()
        self._response.close()
        self._guarded_request.settle()


class AsyncGuardedByteStream(httpx2.AsyncByteStream):
    """Async stream that settles its guarded request when it ends, normally or not."""

    def __init__(
        self, chunks: AsyncIterator[bytes], guarded_request: GuardedRequest, response: httpx2.Response
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
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()
        await self._response.aclose()
        self._guarded_request.settle()


def _do_nothing() -> None:
    """Do nothing, for a stream that cannot be closed."""
