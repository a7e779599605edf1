"""Requests and responses of httpx2 that differ from others in a few places."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import httpx2

from agentguard.errors import RecoveryError
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.registry import GUARDED_APIS
from agentguard.intercept.types import CandidateRequest

RUN_HEADER = "agentguard-run"
"""Names the run of a request; ``off`` leaves the request unguarded. It is never sent on."""


def select_adapter(request: httpx2.Request) -> ApiAdapter | None:
    """The dialect of a request that may be one of a run; None for all others."""
    if request.method != "POST":
        return None
    path = request.url.path.rstrip("/")
    return next((api.adapter for api in GUARDED_APIS.values() if path.endswith(api.path_suffix)), None)


def strip_run_header(request: httpx2.Request) -> tuple[httpx2.Request, str]:
    """The request without the guard's own header, and what that said."""
    run = request.headers.get(RUN_HEADER)
    if run is None:
        return request, ""
    headers = httpx2.Headers([pair for pair in request.headers.raw if pair[0].lower() != RUN_HEADER.encode()])
    made = httpx2.Request(
        request.method, request.url, headers=headers, stream=request.stream, extensions=request.extensions
    )
    return made, run


def replace_content(request: httpx2.Request, content: bytes | None) -> httpx2.Request:
    """The request with another body; itself where that is None."""
    if content is None:
        return request
    headers = httpx2.Headers([pair for pair in request.headers.raw if pair[0].lower() != b"content-length"])
    return httpx2.Request(
        request.method, request.url, headers=headers, content=content, extensions=request.extensions
    )


def parse_object(content: bytes) -> dict[str, Any] | None:
    """A body as a JSON object; None if it is none."""
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def is_event_stream(response: httpx2.Response) -> bool:
    """Whether the body is an answer as a stream of events."""
    kind = response.headers.get("content-type", "").lower()
    return response.status_code == 200 and kind.startswith("text/event-stream")


def is_passed_through(response: httpx2.Response) -> bool:
    """Whether the body is not to be read as a whole."""
    return response.status_code != 200 or is_event_stream(response)


def read_body(response: httpx2.Response) -> bytes:
    """The body as it came, compressed or not; also of a response that the inner transport has read."""
    stream = response.stream
    assert isinstance(stream, httpx2.SyncByteStream)
    try:
        return b"".join(stream)
    finally:
        response.close()


async def aread_body(response: httpx2.Response) -> bytes:
    """As `read`."""
    stream = response.stream
    assert isinstance(stream, httpx2.AsyncByteStream)
    try:
        return b"".join([part async for part in stream])
    finally:
        await response.aclose()


def restore_body(response: httpx2.Response, content: bytes) -> httpx2.Response:
    """The response with its body, which was read."""
    return httpx2.Response(
        response.status_code, headers=response.headers, content=content, extensions=response.extensions
    )


@dataclass(frozen=True, slots=True)
class CandidateHttpRequest:
    """A request of another candidate; its answer is read whole, whatever it is."""

    request: httpx2.Request


def build_candidate_request(request: httpx2.Request) -> CandidateRequest:
    """How candidates are asked for where ``request`` asked for the turn."""
    return CandidateRequest(
        build_request=lambda body: CandidateHttpRequest(replace_content(request, body)),
        parse_response=_parse_candidate_response,
    )


def _parse_candidate_response(result: tuple[httpx2.Response, bytes]) -> dict[str, Any]:
    response, raw = result
    payload = parse_object(restore_body(response, raw).content) if response.status_code == 200 else None
    if payload is None:
        raise RecoveryError(f"a candidate was answered with status {response.status_code} and no object")
    return payload


def replace_payload(response: httpx2.Response, payload: Mapping[str, Any]) -> httpx2.Response:
    """The response with another object as its body."""
    gone = (b"content-length", b"content-encoding", b"transfer-encoding")
    headers = [pair for pair in response.headers.raw if pair[0].lower() not in gone]
    content = json.dumps(payload, separators=(",", ":")).encode()
    return httpx2.Response(200, headers=headers, content=content, extensions=response.extensions)


def replace_stream(
    response: httpx2.Response, stream: httpx2.SyncByteStream | httpx2.AsyncByteStream
) -> httpx2.Response:
    """The response with another stream of plain bytes."""
    gone = (b"content-length", b"content-encoding")
    headers = [pair for pair in response.headers.raw if pair[0].lower() not in gone]
    return httpx2.Response(
        response.status_code, headers=headers, stream=stream, extensions=response.extensions
    )


class GuardedByteStream(httpx2.SyncByteStream):
    """A stream that lets its conversation go on when it is over, however it ends."""

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
        """Close what is read from."""
        getattr(self._chunks, "close", _do_nothing)()
        self._response.close()
        self._guarded_request.settle()


class AsyncGuardedByteStream(httpx2.AsyncByteStream):
    """As `GuardedStream`."""

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
        """Close what is read from."""
        close = getattr(self._chunks, "aclose", None)
        if close is not None:
            await close()
        await self._response.aclose()
        self._guarded_request.settle()


def _do_nothing() -> None:
    """For a flow that cannot be closed."""
