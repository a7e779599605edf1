"""Handler of one proxy request: admission, guard, upstream call, response and observers.

`agentguard_server.proxy.hooks` describes the order. The client gets a complete response or one error in the
format of its API. If the client disconnects, the handler cancels the upstream call at once.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from typing import Any, Final, cast

from agentguard.backends.base import BackendRequest, Headers, Response, StreamingResponse
from agentguard.errors import BackendError, ResilienceError
from agentguard.resilience.deadline import Deadline
from agentguard_server.proxy import error_summary
from agentguard_server.proxy.auth.api_keys import ANONYMOUS, Caller
from agentguard_server.proxy.auth.authorization import authorize
from agentguard_server.proxy.errors import ProxyError, to_proxy_error, upstream_error_response
from agentguard_server.proxy.hooks import (
    CompletedRequest,
    InterceptedRequest,
    ProxyRequest,
    RequestInterceptor,
    StreamBuffer,
)
from agentguard_server.proxy.http.headers import split_request_headers
from agentguard_server.proxy.http.request_cycle import RequestCycle
from agentguard_server.proxy.requests import model_list, upstream_request
from agentguard_server.proxy.requests.body import ClientDisconnected, buffered_body, read_body
from agentguard_server.proxy.requests.response_writer import ResponseAborted, ResponseWriter
from agentguard_server.proxy.routes import Route
from agentguard_server.proxy.state import AppState


def notify_observers(
    app_state: AppState, request: ProxyRequest, writer: ResponseWriter, intercepted: InterceptedRequest | None
) -> None:
    """Report a completed request to all observers."""
    recorded = CompletedRequest(
        request=request,
        sent_body=None if intercepted is None else intercepted.body,
        status=writer.status,
        response_body=writer.captured_body,
        is_complete=writer.is_complete,
        replica=writer.replica,
        error_code=writer.error_code,
        guard_outcome=None if intercepted is None else intercepted.outcome,
        notes=writer.notes,
        time_to_first_byte_s=None
        if writer.first_byte_at is None
        else writer.first_byte_at - request.started_at,
        duration_s=app_state.clock.now() - request.started_at,
    )
    for recorder in app_state.request_observers:
        recorder.record(recorded)


logger = logging.getLogger("agentguard.proxy")

_NO_DEADLINE: Final = Deadline.never()
_SHUTTING_DOWN: Final = ProxyError(
    503, "shutting_down", "the proxy ends", retry_after_s=1, closes_connection=True
)


class RequestHandler:
    """Handler of one request, of a model API or passed through.

    Args:
        app_state: the worker's state.
        cycle: the request and its connection.
        route: API of its path.
        request_id: ID in headers, logs and spans.
    """

    __slots__ = (
        "_app_state",
        "_body",
        "_caller",
        "_cycle",
        "_end_reason",
        "_forwarded_headers",
        "_id",
        "_intercepted",
        "_proxy_headers",
        "_proxy_request",
        "_route",
        "_started",
        "_task",
        "_upstream_request",
        "_writer",
    )  # fmt: skip

    def __init__(self, app_state: AppState, cycle: RequestCycle, *, route: Route, request_id: str) -> None:
        self._app_state, self._cycle, self._route, self._id = app_state, cycle, route, request_id
        self._started = app_state.clock.now()
        self._forwarded_headers, self._proxy_headers = split_request_headers(
            cycle.headers, forward_api_key=app_state.keyring is None
        )
        self._caller: Caller = ANONYMOUS
        self._body = b""
        self._proxy_request: ProxyRequest | None = None
        self._intercepted: InterceptedRequest | None = None
        self._upstream_request: BackendRequest | None = None
        self._task: asyncio.Task[Any] | None = None
        self._end_reason = ""
        self._writer = ResponseWriter(
            cycle, route, request_id, clock=app_state.clock, max_captured_bytes=app_state.max_captured_bytes
        )

    async def handle(self) -> None:
        """Serve the request to its end.

        Raises:
            CancelledError: the task was cancelled, but neither by a disconnect nor by `cancel`.
        """
        self._task = asyncio.current_task()
        self._app_state.in_flight.add(self)
        entered = False
        try:
            self._caller = authorize(
                self._app_state.keyring,
                self._route,
                self._cycle.method,
                self._cycle.headers,
                self._proxy_headers,
                allow_unauthenticated=self._app_state.settings.listen.allow_unauthenticated,
            )
            self._admit()
            entered = True
            await self._process()
        except ProxyError as refusal:
            if self._cycle.body_pending():
                refusal.closes_connection = True
            await self._send_error(refusal)
        except ResilienceError as error:
            await self._send_upstream_error(error)
        except ClientDisconnected:
            self._writer.on_client_disconnect()
        except asyncio.CancelledError:
            await self._handle_cancellation()
        except Exception as error:
            logger.error("request %s failed in the proxy: %s", self._id, error_summary.summarize_error(error))
            await self._send_error(ProxyError(500, "internal_error", "the proxy failed; its log says more"))
        finally:
            self._app_state.in_flight.discard(self)
            if entered:
                self._caller.release()
            if self._intercepted is not None:
                self._intercepted.settle()
            if self._app_state.request_observers:
                notify_observers(
                    self._app_state, self._build_proxy_request(), self._writer, self._intercepted
                )

    async def _send_error(self, error: ProxyError) -> None:
        try:
            await self._writer.send_error(error)
        except ResponseAborted:
            self._cycle.abort()

    def cancel(self, reason: str = "ending") -> None:
        """Cancel the request. Reasons: ``left`` (the client disconnected), ``ending`` (the proxy stops)."""
        if not self._end_reason and self._task is not None:
            self._end_reason = reason
            self._task.cancel()

    def _admit(self) -> None:
        gateway = self._app_state
        if self._route.kind == "none":
            raise ProxyError(404, "not_found", "there is nothing at this path")
        if gateway.is_draining:
            raise ProxyError(
                503, "shutting_down", "the proxy is about to end", retry_after_s=1, closes_connection=True
            )
        if len(gateway.in_flight) > gateway.settings.limits.max_requests:
            raise ProxyError(503, "overloaded", "too many requests are under way", retry_after_s=1)
        after = self._caller.acquire(self._started)
        if after is not None:
            raise ProxyError(
                429, "rate_limit_exceeded", "this key has used up its limit", retry_after_s=after
            )

    async def _process(self) -> None:
        gateway, ours, cycle = self._app_state, self._proxy_headers, self._cycle
        limits = gateway.settings.limits
        body = buffered_body(cycle, limits, ours.get(b"content-length"))
        if body is None:
            body = await read_body(cycle, limits, gateway.body_memory)
        self._body = body
        cycle.on_disconnect(self._on_disconnect)
        self._upstream_request = request = upstream_request.build_upstream_request(
            gateway, cycle, self._route, self._forwarded_headers, ours, body
        )
        if (
            gateway.interceptor is not None
            or gateway.build_trace_headers is not None
            or self._route.kind == "models"
        ):
            found = await self._prepare(request)
            if found is None:
                return None
            request = found
        answer = await gateway.pool.send(request, _NO_DEADLINE)
        if type(answer) is not Response:
            return await self._stream_response(cast(StreamingResponse, answer))
        if self._route.api == "responses":
            gateway.response_affinity.record(answer.body, answer.replica)
        if self._intercepted is None:
            return await self._writer.send_response(answer)
        answer = await self._intercepted.judge(answer, self._call_model)
        return await self._writer.send_response(answer, self._intercepted.outcome)

    def _on_disconnect(self) -> None:
        self.cancel("left")

    async def _prepare(self, request: BackendRequest) -> BackendRequest | None:
        """Apply guard and tracing to an upstream request; return None if the response is already sent."""
        gateway = self._app_state
        if self._route.kind == "models":
            known = model_list.build_model_list_response(gateway.pool.options, self._cycle.raw_path)
            if known is not None:
                await self._writer.send_response(known)
                return None
        if gateway.interceptor is not None and self._route.api:
            final = await self._intercept(gateway.interceptor)
            guarded = self._intercepted
            if final is not None:
                await self._writer.send_response(final, None if guarded is None else guarded.outcome)
                return None
            if guarded is not None and (body := guarded.body) is not None:
                request = replace(request, body=body)
        if gateway.build_trace_headers is not None:
            request = self._upstream_request = replace(
                request, headers=self._add_trace_headers(request.headers)
            )
        return request

    async def _intercept(self, interceptor: RequestInterceptor) -> Response | None:
        """Open the request at the inline guard; return the guard's own response, if it gives one."""
        found = interceptor.intercept(self._build_proxy_request())
        guarded = await found if isinstance(found, asyncio.Future) else found
        if guarded is None or isinstance(guarded, Response):
            return guarded
        self._intercepted = guarded
        return guarded.local_response

    async def _stream_response(self, response: StreamingResponse) -> None:
        out, guarded = self._writer, self._intercepted
        out.replica, out.notes = response.replica, response.notes
        try:
            await out.start_response(
                response.status, response.headers, None if guarded is None else guarded.outcome
            )
            if guarded is None:
                learns = self._route.api == "responses"
                async for chunk in response:
                    if learns:
                        learns = not self._app_state.response_affinity.record(chunk, response.replica)
                    if not out.try_send_chunk(chunk):
                        await out.send_chunk(chunk)
                await out.end_response()
            else:
                await self._stream_buffered(response, guarded.create_stream_buffer())
        finally:
            out.notes = response.notes
            await response.aclose()

    async def _stream_buffered(self, response: StreamingResponse, buffer: StreamBuffer) -> None:
        """Send the bytes that the guard releases; call the model again while the guard requires it."""
        out, learns = self._writer, self._route.api == "responses"
        async for chunk in response:
            if learns:
                learns = not self._app_state.response_affinity.record(chunk, response.replica)
            await out.send_chunk(buffer.feed(chunk))
        while True:
            try:
                shown, again = await buffer.finish(self._call_model)
            except EOFError:
                raise BackendError("the stream ended before its last event", stage="committed") from None
            await out.send_chunk(shown)
            if not again:
                return await out.end_response()
            try:
                await self._resend_stream(buffer)
            except ResilienceError as error:
                return await out.send_error_event(
                    error.code, buffer.format_error_event(to_proxy_error(error).reason)
                )

    async def _resend_stream(self, buffer: StreamBuffer) -> None:
        """Call the model again and feed its stream to the buffer. Raises ResilienceError on a failure."""
        assert self._intercepted is not None  # for mypy: only a guarded request has a buffer
        answer = await self._call_model(self._intercepted.body or self._body, True)
        if isinstance(answer, Response):
            raise BackendError("the endpoint gave no stream when it was asked again")
        try:
            async for chunk in answer:
                await self._writer.send_chunk(buffer.feed(chunk))
        finally:
            await answer.aclose()

    def _add_trace_headers(self, headers: Headers) -> Headers:
        """Replace the client's trace headers with those of the proxy's span."""
        assert self._app_state.build_trace_headers is not None  # for mypy: `_prepare` checks it
        more = self._app_state.build_trace_headers(self._build_proxy_request())
        names = {name for name, _ in more}
        return (*(pair for pair in headers if pair[0] not in names), *more)

    async def _call_model(self, body: bytes, stream: bool) -> Response | StreamingResponse:
        assert self._upstream_request is not None  # for mypy: the first call sets it
        return await self._app_state.pool.send(
            replace(self._upstream_request, body=body, stream=stream, tried_replicas=[]), _NO_DEADLINE
        )

    async def _send_upstream_error(self, error: ResilienceError) -> None:
        """Send the endpoint's error response unchanged, or else an error of the proxy."""
        given = None if self._writer.status else upstream_error_response(error)
        if given is None:
            return await self._send_error(to_proxy_error(error))
        self._writer.error_code = error.code
        return await self._writer.send_response(
            given, None if self._intercepted is None else self._intercepted.outcome
        )

    async def _handle_cancellation(self) -> None:
        if self._task is None or not self._end_reason:
            raise asyncio.CancelledError
        self._task.uncancel()
        if self._end_reason == "left":
            self._writer.on_client_disconnect()
        elif not self._writer.is_complete:
            await self._send_error(_SHUTTING_DOWN)

    def _build_proxy_request(self) -> ProxyRequest:
        if self._proxy_request is None:
            request, ours, cycle = self._upstream_request, self._proxy_headers, self._cycle
            self._proxy_request = ProxyRequest(
                api=self._route.api,
                method=cycle.method,
                target=upstream_request.request_target(cycle).decode("latin-1"),
                headers=tuple(self._forwarded_headers),
                body=self._body,
                stream=request is not None and request.stream and request.api is not None,
                model="" if request is None else request.model,
                tenant=self._caller.tenant,
                run_id=ours.get(b"agentguard-run", b"").decode("latin-1"),
                request_id=self._id,
                started_at=self._started,
            )
        return self._proxy_request
