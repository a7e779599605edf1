"""One request of a guarded run: the engine's exchange, with the model asked over asyncio."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from agentguard import _sync_async
from agentguard.backends.base import Headers, Response, StreamingResponse
from agentguard.errors import BackendError, RecoveryError, ResilienceError
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.interceptor import Interceptor
from agentguard.intercept.registry import hold_of
from agentguard.intercept.stream_buffer import HeldStream
from agentguard.intercept.types import CandidateRequest
from agentguard_server.proxy.errors import ProxyError, error_body, error_headers
from agentguard_server.proxy.guard.eligibility import decoded
from agentguard_server.proxy.guard.session_registry import codes_of
from agentguard_server.proxy.hooks import Ask, ProxyRequest
from agentguard_server.proxy.routes import Shape

_JSON: Final = (b"content-type", b"application/json")
_EVENTS: Final = (b"content-type", b"text/event-stream; charset=utf-8")
_OF_BODY: Final = (b"content-length", b"content-encoding", b"transfer-encoding", b"etag", b"content-md5")
_MOST_CODES: Final = 16
_QUIET_S: Final = 10.0
"""Seconds without an event after which a client may begin to doubt; a tool call can be long."""
_COMMENT: Final = b": held\n\n"
FAILED: Final = ProxyError(
    403, "guard_failed", "the guard failed on this request, and the policy lets none by"
)


class InlineGuardedRequest:
    """As `agentguard_server.proxy.hooks.InterceptedRequest`.

    Args:
        engine: whose conversations the request belongs to.
        exchange: the request, as the engine opened it.
        asked: the request, as it came.
        everything: hold text, too.
        settled: called once, when the request is over.
    """

    __slots__ = (
        "_asked", "_body", "_engine", "_everything", "_exchange", "_final", "_settled",
    )  # fmt: skip

    def __init__(
        self,
        engine: Interceptor,
        exchange: GuardedRequest,
        asked: ProxyRequest,
        *,
        everything: bool,
        settled: Callable[[], None],
    ) -> None:
        self._engine, self._exchange, self._asked = engine, exchange, asked
        self._everything, self._settled = everything, settled
        self._final: Response | None = self._ended(None) if exchange.final is not None else None
        self._body = None if self._final is not None else exchange.content

    @property
    def final(self) -> Response | None:
        """The guard's own answer, where the run was stopped before the model was asked."""
        return self._final

    @property
    def body(self) -> bytes | None:
        """The body that is sent, or was sent last; None where it is the client's own."""
        return self._body

    @property
    def headers(self) -> Headers:
        """What was done, by name."""
        session = self._exchange.session
        told: list[tuple[bytes, bytes]] = [
            (b"agentguard-run", session.id.encode("latin-1", "replace")),
            (b"agentguard-step", str(len(session)).encode()),
        ]
        if session.findings:
            codes = codes_of(session.findings)[-_MOST_CODES:]
            told.append((b"agentguard-findings", _text(",".join(codes))))
        if done := self._exchange.recoveries:
            said = ",".join(f"{one.plan.strategy}@{one.plan.step}" for one in done)
            told.append((b"agentguard-recoveries", _text(said)))
        if session.stop_reason is not None:
            told.append((b"agentguard-stopped", b"1"))
        if self._asked.stream:
            told.append((b"agentguard-held", b"all" if self._everything else b"tools"))
        return tuple(told)

    async def judge(self, answer: Response, ask: Ask) -> Response:
        """As `Guarded.judge`.

        Raises:
            Refused, ResilienceError: the model could not be asked again.
        """
        exchange = self._exchange
        while not exchange.dropped and answer.status == 200:
            payload = decoded(answer.body)
            if payload is None:
                if _plain(answer):
                    return answer
                return self._tripped(RecoveryError("the answer is compressed")) or answer
            try:
                decision = await _sync_async.run_async(
                    exchange.answering(payload, _WIRE), lambda body: ask(body, False)
                )
                if decision == "again":
                    self._body = exchange.content
            except ResilienceError:
                raise
            except Exception as error:  # whatever the guard trips over, the request is not to blame
                exchange.drop()
                return self._tripped(error) or answer
            if decision == "deliver":
                return answer if exchange.taken is None else _saying(answer, exchange.taken)
            if decision == "final":
                return self._ended(payload)
            again = await ask(self._body or self._asked.body, False)
            if not isinstance(again, Response):
                await again.aclose()
                raise BackendError("the endpoint gave a stream where none was asked for")
            answer = again
        return answer

    def hold(self) -> AsyncStreamBuffer:
        """As `Guarded.hold`."""
        return AsyncStreamBuffer(self, hold_of(self._exchange, _WIRE, everything=self._everything))

    def settle(self) -> None:
        """As `Guarded.settle`."""
        try:
            self._exchange.settle()
        except Exception as error:  # the request is over; its run cannot be gone on with
            self._exchange.drop()
            self._engine.failed(error)
        self._settled()

    def _tripped(self, error: Exception) -> Response | None:
        """Note that the guard failed; an answer if the policy refuses the request then."""
        self._engine.failed(error)
        return refused(self._asked) if self._engine.closed else None

    def _ended(self, payload: dict[str, Any] | None) -> Response:
        """The guard's own answer, in the form that the client asked for."""
        exchange = self._exchange
        made = exchange.dialect.final(exchange.request, payload, exchange.final or "")
        exchange.settle(exchange.dialect.answer(made) or (), id=made["id"])
        if self._asked.stream:
            return Response(status=200, headers=(_EVENTS,), body=exchange.dialect.stream(made, usage=False))
        return Response(status=200, headers=(_JSON,), body=_bytes(made))


