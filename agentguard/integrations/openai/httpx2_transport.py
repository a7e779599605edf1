"""Guarded transport for clients on httpx2: openai 3.x and anthropic 2.x.

::

    client = OpenAI(http_client=DefaultHttpxClient(transport=guard.transport()))
    client = AsyncOpenAI(http_client=DefaultAsyncHttpxClient(transport=guard.atransport()))

    client = Anthropic(http_client=anthropic.DefaultHttpxClient(transport=guard.transport()))

The client executes the tools and sends their results with the next request. Therefore:

- The guard assigns a request to a run by the history that it resends (`agentguard.intercept`).
- A rollback omits turns from every later request.
- The guard judges a response before the client receives its calls.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Generator
from typing import TYPE_CHECKING, Any, Literal

from agentguard import _sync_async
from agentguard.errors import ConfigError, MissingExtra
from agentguard.runtime.session import Session

try:
    import httpx2
except ImportError as error:
    raise MissingExtra("the guarded transport", "chat") from error

from agentguard.integrations.openai.http_messages import (
    AsyncGuardedByteStream,
    CandidateHttpRequest,
    GuardedByteStream,
    aread_body,
    build_candidate_request,
    is_event_stream,
    is_passed_through,
    parse_object,
    read_body,
    replace_content,
    replace_payload,
    replace_stream,
    restore_body,
    select_adapter,
    strip_run_header,
)
from agentguard.intercept.guarded_apis import build_stream_buffer
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.interceptor import Interceptor
from agentguard.intercept.stream_buffer import EventStreamBuffer

if TYPE_CHECKING:
    from agentguard.guard import Guard

RequestGenerator = Generator[httpx2.Request, tuple[httpx2.Response, bytes | None], httpx2.Response]


class _TransportBase:
    """Base class of the two transports, without input and output."""

    def __init__(
        self,
        guard: Guard,
        *,
        name: str = "assistant",
        on_run: Callable[[Session], None] | None = None,
        max_conversations: int = 1024,
        buffer: Literal["tools", "all"] = "tools",
    ) -> None:
        if buffer not in ("tools", "all"):
            raise ConfigError(f"transport: buffer is {buffer!r}, expected tools or all")
        if max_conversations < 1:
            raise ConfigError(f"transport: max_conversations is {max_conversations}, expected 1 or more")
        self.interceptor = Interceptor(guard, agent=name, on_run=on_run, max_conversations=max_conversations)
        self._buffer_all = buffer == "all"

    def open_request(self, request: httpx2.Request, run_name: str) -> GuardedRequest | httpx2.Response | None:
        """Open a request whose body has been read.

        Returns:
            None if the request is not guarded; a response if the guard failed and the policy fails closed.
        """
        adapter = select_adapter(request)
        if adapter is None or run_name == "off":
            return None
        body = parse_object(request.content)
        if body is None:
            return None
        try:
            if not adapter.can_guard(body):
                return None
            is_retry = request.headers.get("x-stainless-retry-count", "0") != "0"
            return self.interceptor.open_request(adapter, body, run_name=run_name, is_retry=is_retry)
        except Exception as error:  # a failure of the guard must not fail the request
            return self._handle_guard_error(error)

    def handle_exchange(self, guarded_request: GuardedRequest, request: httpx2.Request) -> RequestGenerator:
        """Yield requests and receive each response with its body; return the client's response.

        The body is None for a stream: the method returns the response, and the guard judges it at its end.
        """
        while guarded_request.final_text is None:
            try:
                request = replace_content(request, guarded_request.encoded_body)
            except Exception as error:  # as in open_request
                guarded_request.discard()
                if (refusal := self._handle_guard_error(error)) is not None:
                    return refusal
            response, raw = yield request
            if raw is None:
                return response
            complete = restore_body(response, raw)
            payload = parse_object(complete.content)
            if payload is None or guarded_request.is_dropped:
                return complete
            try:
                decision = yield from guarded_request.judge_answer(payload, build_candidate_request(request))
            except Exception as error:  # as in open_request
                guarded_request.discard()
                return self._handle_guard_error(error) or complete
            if decision == "deliver":
                return (
                    complete
                    if guarded_request.replacement_payload is None
                    else replace_payload(complete, guarded_request.replacement_payload)
                )
            if decision == "final":
                return self.build_final_response(guarded_request, payload)
        return self.build_final_response(guarded_request)

    def build_final_response(
        self, guarded_request: GuardedRequest, payload: dict[str, Any] | None = None
    ) -> httpx2.Response:
        """Build the guard's final response, as a stream if the client requested one."""
        adapter, body = guarded_request.adapter, guarded_request.request_body
        final_payload = adapter.build_final_answer(body, payload, guarded_request.final_text or "")
        guarded_request.settle(
            adapter.extract_answer_items(final_payload) or (), response_id=final_payload["id"]
        )
        if body.get("stream"):
            content = adapter.encode_stream(final_payload, include_usage=False)
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=content)
        return httpx2.Response(200, json=final_payload)

    def build_stream_buffer(
        self, guarded_request: GuardedRequest, request: httpx2.Request
    ) -> EventStreamBuffer:
        """Build the buffer that holds back the events of a stream."""
        return build_stream_buffer(
            guarded_request, build_candidate_request(request), buffer_all=self._buffer_all
        )

    def finish_stream(
        self, guarded_request: GuardedRequest, stream_buffer: EventStreamBuffer
    ) -> _sync_async.SharedBody[tuple[bytes, bool]]:
        """Finish one response in a stream; return the client's bytes, and whether to repeat the request.

        Yield the requests of further candidates.

        Raises:
            httpx2.RemoteProtocolError: the response is incomplete; the transport drops the buffered events.
        """
        try:
            if guarded_request.is_dropped:
                return stream_buffer.flush(), False
            data, decision = yield from stream_buffer.finish()
            return data, decision == "again"
        except EOFError as error:
            raise httpx2.RemoteProtocolError(str(error)) from None
        except Exception as error:  # as in open_request
            guarded_request.discard()
            refusal = self._handle_guard_error(error)
            return (
                stream_buffer.flush()
                if refusal is None
                else stream_buffer.build_error_event("the guard failed")
            ), False

    def _handle_guard_error(self, error: Exception) -> httpx2.Response | None:
        self.interceptor.record_failure(error)
        if not self.interceptor.fails_closed:
            return None
        error_body = {
            "message": "the guard failed on this request",
            "type": "agentguard_error",
            "code": "refused",
        }
        return httpx2.Response(403, json={"error": error_body}, headers={"x-should-retry": "false"})


