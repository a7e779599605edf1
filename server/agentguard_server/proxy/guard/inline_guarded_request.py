"""Request of a guarded run, with asynchronous model calls."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from agentguard import _sync_async
from agentguard.backends.base import Response, StreamingResponse
from agentguard.errors import BackendError, RecoveryError, ResilienceError
from agentguard.intercept.api_adapter import ApiAdapter
from agentguard.intercept.guarded_apis import build_stream_buffer
from agentguard.intercept.guarded_request import CandidateRequest, GuardedRequest
from agentguard.intercept.interceptor import Interceptor
from agentguard.intercept.stream_buffer import EventStreamBuffer
from agentguard_server.proxy.errors import ProxyError, build_error_headers, encode_error_body
from agentguard_server.proxy.hooks import GuardOutcome, ModelCaller, ProxyRequest
from agentguard_server.proxy.routes import ErrorShape

_JSON_CONTENT_TYPE: Final = (b"content-type", b"application/json")
_EVENT_STREAM_CONTENT_TYPE: Final = (b"content-type", b"text/event-stream; charset=utf-8")
_BODY_HEADERS: Final = (b"content-length", b"content-encoding", b"transfer-encoding", b"etag", b"content-md5")
_MAX_FINDINGS: Final = 16
_KEEPALIVE_INTERVAL_S: Final = 10.0
"""Seconds without output after which a comment keeps the client from a timeout during a long tool call."""
_KEEPALIVE_COMMENT: Final = b": held\n\n"
GUARD_FAILED: Final = ProxyError(
    403, "guard_failed", "the guard failed on this request, and the policy fails closed"
)


class InlineGuardedRequest:
    """Implementation of `agentguard_server.proxy.hooks.InterceptedRequest`.

    Args:
        interceptor: interceptor of the tenant.
        guarded: the request, as the interceptor opened it.
        request: the request, as the client sent it.
        buffers_text: True to hold back text, too.
        on_settled: called when the request is over.
    """

    __slots__ = (
        "_body",
        "_buffers_text",
        "_guarded",
        "_interceptor",
        "_local_response",
        "_on_settled",
        "_request",
    )  # fmt: skip

    def __init__(
        self,
        interceptor: Interceptor,
        guarded: GuardedRequest,
        request: ProxyRequest,
        *,
        buffers_text: bool,
        on_settled: Callable[[], None],
    ) -> None:
        self._interceptor, self._guarded, self._request = interceptor, guarded, request
        self._buffers_text, self._on_settled = buffers_text, on_settled
        self._local_response: Response | None = (
            self._build_local_response(None) if guarded.final_text is not None else None
        )
        self._body = None if self._local_response is not None else guarded.encoded_body

    @property
    def local_response(self) -> Response | None:
        """Return the guard's own response; None unless the guard stopped the run before the model call."""

        return self._local_response

    @property
    def body(self) -> bytes | None:
        """Return the body of the latest model call; None for the client's own body."""
        return self._body

    @property
    def outcome(self) -> GuardOutcome:
        """Return the actions of the guard so far."""
        session, steps = self._guarded.session, dict[str, int]()
        for finding in session.findings:
            steps.setdefault(finding.codes[0] if finding.codes else finding.detector, finding.step)
        stream_mode = ""
        if self._request.stream:
            stream_mode = "buffer_all" if self._buffers_text else "buffer_tool_calls"
        return GuardOutcome(
            run_id=session.id,
            step=len(session),
            findings=tuple(steps.items())[-_MAX_FINDINGS:],
            recoveries=tuple((one.plan.strategy, one.plan.step) for one in self._guarded.recoveries),
            stopped=session.stop_reason is not None,
            stream_mode=stream_mode,
            is_unjoined=self._guarded.is_unjoined,
        )

    async def judge(self, response: Response, call_model: ModelCaller) -> Response:
        """Judge a whole response; see `InterceptedRequest.judge`.

        Raises:
            ResilienceError: another call of the model failed.
        """
        exchange = self._guarded
        while not exchange.is_dropped and response.status == 200:
            payload = decode_body(response.body)
            if payload is None:
                if _is_uncompressed(response):
                    return response
                return self._handle_guard_error(RecoveryError("the answer is compressed")) or response
            try:
                decision = await _sync_async.run_async(
                    exchange.judge_answer(payload, _CANDIDATE_REQUEST), lambda body: call_model(body, False)
                )
                if decision == "again":
                    self._body = exchange.encoded_body
            except ResilienceError:
                raise
            except Exception as error:  # an error of the guard is not an error of the request
                exchange.discard()
                return self._handle_guard_error(error) or response
            if decision == "deliver":
                return (
                    response
                    if exchange.replacement_payload is None
                    else _replace_body(response, exchange.replacement_payload)
                )
            if decision == "final":
                return self._build_local_response(payload)
            again = await call_model(self._body or self._request.body, False)
            if not isinstance(again, Response):
                await again.aclose()
                raise BackendError("the endpoint sent a stream that was not requested")
            response = again
        return response

    def create_stream_buffer(self) -> AsyncStreamBuffer:
        """Return the buffer for a streamed response."""
        return AsyncStreamBuffer(
            self, build_stream_buffer(self._guarded, _CANDIDATE_REQUEST, buffer_all=self._buffers_text)
        )

    def settle(self) -> None:
        """End this request; see `InterceptedRequest.settle`."""
        try:
            self._guarded.settle()
        except Exception as error:  # the request is over, but its run cannot continue
            self._guarded.discard()
            self._interceptor.record_failure(error)
        self._on_settled()

    def _handle_guard_error(self, error: Exception) -> Response | None:
        """Record a failure of the guard; return a refusal if the policy fails closed, else None."""
        self._interceptor.record_failure(error)
        return build_guard_failure_response(self._request) if self._interceptor.fails_closed else None

    def _build_local_response(self, payload: dict[str, Any] | None) -> Response:
        """Build the guard's own response, as a stream if the client requested one."""
        exchange = self._guarded
        made = exchange.adapter.build_final_answer(exchange.request_body, payload, exchange.final_text or "")
        exchange.settle(exchange.adapter.extract_answer_items(made) or (), response_id=made["id"])
        if self._request.stream:
            return Response(
                status=200,
                headers=(_EVENT_STREAM_CONTENT_TYPE,),
                body=exchange.adapter.encode_stream(made, include_usage=False),
            )
        return Response(status=200, headers=(_JSON_CONTENT_TYPE,), body=_encode_body(made))


