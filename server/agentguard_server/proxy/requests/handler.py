"""One request from its head to its end: let in, read, guarded, sent on, handed back, recorded.

The order is that of `agentguard_server.proxy.hooks`. Whatever happens, the client gets a whole answer, or one
error in the shape of its API, or, if it has left, nothing; what was begun for it ends then at once.
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
from agentguard_server.proxy.auth.api_keys import ANYBODY, Caller
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
from agentguard_server.proxy.http.request_cycle import CONNECTION, RequestCycle
from agentguard_server.proxy.requests import model_list, upstream_request
from agentguard_server.proxy.requests.body import ClientDisconnected, buffered_body, read_body
from agentguard_server.proxy.requests.response_writer import ResponseAborted, ResponseWriter
from agentguard_server.proxy.routes import Route
from agentguard_server.proxy.state import AppState, Receive, Scope, Send


def notify_observers(
    gateway: AppState, asked: ProxyRequest, out: ResponseWriter, guarded: InterceptedRequest | None
) -> None:
    """Tell all recorders what became of a request."""
    recorded = CompletedRequest(
        asked=asked,
        sent=None if guarded is None else guarded.body,
        status=out.status,
        answer=out.kept,
        complete=out.complete,
        replica=out.replica,
        error=out.error,
        guarded=guarded is not None,
        notes=out.notes,
        first_s=None if out.first_at is None else out.first_at - asked.started,
        seconds=gateway.clock.now() - asked.started,
        did=() if guarded is None else guarded.headers,
    )
    for recorder in gateway.recorders:
        recorder.record(recorded)


logger = logging.getLogger("agentguard.proxy")

_NEVER: Final = Deadline.never()
_ENDING: Final = ProxyError(503, "shutting_down", "the proxy ends", retry_after_s=1, close=True)


class RequestHandler:
    """One request of a model API, or of what passes through.

    Args:
        gateway: what it works with.
        scope: of ASGI.
        send: of ASGI.
        route: what its path is.
        request_id: its name in headers, logs and spans.
    """

    __slots__ = (
        "_asked", "_body", "_caller", "_ending", "_gateway", "_guarded", "_id", "_line", "_on", "_ours",
        "_out", "_request", "_route", "_scope", "_started", "_task",
    )  # fmt: skip

    def __init__(self, gateway: AppState, scope: Scope, send: Send, *, route: Route, request_id: str) -> None:
        self._gateway, self._scope, self._route, self._id = gateway, scope, route, request_id
        self._started = gateway.clock.now()
        self._on, self._ours = split_request_headers(scope["headers"], auth=gateway.keys is None)
        self._caller: Caller = ANYBODY
        self._body = b""
        self._asked: ProxyRequest | None = None
        self._guarded: InterceptedRequest | None = None
        self._request: BackendRequest | None = None
        self._task: asyncio.Task[Any] | None = None
        self._ending = ""
        self._line: RequestCycle | None = scope.get(CONNECTION)
        self._out = ResponseWriter(gateway, send, request_id, route, line=self._line)

    async def run(self, receive: Receive) -> None:
        """Carry it out.

        Raises:
            Broken: the answer broke off, and the connection must be cut to say so; our own server's is.
            CancelledError: somebody other than the client or `end` cancelled it.
        """
        self._task = asyncio.current_task()
        self._gateway.live.add(self)
        entered = False
        try:
            self._caller = authorize(self._gateway, self._scope, self._route, self._ours)
            self._enter()
            entered = True
            await self._carry_out(receive)
        except ProxyError as refusal:
            if self._line is not None and self._line.body_pending():
                refusal.close = True
            await self._refuse(refusal)
        except ResilienceError as error:
            await self._failed(error)
        except ClientDisconnected:
            self._out.left()
        except asyncio.CancelledError:
            await self._cancelled()
        except Exception as error:
            logger.error("request %s failed in the proxy: %s", self._id, error_summary.summarize_error(error))
            await self._refuse(ProxyError(500, "internal_error", "the proxy failed; its log says more"))
        finally:
            self._gateway.live.discard(self)
            if entered:
                self._caller.leave()
            if self._guarded is not None:
                self._guarded.settle()
            if self._gateway.recorders:
                notify_observers(self._gateway, self._asking(), self._out, self._guarded)

    async def _refuse(self, refusal: ProxyError) -> None:
        try:
            await self._out.refuse(refusal)
        except ResponseAborted:
            if self._line is None:
                raise
            self._line.abort()

    def end(self, reason: str = "ending") -> None:
        """End it early: because the client has ``left``, or because the proxy is ``ending``."""
        if not self._ending and self._task is not None:
            self._ending = reason
            self._task.cancel()

    def _enter(self) -> None:
        gateway = self._gateway
        if self._route.kind == "none":
            raise ProxyError(404, "not_found", "there is nothing at this path")
        if gateway.draining:
            raise ProxyError(503, "shutting_down", "the proxy is about to end", retry_after_s=1, close=True)
        if len(gateway.live) > gateway.settings.limits.requests:
            raise ProxyError(503, "overloaded", "too many requests are under way", retry_after_s=1)
        after = self._caller.enter(self._started)
        if after is not None:
            raise ProxyError(
                429, "rate_limit_exceeded", "this key has used up its limit", retry_after_s=after
            )

    async def _carry_out(self, receive: Receive) -> None:
        gateway, scope, ours, line = self._gateway, self._scope, self._ours, self._line
        body = buffered_body(gateway, line, ours.get(b"content-length"))
        if body is None:
            body = await read_body(gateway, line, receive)
        self._body = body
        watch = None
        if line is None:  # from now on the client's leaving ends the request; other servers must be asked
            watch = asyncio.create_task(self._wait_for_end(receive))
        else:
            line.on_disconnect(self._lost)
        try:
            self._request = request = upstream_request.build_upstream_request(
                gateway, scope, self._route, self._on, ours, body
            )
            if gateway.guarding is not None or gateway.upstream is not None or self._route.kind == "models":
                found = await self._prepared(request)
                if found is None:
                    return None
                request = found
            answer = await gateway.pool.send(request, _NEVER)
            if type(answer) is not Response:
                return await self._stream_back(cast(StreamingResponse, answer))
            if self._route.api == "responses":
                gateway.holders.record(answer.body, answer.replica)
            if self._guarded is None:
                return await self._out.answer(answer)
            answer = await self._guarded.judge(answer, self._ask)
            return await self._out.answer(answer, self._guarded.headers)
        finally:
            if watch is not None:
                watch.cancel()

    def _lost(self) -> None:
        self.end("left")

    async def _wait_for_end(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self.end("left")

    async def _prepared(self, request: BackendRequest) -> BackendRequest | None:
        """The request as it is sent, once those who have a say were asked; None if it is answered already."""
        gateway = self._gateway
        if self._route.kind == "models":
            known = model_list.listed(gateway, self._scope["raw_path"])
            if known is not None:
                await self._out.answer(known)
                return None
        if gateway.guarding is not None and self._route.api:
            final = await self._open(gateway.guarding)
            guarded = self._guarded
            if final is not None:
                await self._out.answer(final, () if guarded is None else guarded.headers)
                return None
            if guarded is not None and (body := guarded.body) is not None:
                request = replace(request, body=body)
        if gateway.upstream is not None:
            request = self._request = replace(request, headers=self._traced(request.headers))
        return request

    async def _open(self, guarding: RequestInterceptor) -> Response | None:
        """Ask who guards; returns the answer where that is the guard's own."""
        found = guarding.open(self._asking())
        guarded = await found if isinstance(found, asyncio.Future) else found
        if guarded is None or isinstance(guarded, Response):
            return guarded
        self._guarded = guarded
        return guarded.final

    async def _stream_back(self, answer: StreamingResponse) -> None:
        out, guarded = self._out, self._guarded
        out.replica, out.notes = answer.replica, answer.notes
        try:
            await out.begin(answer.status, answer.headers, () if guarded is None else guarded.headers)
            if guarded is None:
                learns = self._route.api == "responses"
                async for chunk in answer:
                    if learns:
                        learns = not self._gateway.holders.record(chunk, answer.replica)
                    if not out.pushed(chunk):
                        await out.chunk(chunk)
                await out.end()
            else:
                await self._hold(answer, guarded.hold())
        finally:
            out.notes = answer.notes
            await answer.aclose()

    async def _hold(self, answer: StreamingResponse, hold: StreamBuffer) -> None:
        """Hand on what the guard lets through, of as many answers as it asks for."""
        out, learns = self._out, self._route.api == "responses"
        async for chunk in answer:
            if learns:
                learns = not self._gateway.holders.record(chunk, answer.replica)
            await out.chunk(hold.feed(chunk))
        while True:
            try:
                shown, again = await hold.finish(self._ask)
            except EOFError:
                raise BackendError("the stream ended before its last event", stage="committed") from None
            await out.chunk(shown)
            if not again:
                return await out.end()
            try:
                await self._feed(hold)
            except ResilienceError as error:
                return await out.fail(error.code, hold.failed(to_proxy_error(error).reason))

    async def _feed(self, hold: StreamBuffer) -> None:
        """Ask for what the guard wants now. Raises ResilienceError if no whole stream comes of it."""
        assert self._guarded is not None  # for mypy: it is what holds
        answer = await self._ask(self._guarded.body or self._body, True)
        if isinstance(answer, Response):
            raise BackendError("the endpoint gave no stream when it was asked again")
        try:
            async for chunk in answer:
                await self._out.chunk(hold.feed(chunk))
        finally:
            await answer.aclose()

    def _traced(self, headers: Headers) -> Headers:
        """Headers with those of the request's trace, in place of the client's."""
        assert self._gateway.upstream is not None  # for mypy: it was asked before
        more = self._gateway.upstream(self._asking())
        names = {name for name, _ in more}
        return (*(pair for pair in headers if pair[0] not in names), *more)

    async def _ask(self, body: bytes, stream: bool) -> Response | StreamingResponse:
        assert self._request is not None  # for mypy: nobody asks again before
        return await self._gateway.pool.send(
            replace(self._request, body=body, stream=stream, tried=[]), _NEVER
        )

    async def _failed(self, error: ResilienceError) -> None:
        """Hand on the endpoint's own error as it came, or tell of ours."""
        given = None if self._out.status else upstream_error_response(error)
        if given is None:
            return await self._refuse(to_proxy_error(error))
        self._out.error = error.code
        return await self._out.answer(given, () if self._guarded is None else self._guarded.headers)

    async def _cancelled(self) -> None:
        if self._task is None or not self._ending:
            raise asyncio.CancelledError
        self._task.uncancel()
        if self._ending == "left":
            self._out.left()
        elif not self._out.complete:
            await self._refuse(_ENDING)

    def _asking(self) -> ProxyRequest:
        if self._asked is None:
            request, ours, scope = self._request, self._ours, self._scope
            self._asked = ProxyRequest(
                api=self._route.api,
                method=scope["method"],
                target=upstream_request.request_target(scope).decode("latin-1"),
                headers=tuple(self._on),
                body=self._body,
                stream=request is not None and request.stream and request.api is not None,
                model="" if request is None else request.model,
                tenant=self._caller.tenant,
                run=ours.get(b"agentguard-run", b"").decode("latin-1"),
                id=self._id,
                started=self._started,
            )
        return self._asked
