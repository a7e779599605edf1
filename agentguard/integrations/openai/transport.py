"""OpenAI's client (openai 3.x): the guard as the transport of its HTTP client.

::

    client = OpenAI(http_client=DefaultHttpxClient(transport=guard.transport()))
    client = AsyncOpenAI(http_client=DefaultAsyncHttpxClient(transport=guard.atransport()))

Anthropic's client (anthropic 2.x) takes the same transports::

    client = Anthropic(http_client=anthropic.DefaultHttpxClient(transport=guard.transport()))

A transport sees requests and answers, and no tools: what a tool returned comes with the next request. So
requests are joined to runs by what they resend (`agentguard.intercept`), turns are taken back by
leaving them out of every later request, and an answer is judged before the client sees its calls.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator
from typing import TYPE_CHECKING, Any, Literal

from agentguard import _sync_async
from agentguard.errors import ConfigError, MissingExtra
from agentguard.runtime.session import Session

try:
    import httpx2
except ImportError as error:
    raise MissingExtra("the guarded transport", "chat") from error

from agentguard.integrations.openai.http import (
    AsyncGuardedStream,
    CandidateResponse,
    GuardedByteStream,
    aread,
    dialect_of,
    flows,
    parsed_object,
    passes,
    read,
    read_again,
    rewritten,
    saying,
    streamed,
    unmarked,
    wire_of,
)
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.interceptor import Interceptor
from agentguard.intercept.registry import hold_of
from agentguard.intercept.stream_buffer import HeldStream

if TYPE_CHECKING:
    from agentguard.guard import Guard

Asked = Generator[httpx2.Request, tuple[httpx2.Response, bytes | None], httpx2.Response]


class _Core:
    """What the two transports share: everything but waiting."""

    def __init__(
        self,
        guard: Guard,
        *,
        name: str = "assistant",
        on_run: Callable[[Session], None] | None = None,
        kept: int = 1024,
        hold: Literal["tools", "all"] = "tools",
    ) -> None:
        if hold not in ("tools", "all"):
            raise ConfigError(f"transport: hold is {hold!r}, expected tools or all")
        if kept < 1:
            raise ConfigError(f"transport: kept is {kept}, expected 1 or more")
        self.engine = Interceptor(guard, agent=name, on_run=on_run, kept=kept)
        self._everything = hold == "all"

    def opened(self, request: httpx2.Request, run: str) -> GuardedRequest | httpx2.Response | None:
        """Begin with a request that was read; None if it is not guarded, an answer if it is refused."""
        dialect = dialect_of(request)
        if dialect is None or run == "off":
            return None
        body = parsed_object(request.content)
        if body is None:
            return None
        try:
            if not dialect.guards(body):
                return None
            repeat = request.headers.get("x-stainless-retry-count", "0") != "0"
            return self.engine.open(dialect, body, run=run, repeat=repeat)
        except Exception as error:  # whatever the guard trips over, the request is not to blame
            return self._tripped(error)

    def asked(self, exchange: GuardedRequest, request: httpx2.Request) -> Asked:
        """Yield what is to be sent, take each answer and its bytes; return what the client gets.

        The bytes are None where the answer is a stream, which is then returned to be judged as it flows.
        """
        while exchange.final is None:
            try:
                request = rewritten(request, exchange.content)
            except Exception as error:  # as above
                exchange.drop()
                if (refused := self._tripped(error)) is not None:
                    return refused
            response, raw = yield request
            if raw is None:
                return response
            whole = read_again(response, raw)
            payload = parsed_object(whole.content)
            if payload is None or exchange.dropped:
                return whole
            try:
                decision = yield from exchange.answering(payload, wire_of(request))
            except Exception as error:  # as above
                exchange.drop()
                return self._tripped(error) or whole
            if decision == "deliver":
                return whole if exchange.taken is None else saying(whole, exchange.taken)
            if decision == "final":
                return self.ended(exchange, payload)
        return self.ended(exchange)

    def ended(self, exchange: GuardedRequest, payload: dict[str, Any] | None = None) -> httpx2.Response:
        """The guard's own answer, in the form that the client asked for."""
        dialect, body = exchange.dialect, exchange.request
        made = dialect.final(body, payload, exchange.final or "")
        exchange.settle(dialect.answer(made) or (), id=made["id"])
        if body.get("stream"):
            content = dialect.stream(made, usage=False)
            return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=content)
        return httpx2.Response(200, json=made)

    def hold(self, exchange: GuardedRequest, request: httpx2.Request) -> HeldStream:
        """What holds back the events of a stream."""
        return hold_of(exchange, wire_of(request), everything=self._everything)

    def judged(self, exchange: GuardedRequest, hold: HeldStream) -> _sync_async.Effects[tuple[bytes, bool]]:
        """The end of one answer in a stream: what the client gets, and whether the model is asked again.

        Yields what asks for further candidates.

        Raises:
            httpx2.RemoteProtocolError: the answer is not whole; nothing of what was held is let through.
        """
        try:
            if exchange.dropped:
                return hold.release(), False
            data, decision = yield from hold.finish()
            return data, decision == "again"
        except EOFError as error:
            raise httpx2.RemoteProtocolError(str(error)) from None
        except Exception as error:  # as above
            exchange.drop()
            refused = self._tripped(error)
            return (hold.release() if refused is None else hold.failed("the guard failed")), False

    def _tripped(self, error: Exception) -> httpx2.Response | None:
        self.engine.failed(error)
        if not self.engine.closed:
            return None
        said = {"message": "the guard failed on this request", "type": "agentguard_error", "code": "refused"}
        return httpx2.Response(403, json={"error": said}, headers={"x-should-retry": "false"})