class GuardTransport(_TransportBase, httpx2.BaseTransport):
    """Transport for ``DefaultHttpxClient``; created by `Guard.transport`.

    Args:
        guard: the guard whose rules apply.
        inner: transport that sends the requests; by default httpx2's own.
        name: name of the agent in the trajectory.
        on_run: called with the session of each run when the run begins, for example to inspect it later.
        max_conversations: maximum number of conversations in memory.
        buffer: ``"tools"`` forwards streamed text at once; ``"all"`` buffers a response until its verdict.

    Raises:
        ConfigError: an option is out of range.
    """

    def __init__(self, guard: Guard, *, inner: httpx2.BaseTransport | None = None, **options: Any) -> None:
        super().__init__(guard, **options)
        self._inner = inner if inner is not None else httpx2.HTTPTransport()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; guard it if it calls a supported API."""
        request, run = strip_run_header(request)
        if select_adapter(request) is not None:
            request.read()
        exchange = self.open_request(request, run)
        if not isinstance(exchange, GuardedRequest):
            return exchange or self._inner.handle_request(request)
        is_streaming = False
        try:
            response = _sync_async.run_sync(self.handle_exchange(exchange, request), self._send)
            is_streaming = is_event_stream(response) and exchange.final_text is None
            if not is_streaming:
                return response
            return replace_stream(
                response,
                GuardedByteStream(self._stream_chunks(exchange, request, response), exchange, response),
            )
        finally:
            if not is_streaming:
                exchange.settle()

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()

    def _send(self, request: httpx2.Request | CandidateHttpRequest) -> tuple[httpx2.Response, bytes | None]:
        if isinstance(request, CandidateHttpRequest):
            response = self._inner.handle_request(request.request)
            return response, read_body(response)
        response = self._inner.handle_request(request)
        return response, None if is_passed_through(response) else read_body(response)

    def _stream_chunks(
        self, guarded_request: GuardedRequest, request: httpx2.Request, response: httpx2.Response
    ) -> Generator[bytes, None, None]:
        stream_buffer, again = self.build_stream_buffer(guarded_request, request), True
        while again:
            for data in response.iter_bytes():
                if output := stream_buffer.feed(data):
                    yield output
            response.close()
            output, again = _sync_async.run_sync(
                self.finish_stream(guarded_request, stream_buffer), self._send
            )
            if output:
                yield output
            if again:
                response = self._inner.handle_request(replace_content(request, guarded_request.encoded_body))
                if not is_event_stream(response):
                    response.close()
                    yield stream_buffer.build_error_event(
                        f"the repeated request returned status {response.status_code}"
                    )
                    return


class AsyncGuardTransport(_TransportBase, httpx2.AsyncBaseTransport):
    """Transport for ``DefaultAsyncHttpxClient``, like `GuardTransport`; created by `Guard.atransport`."""

    def __init__(
        self, guard: Guard, *, inner: httpx2.AsyncBaseTransport | None = None, **options: Any
    ) -> None:
        super().__init__(guard, **options)
        self._inner = inner if inner is not None else httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; guard it if it calls a supported API."""
        request, run = strip_run_header(request)
        if select_adapter(request) is not None:
            await request.aread()
        exchange = self.open_request(request, run)
        if not isinstance(exchange, GuardedRequest):
            return exchange or await self._inner.handle_async_request(request)
        is_streaming = False
        try:
            response = await _sync_async.run_async(self.handle_exchange(exchange, request), self._send)
            is_streaming = is_event_stream(response) and exchange.final_text is None
            if not is_streaming:
                return response
            chunks = self._stream_chunks(exchange, request, response)
            return replace_stream(response, AsyncGuardedByteStream(chunks, exchange, response))
        finally:
            if not is_streaming:
                exchange.settle()

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()

    async def _send(
        self, request: httpx2.Request | CandidateHttpRequest
    ) -> tuple[httpx2.Response, bytes | None]:
        if isinstance(request, CandidateHttpRequest):
            response = await self._inner.handle_async_request(request.request)
            return response, await aread_body(response)
        response = await self._inner.handle_async_request(request)
        return response, None if is_passed_through(response) else await aread_body(response)

    async def _stream_chunks(
        self, guarded_request: GuardedRequest, request: httpx2.Request, response: httpx2.Response
    ) -> AsyncGenerator[bytes, None]:
        stream_buffer, again = self.build_stream_buffer(guarded_request, request), True
        while again:
            async for data in response.aiter_bytes():
                if output := stream_buffer.feed(data):
                    yield output
            await response.aclose()
            output, again = await _sync_async.run_async(
                self.finish_stream(guarded_request, stream_buffer), self._send
            )
            if output:
                yield output
            if again:
                response = await self._inner.handle_async_request(
                    replace_content(request, guarded_request.encoded_body)
                )
                if not is_event_stream(response):
                    await response.aclose()
                    yield stream_buffer.build_error_event(
                        f"the repeated request returned status {response.status_code}"
                    )
                    return