class AsyncStreamBuffer:
    """As `agentguard_server.proxy.hooks.StreamBuffer`: the engine's hold, with the model asked over asyncio."""

    __slots__ = ("_hold", "_of", "_shown")

    def __init__(self, of: InlineGuardedRequest, hold: HeldStream) -> None:
        self._of, self._hold = of, hold
        self._shown = time.monotonic()

    def feed(self, data: bytes) -> bytes:
        """As `Hold.feed`. While events are held a comment shows now and then that there is somebody."""
        shown, now = self._hold.feed(data), time.monotonic()
        if shown:
            self._shown = now
        elif now - self._shown > _QUIET_S:
            self._shown = now
            return _COMMENT
        return shown

    async def finish(self, ask: Ask) -> tuple[bytes, bool]:
        """As `Hold.finish`."""
        of = self._of
        exchange = of._exchange
        if exchange.dropped:
            return self._hold.release(), False
        try:
            data, decision = await _sync_async.run_async(self._hold.finish(), lambda body: ask(body, False))
            if decision == "again":
                of._body = exchange.content
            return data, decision == "again"
        except (EOFError, ResilienceError):
            raise
        except Exception as error:  # as in `judge`
            exchange.drop()
            if of._tripped(error) is None:
                return self._hold.release(), False
            return self._hold.failed("the guard failed"), False

    def failed(self, message: str) -> bytes:
        """As `Hold.failed`."""
        return self._hold.failed(message)


def refused(asked: ProxyRequest) -> Response:
    """What a client gets where the guard failed and the policy lets nothing by then."""
    shape: Shape = "messages" if asked.api == "messages" else "openai"
    headers = (*error_headers(FAILED), (b"x-should-retry", b"false"))
    return Response(status=FAILED.status, headers=headers, body=error_body(FAILED, shape, asked.id))


def _received(given: Response | StreamingResponse) -> dict[str, Any]:
    """What came of asking for a candidate. Raises RecoveryError if it is no answer."""
    payload = decoded(given.body) if isinstance(given, Response) and given.status == 200 else None
    if payload is None:
        raise RecoveryError(f"a candidate was answered with status {given.status} and no object")
    return payload


_WIRE: Final = CandidateRequest(send=lambda body: body, received=_received)


def _saying(answer: Response, payload: Mapping[str, Any]) -> Response:
    """The answer with another object as its body."""
    headers = tuple(pair for pair in answer.headers if pair[0] not in _OF_BODY)
    return Response(
        status=200, headers=headers, body=_bytes(payload), replica=answer.replica, notes=answer.notes
    )


def _plain(answer: Response) -> bool:
    return not any(n == b"content-encoding" and v.lower() != b"identity" for n, v in answer.headers)


def _text(text: str) -> bytes:
    """Text that may stand in a header."""
    return "".join(one if "!" <= one <= "~" else "?" for one in text).encode()


def _bytes(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()