class GuardTransport(_Core, httpx2.BaseTransport):
    """A transport for ``DefaultHttpxClient``; `Guard.transport` makes it.

    Args:
        guard: whose rules hold.
        inner: sends what is sent; one of httpx2's own if absent.
        name: of the agent, as the trajectory shows it.
        on_run: called with the session of each run when it begins, e.g. to keep it for looking at.
        kept: conversations that are remembered between their requests.
        hold: ``"tools"`` lets streamed text flow at once, ``"all"`` holds all of an answer until its verdict.

    Raises:
        ConfigError: an option is out of its range.
    """

    def __init__(self, guard: Guard, *, inner: httpx2.BaseTransport | None = None, **options: Any) -> None:
        super().__init__(guard, **options)
        self._inner = inner if inner is not None else httpx2.HTTPTransport()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, guarded if it is one of a run."""
        request, run = unmarked(request)
        if dialect_of(request) is not None:
            request.read()
        exchange = self.opened(request, run)
        if not isinstance(exchange, GuardedRequest):
            return exchange or self._inner.handle_request(request)
        flowing = False
        try:
            response = _sync_async.run_sync(self.asked(exchange, request), self._sent)
            flowing = flows(response) and exchange.final is None
            if not flowing:
                return response
            return streamed(
                response, GuardedByteStream(self._flow(exchange, request, response), exchange, response)
            )
        finally:
            if not flowing:
                exchange.settle()

    def close(self) -> None:
        """Close the inner transport."""
        self._inner.close()

    def _sent(self, request: httpx2.Request | CandidateResponse) -> tuple[httpx2.Response, bytes | None]:
        if isinstance(request, CandidateResponse):
            response = self._inner.handle_request(request.request)
            return response, read(response)
        response = self._inner.handle_request(request)
        return response, None if passes(response) else read(response)

    def _flow(
        self, exchange: GuardedRequest, request: httpx2.Request, response: httpx2.Response
    ) -> Iterator[bytes]:
        hold, again = self.hold(exchange, request), True
        while again:
            for data in response.iter_bytes():
                if shown := hold.feed(data):
                    yield shown
            response.close()
            shown, again = _sync_async.run_sync(self.judged(exchange, hold), self._sent)
            if shown:
                yield shown
            if again:
                response = self._inner.handle_request(rewritten(request, exchange.content))
                if not flows(response):
                    response.close()
                    yield hold.failed(f"asking again failed with status {response.status_code}")
                    return


class AsyncGuardTransport(_Core, httpx2.AsyncBaseTransport):
    """As `GuardTransport`, for ``DefaultAsyncHttpxClient``; `Guard.atransport` makes it."""

    def __init__(
        self, guard: Guard, *, inner: httpx2.AsyncBaseTransport | None = None, **options: Any
    ) -> None:
        super().__init__(guard, **options)
        self._inner = inner if inner is not None else httpx2.AsyncHTTPTransport()

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request, guarded if it is one of a run."""
        request, run = unmarked(request)
        if dialect_of(request) is not None:
            await request.aread()
        exchange = self.opened(request, run)
        if not isinstance(exchange, GuardedRequest):
            return exchange or await self._inner.handle_async_request(request)
        flowing = False
        try:
            response = await _sync_async.run_async(self.asked(exchange, request), self._sent)
            flowing = flows(response) and exchange.final is None
            if not flowing:
                return response
            flow = self._flow(exchange, request, response)
            return streamed(response, AsyncGuardedStream(flow, exchange, response))
        finally:
            if not flowing:
                exchange.settle()

    async def aclose(self) -> None:
        """Close the inner transport."""
        await self._inner.aclose()

    async def _sent(
        self, request: httpx2.Request | CandidateResponse
    ) -> tuple[httpx2.Response, bytes | None]:
        if isinstance(request, CandidateResponse):
            response = await self._inner.handle_async_request(request.request)
            return response, await aread(response)
        response = await self._inner.handle_async_request(request)
        return response, None if passes(response) else await aread(response)

    async def _flow(
        self, exchange: GuardedRequest, request: httpx2.Request, response: httpx2.Response
    ) -> AsyncIterator[bytes]:
        hold, again = self.hold(exchange, request), True
        while again:
            async for data in response.aiter_bytes():
                if shown := hold.feed(data):
                    yield shown
            await response.aclose()
            shown, again = await _sync_async.run_async(self.judged(exchange, hold), self._sent)
            if shown:
                yield shown
            if again:
                response = await self._inner.handle_async_request(rewritten(request, exchange.content))
                if not flows(response):
                    await response.aclose()
                    yield hold.failed(f"asking again failed with status {response.status_code}")
                    return


__all__ = ["AsyncGuardTransport", "GuardTransport"]