class AsyncStreamBuffer:
    """Implementation of `agentguard_server.proxy.hooks.StreamBuffer` with asynchronous model calls."""

    __slots__ = ("_buffer", "_last_output_at", "_owner")

    def __init__(self, owner: InlineGuardedRequest, buffer: EventStreamBuffer) -> None:
        self._owner, self._buffer = owner, buffer
        self._last_output_at = time.monotonic()

    def feed(self, data: bytes) -> bytes:
        """Add events; return the released bytes, or at intervals a comment if the buffer releases none."""
        shown, now = self._buffer.feed(data), time.monotonic()
        if shown:
            self._last_output_at = now
        elif now - self._last_output_at > _KEEPALIVE_INTERVAL_S:
            self._last_output_at = now
            return _KEEPALIVE_COMMENT
        return shown

    async def finish(self, call_model: ModelCaller) -> tuple[bytes, bool]:
        """Judge the current response after its end; see `StreamBuffer.finish`."""
        owner = self._owner
        exchange = owner._guarded
        if exchange.is_dropped:
            return self._buffer.flush(), False
        try:
            data, decision = await _sync_async.run_async(
                self._buffer.finish(), lambda body: call_model(body, False)
            )
            if decision == "again":
                owner._body = exchange.encoded_body
            return data, decision == "again"
        except (EOFError, ResilienceError):
            raise
        except Exception as error:  # as in `judge`
            exchange.discard()
            if owner._handle_guard_error(error) is None:
                return self._buffer.flush(), False
            return self._buffer.build_error_event("the guard failed"), False

    def format_error_event(self, message: str) -> bytes:
        """Return an error event; see `StreamBuffer.format_error_event`."""
        return self._buffer.build_error_event(message)


def build_guard_failure_response(request: ProxyRequest) -> Response:
    """Build the response for a client if the guard failed and the policy fails closed."""
    shape: ErrorShape = "messages" if request.api == "messages" else "openai"
    headers = (*build_error_headers(GUARD_FAILED), (b"x-should-retry", b"false"))
    return Response(
        status=GUARD_FAILED.status,
        headers=headers,
        body=encode_error_body(GUARD_FAILED, shape, request.request_id),
    )


def _parse_candidate_response(response: Response | StreamingResponse) -> dict[str, Any]:
    """Return the payload of a candidate response. Raises RecoveryError if the call failed."""
    payload = (
        decode_body(response.body) if isinstance(response, Response) and response.status == 200 else None
    )
    if payload is None:
        raise RecoveryError(
            f"the request of a candidate returned status {response.status} without a JSON object"
        )
    return payload


_CANDIDATE_REQUEST: Final = CandidateRequest(
    build_request=lambda body: body, parse_response=_parse_candidate_response
)


def _replace_body(response: Response, payload: Mapping[str, Any]) -> Response:
    """Return the response with another body."""
    headers = tuple(pair for pair in response.headers if pair[0] not in _BODY_HEADERS)
    return Response(
        status=200,
        headers=headers,
        body=_encode_body(payload),
        replica=response.replica,
        notes=response.notes,
    )


def _is_uncompressed(response: Response) -> bool:
    return not any(n == b"content-encoding" and v.lower() != b"identity" for n, v in response.headers)


def _encode_body(body: Mapping[str, Any]) -> bytes:
    return json.dumps(body, separators=(",", ":")).encode()


_RUN_ID: Final = re.compile(r"[\x21-\x7e]{1,128}")
_decode = msgspec.json.Decoder().decode


def parse_run_id(value: str) -> str:
    """Return the client's run ID; empty if it is not valid, or ``off``."""
    return value if value != "off" and _RUN_ID.fullmatch(value) else ""


def decode_body(body: bytes) -> dict[str, Any] | None:
    """Decode a body; return None if it is not a JSON object. Numbers keep all their digits."""
    try:
        value = _decode(body)
    except RecursionError:
        return None
    except ValueError:
        value = _decode_lenient(body)
    return value if isinstance(value, dict) else None


def _decode_lenient(body: bytes) -> Any:
    """Decode input that is not valid JSON but that servers may accept: NaN, lone surrogates."""
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def requires_guard(adapter: ApiAdapter, body: Mapping[str, Any]) -> bool:
    """Return whether a request offers tools or has tool calls in its history."""
    if body.get("tools"):
        return True
    return any(item.get("tool_calls") or adapter.is_result(item) for item in adapter.extract_items(body))
