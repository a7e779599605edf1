"""Interfaces between the proxy and its extensions: the inline guard and the request observers.

For each request of a model API, the proxy makes these calls in this order. Other requests pass through::

    intercepted = interceptor.intercept(request)    None if the request is not guarded; this is fast
    intercepted.local_response                      response of the guard; the proxy sends nothing upstream
    intercepted.body                                body to send upstream; None for the client's own body
    response = await intercepted.judge(response, call_model)     a whole response: the client's response
    buffer = intercepted.create_stream_buffer()     a stream: takes events, returns released bytes
    intercepted.settle()                            once, also after an error
    observer.record(completed)                      at the end of every request; never waits or raises
"""

from __future__ import annotations

from asyncio import Future
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol

from agentguard.backends.base import Headers, Response, StreamingResponse
from agentguard.resilience.base import RequestPriority

ApiName = str
"""``chat``, ``completions``, ``embeddings``, ``responses`` or ``messages``; empty for other requests."""


@dataclass(slots=True, kw_only=True)
class ProxyRequest:
    """Complete request of a client. Treat it as immutable.

    This class and `CompletedRequest` are not frozen: the proxy creates them for each request, and the
    creation of a frozen dataclass takes three times as long.

    Attributes:
        api: model API of the request.
        method: HTTP method.
        target: path and query as the client sent them.
        headers: names in lower case, without the client's key.
        body: body as the client sent it.
        stream: True if the client requests a stream.
        model: model that the request names.
        tenant: tenant of the API key; empty if no keys are configured.
        run_id: run that the client names; empty if it names none. ``off`` leaves the request unguarded.
        request_id: ID of this request in logs, headers and spans.
        started_at: clock time at which the request head arrived, in seconds.
        idempotent: True if repeating the request is harmless.
        priority: priority under load shedding.
        session_id: session for policies that route a session to one replica.
        prefix_digest: digest of the prompt's prefix; empty unless the policy needs it.
        quorum_size: number of replicas that vote.
        pinned_replica: replica with the stored response that the request continues.
    """

    api: ApiName
    method: str
    target: str
    headers: Headers
    body: bytes
    stream: bool
    model: str
    tenant: str
    run_id: str
    request_id: str
    started_at: float
    idempotent: bool = True
    priority: RequestPriority = RequestPriority.CRITICAL
    session_id: str = ""
    prefix_digest: bytes = b""
    quorum_size: int = 1
    pinned_replica: str = ""


@dataclass(slots=True, kw_only=True)
class GuardOutcome:
    """Actions of the guard in one request. Treat it as immutable.

    Attributes:
        run_id: ID of the run.
        step: number of steps in the run.
        findings: code and first step of the run's last findings, in order; each code once.
        recoveries: strategy and target step of the recoveries in this request, in order.
        stopped: True if the guard stopped the run.
        stream_mode: ``buffer_tool_calls`` or ``buffer_all``; empty if the client requested no stream.
        is_unjoined: True if the request continues a run that the guard does not know.
    """

    run_id: str
    step: int
    findings: tuple[tuple[str, int], ...] = ()
    recoveries: tuple[tuple[str, int], ...] = ()
    stopped: bool = False
    stream_mode: str = ""
    is_unjoined: bool = False


ModelCaller = Callable[[bytes, bool], Awaitable[Response | StreamingResponse]]
"""Function that sends another request to the model. Its arguments: the body, and True for a stream."""


class StreamBuffer(Protocol):
    """Buffer for the part of a stream that waits for the verdict.

    A request has one buffer, also if the guard calls the model again.
    """

    def feed(self, data: bytes) -> bytes:
        """Add whole events of the current response; return the bytes to send to the client now."""
        ...

    async def finish(self, call_model: ModelCaller) -> tuple[bytes, bool]:
        """Judge the current response after its end.

        Returns:
            The bytes to send to the client now, and True if the model must be called again. The caller
            then sends `InterceptedRequest.body` and feeds the new response.

        Raises:
            EOFError: the response is incomplete; the buffered bytes must not reach the client.
        """
        ...

    def format_error_event(self, message: str) -> bytes:
        """Return the error event, typed for the API, that ends the stream if another model call failed."""
        ...


