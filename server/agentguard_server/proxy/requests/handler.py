"""Entry and handler of requests: admission, guard, upstream call, response and observers.

`agentguard_server.proxy.hooks` describes the order. The client gets a complete response or one error in the
format of its API. If the client disconnects, the handler cancels the upstream call at once.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from agentguard.backends.base import Headers, Response, StreamingResponse
from agentguard.errors import BackendError, ResilienceError
from agentguard.resilience.deadline import Deadline
from agentguard_server.proxy.auth.authorization import ANONYMOUS, Caller, authorize
from agentguard_server.proxy.errors import ProxyError, find_upstream_response, summarize_error, to_proxy_error
from agentguard_server.proxy.hooks import (
    GuardOutcome,
    InterceptedRequest,
    ProxyRequest,
    RequestInterceptor,
    StreamBuffer,
)
from agentguard_server.proxy.http.headers import split_request_headers
from agentguard_server.proxy.http.request_cycle import RequestCycle
from agentguard_server.proxy.requests import model_list, request_parser
from agentguard_server.proxy.requests.admin_request import serve_admin_request
from agentguard_server.proxy.requests.request_parser import ClientDisconnected, read_body, take_buffered_body
from agentguard_server.proxy.requests.response_writer import ResponseAborted, ResponseWriter
from agentguard_server.proxy.routes import MODEL_ROUTES, Route, match_route, normalize_target
from agentguard_server.proxy.state import AppState

if TYPE_CHECKING:
    from agentguard_server.proxy.requests.usage_meter import UsageMeter


logger = logging.getLogger("agentguard.proxy")

_NO_DEADLINE: Final = Deadline.never()


class ProxyApp:
    """Application of the server protocol: the entry of all requests.

    Args:
        app_state: the worker's state.
    """

    def __init__(self, app_state: AppState) -> None:
        self.app_state = app_state
        self._id_prefix, self._request_count = secrets.token_hex(4), 0

    def __call__(self, cycle: RequestCycle) -> Coroutine[Any, Any, None]:
        """Serve one request; its path decides between a model API and the administration."""
        self._request_count += 1
        request_id = f"{self._id_prefix}{self._request_count:06x}"
        route = MODEL_ROUTES.get(cycle.raw_path) if cycle.method == "POST" else None
        if route is None:
            cycle.raw_path, cycle.query_string = normalize_target(cycle.raw_path, cycle.query_string)
            route = match_route(cycle.method, cycle.raw_path)
        if route.kind in ("open", "admin"):
            return serve_admin_request(self.app_state, cycle, route=route, request_id=request_id)
        return RequestHandler(self.app_state, cycle, route=route, request_id=request_id).handle()


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
        "_request",
        "_route",
        "_started",
        "_task",
        "_upstream_headers",
        "_usage_meter",
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
        self._request: ProxyRequest | None = None
        self._intercepted: InterceptedRequest | None = None
        self._upstream_headers: Headers = ()
        self._task: asyncio.Task[Any] | None = None
        self._usage_meter: UsageMeter | None = None
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
        is_admitted = False
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
            is_admitted = True
            await self._process()
        except ProxyError as refusal:
            if self._cycle.linger_for_body():
                refusal.closes_connection = True
            await self._send_error(refusal)
        except ResilienceError as error:
            await self._send_upstream_error(error)
        except ClientDisconnected:
            self._writer.on_client_disconnect()
        except asyncio.CancelledError:
            await self._handle_cancellation()
        except Exception as error:
            logger.error("request %s failed in the proxy: %s", self._id, summarize_error(error))
            await self._send_error(ProxyError(500, "internal_error", "the proxy failed; see its log"))
        finally:
            self._app_state.in_flight.discard(self)
            if is_admitted:
                self._settle()
            if self._app_state.request_observers:
                request = self._request or self._build_request()
                completed = self._writer.build_completed_request(request, self._intercepted)
                for observer in self._app_state.request_observers:
                    observer.record(completed)

    def _settle(self) -> None:
        """End an accepted request: count its usage, and end it at the guard."""
        self._caller.release()
        if self._usage_meter is not None:
            self._caller.charge(self._app_state.clock.now(), self._usage_meter.usage)
        if self._intercepted is not None:
            self._intercepted.settle()

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
        app_state = self._app_state
        if self._route.kind == "none":
            raise ProxyError(404, "not_found", "the proxy has no resource at this path")
        if app_state.is_draining:
            raise _build_shutdown_error()
        if len(app_state.in_flight) > app_state.settings.limits.max_requests:
            raise ProxyError(503, "overloaded", "too many requests are in flight", retry_after_s=1)
        self._caller.acquire(self._started)

    async def _process(self) -> None:
        app_state, cycle = self._app_state, self._cycle
        if cycle.is_websocket and self._route.kind == "through":
            from agentguard_server.proxy.requests.websocket import relay_websocket

            cycle.on_disconnect(self._on_disconnect)
            return await relay_websocket(
                app_state, cycle, self._writer, self._forwarded_headers, is_metered=self._caller.is_metered
            )
        limits = app_state.settings.limits
        body = take_buffered_body(cycle, limits, self._proxy_headers.get(b"content-length"))
        if body is None:
            body = await read_body(cycle, limits, app_state.body_memory)
        self._body = body
        cycle.on_disconnect(self._on_disconnect)
        request = self._build_request()
        request_parser.parse_request(
            request,
            cycle,
            self._proxy_headers,
            is_model=self._route.kind == "model",
            response_affinity=app_state.response_affinity,
            needs_prefix_digest=app_state.needs_prefix_digest,
        )
        self._request = request
        self._upstream_headers = request.headers
        if self._caller.is_metered:
            from agentguard_server.proxy.requests.usage_meter import UsageMeter

            self._usage_meter = UsageMeter.for_request(
                request, app_state.settings.prices, has_budget=self._caller.has_budget
            )
        if (
            app_state.interceptor is not None
            or app_state.build_trace_headers is not None
            or self._route.kind == "models"
        ):
            if await self._prepare(request):
                return None
            body = self._body if self._intercepted is None else self._intercepted.body or self._body
        response = await self._call_model(body, request.stream)
        if type(response) is not Response:
            return await self._stream_response(cast(StreamingResponse, response))
        if self._route.api == "responses":
            app_state.response_affinity.record(response.body, response.replica)
        if self._intercepted is None:
            return await self._writer.send_response(response)
        response = await self._intercepted.judge(response, self._call_model)
        return await self._writer.send_response(response, self._intercepted.outcome)

    def _build_request(self) -> ProxyRequest:
        return request_parser.build_request(
            self._cycle,
            self._route,
            self._forwarded_headers,
            self._proxy_headers,
            self._body,
            caller=self._caller,
            request_id=self._id,
            started_at=self._started,
        )

    def _on_disconnect(self) -> None:
        self.cancel("left")

    async def _prepare(self, request: ProxyRequest) -> bool:
        """Apply guard and tracing to a request; return True if the response is already sent."""
        app_state = self._app_state
        if self._route.kind == "models":
            models = model_list.build_model_list_response(app_state.pool.options, self._cycle.raw_path)
            if models is not None:
                await self._writer.send_response(models)
                return True
        if app_state.interceptor is not None and request.api:
            response = await self._intercept(app_state.interceptor, request)
            if response is not None:
                await self._writer.send_response(response, self._get_outcome())
                return True
        if app_state.build_trace_headers is not None:
            trace_headers = app_state.build_trace_headers(request)
            names = {name for name, _ in trace_headers}
            others = (pair for pair in request.headers if pair[0] not in names)
            self._upstream_headers = (*others, *trace_headers)
        return False

    def _get_outcome(self) -> GuardOutcome | None:
        return None if self._intercepted is None else self._intercepted.outcome

    async def _intercept(self, interceptor: RequestInterceptor, request: ProxyRequest) -> Response | None:
        """Open the request at the inline guard; return the guard's own response, if it gives one."""
        result = interceptor.intercept(request)
        intercepted = await result if isinstance(result, asyncio.Future) else result
        if intercepted is None or isinstance(intercepted, Response):
            return intercepted
        self._intercepted = intercepted
        return intercepted.local_response

    async def _stream_response(self, response: StreamingResponse) -> None:
        writer, intercepted = self._writer, self._intercepted
        writer.replica, writer.notes = response.replica, response.notes
        try:
            await writer.start_response(response.status, response.headers, self._get_outcome())
            if intercepted is None:
                seeks_id = self._route.api == "responses"
                async for chunk in response:
                    if seeks_id:
                        seeks_id = not self._app_state.response_affinity.record(chunk, response.replica)
                    if not writer.try_send_chunk(chunk):
                        await writer.send_chunk(chunk)
                await writer.end_response()
            else:
                await self._stream_buffered(response, intercepted.create_stream_buffer())
        finally:
            writer.notes = response.notes
            await response.aclose()

    async def _stream_buffered(self, response: StreamingResponse, buffer: StreamBuffer) -> None:
        """Send the bytes that the guard releases; call the model again while the guard requires it."""
        writer, seeks_id = self._writer, self._route.api == "responses"
        async for chunk in response:
            if seeks_id:
                seeks_id = not self._app_state.response_affinity.record(chunk, response.replica)
            await writer.send_chunk(buffer.feed(chunk))
        while True:
            try:
                released, calls_again = await buffer.finish(self._call_model)
            except EOFError:
                raise BackendError("the stream ended before its last event", stage="committed") from None
            await writer.send_chunk(released)
            if not calls_again:
                return await writer.end_response()
            try:
                await self._resend_stream(buffer)
            except ResilienceError as error:
                return await writer.send_error_event(
                    error.code, buffer.format_error_event(to_proxy_error(error).reason)
                )

    async def _resend_stream(self, buffer: StreamBuffer) -> None:
        """Call the model again and feed its stream to the buffer. Raises ResilienceError on a failure."""
        assert self._intercepted is not None  # for mypy: only a guarded request has a buffer
        response = await self._call_model(self._intercepted.body or self._body, True)
        if isinstance(response, Response):
            raise BackendError("the endpoint sent no stream for the repeated request")
        try:
            async for chunk in response:
                await self._writer.send_chunk(buffer.feed(chunk))
        finally:
            await response.aclose()

    def _call_model(self, body: bytes, stream: bool) -> Coroutine[Any, Any, Response | StreamingResponse]:
        if self._usage_meter is None:
            return self._send_to_pool(body, stream)
        return self._usage_meter.send(self._send_to_pool, body, stream)

    def _send_to_pool(self, body: bytes, stream: bool) -> Coroutine[Any, Any, Response | StreamingResponse]:
        assert self._request is not None  # for mypy: it was parsed
        return self._app_state.pool.send(
            request_parser.to_backend_request(
                self._request, headers=self._upstream_headers, body=body, stream=stream
            ),
            _NO_DEADLINE,
        )

    async def _send_upstream_error(self, error: ResilienceError) -> None:
        """Send the endpoint's error response unchanged, or else an error of the proxy."""
        response = None if self._writer.status else find_upstream_response(error)
        if response is None:
            return await self._send_error(to_proxy_error(error))
        self._writer.error_code = error.code
        return await self._writer.send_response(response, self._get_outcome())

    async def _handle_cancellation(self) -> None:
        if self._task is None or not self._end_reason:
            raise asyncio.CancelledError
        self._task.uncancel()
        if self._end_reason == "left":
            self._writer.on_client_disconnect()
        elif not self._writer.is_complete:
            await self._send_error(_build_shutdown_error())


def _build_shutdown_error() -> ProxyError:
    return ProxyError(
        503, "shutting_down", "the proxy is shutting down", retry_after_s=1, closes_connection=True
    )