class InterceptedRequest(Protocol):
    """One request of a guarded run."""

    @property
    def local_response(self) -> Response | None:
        """Return the guard's own response; if it is not None, the proxy sends nothing upstream."""
        ...

    @property
    def body(self) -> bytes | None:
        """Return the body to send upstream; None for the client's own body."""
        ...

    @property
    def outcome(self) -> GuardOutcome:
        """Return the actions of the guard so far. Safe to call at any time."""
        ...

    async def judge(self, response: Response, call_model: ModelCaller) -> Response:
        """Return the response for the client; call the model again if the guard requires it."""
        ...

    def create_stream_buffer(self) -> StreamBuffer:
        """Return the buffer for a streamed response."""
        ...

    def settle(self) -> None:
        """End this request, so that the run accepts its next one. Never raises; may be called twice."""
        ...


@dataclass(slots=True)
class GuardCounters:
    """Numbers of requests that the guard has seen.

    Attributes:
        guarded: requests that the guard judged.
        too_long: requests that it skipped because of their long bodies.
        refused: requests that it refused after an internal error.
        unjoined: requests that continue a run which the guard does not know; each begins another run.
        unsupported: requests with tools of a form that the guard cannot judge.
    """

    guarded: int = 0
    too_long: int = 0
    refused: int = 0
    unjoined: int = 0
    unsupported: int = 0


class SessionSummaries(Protocol):
    """Summaries of the guarded runs of one worker, without their texts."""

    def __len__(self) -> int:
        """Return the number of runs."""
        ...

    def list_summaries(self, tenant: str | None = None, *, limit: int = 100) -> list[dict[str, Any]]:
        """Return runs of a tenant, or of all tenants for None; the most recently used first."""
        ...

    def list_recent(self, *, tenant_limit: int, limit: int) -> list[dict[str, Any]]:
        """Return the most recently used runs: at most ``tenant_limit`` of each tenant."""
        ...

    def describe(self, id: str, tenant: str | None = None) -> dict[str, Any] | None:
        """Return a run with its steps, findings and recoveries; None if the worker does not have it."""
        ...


class RequestInterceptor(Protocol):
    """Inline guard of the proxy; without one, the proxy is a pure gateway."""

    @property
    def counts(self) -> GuardCounters:
        """Return the numbers of requests."""
        ...

    @property
    def sessions(self) -> SessionSummaries:
        """Return the guarded runs."""
        ...

    def intercept(
        self, request: ProxyRequest
    ) -> InterceptedRequest | Response | Future[InterceptedRequest | Response | None] | None:
        """Open a guarded request. Never raises.

        Returns:
            None if the request is not guarded, or a response that refuses it. The result is a future if
            the body is long, or if another process may have begun the run.
        """
        ...


@dataclass(slots=True, kw_only=True)
class CompletedRequest:
    """Request with its result, for the request observers. Treat it as immutable.

    Attributes:
        request: the request.
        sent_body: body that the proxy sent upstream; None if it was the client's own.
        status: HTTP status of the response; 499 if the client disconnected before the end.
        response_body: bytes that the client received, truncated at the capture limit; events of a stream.
        is_complete: True if the client received the whole response.
        replica: replica that responded; empty without a response.
        error_code: code of the error; empty without an error.
        guard_outcome: actions of the guard; None if the request was not guarded.
        notes: events on the upstream side: attempts, hedges, failover, votes.
        time_to_first_byte_s: seconds from the request head to the first byte of the response; None
            without a response.
        duration_s: seconds from the request head to the end of the request.
    """

    request: ProxyRequest
    sent_body: bytes | None
    status: int
    response_body: bytes
    is_complete: bool
    replica: str
    error_code: str
    guard_outcome: GuardOutcome | None
    notes: tuple[tuple[str, str], ...]
    time_to_first_byte_s: float | None
    duration_s: float


class RequestObserver(Protocol):
    """Observer of all completed requests, in order: capture, metrics, spans or logs."""

    def record(self, completed: CompletedRequest) -> None:
        """Process a completed request. Never waits or raises; lost records are counted."""
        ...
