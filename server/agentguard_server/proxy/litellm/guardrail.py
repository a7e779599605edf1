"""LiteLLM's generic guardrail endpoint: guards the runs of an existing LiteLLM proxy.

LiteLLM sends each request before the model call, and each response before the client receives it. The
messages of a request form a turn of a run, with the same findings, budgets and history edits as a request to
this proxy. LiteLLM accepts changed messages and a blocked response, but neither another response nor a
changed tool call. If the guard needs another response of the model, the endpoint therefore blocks the
response, and the guard corrects the next request of the run.

Tested with LiteLLM 1.106.2; older versions may ignore changed messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from agentguard._bounded_map import BoundedMap
from agentguard.backends.base import Headers, Response as BackendResponse, StreamingResponse
from agentguard.errors import InputError, ResilienceError
from agentguard.resilience.clock import MONOTONIC, Clock
from agentguard_server.proxy.auth.authorization import ANONYMOUS, Caller
from agentguard_server.proxy.errors import ProxyError
from agentguard_server.proxy.hooks import (
    GuardOutcome,
    InterceptedRequest,
    ProxyRequest,
    RequestInterceptor,
)
from agentguard_server.proxy.litellm.request import GuardrailRequest, parse_guardrail_request

_LOG = logging.getLogger("agentguard.proxy")

PATH: Final = "/beta/litellm_basic_guardrail_api"
_MAX_CALLS: Final = 4096
_CALL_TTL_S: Final = 900.0
_RETRY_HEADERS: Final[Headers] = ((b"x-stainless-retry-count", b"1"),)


class _ResendRequested(ResilienceError):
    """Request of the guard for another response, which LiteLLM cannot provide."""


@dataclass(slots=True)
class _PendingCall:
    """Call whose request was judged; its response may be judged already."""

    request: ProxyRequest
    intercepted: InterceptedRequest | None
    created_at: float
    verdict: dict[str, Any] | None = None


class LiteLLMGuardrail:
    """Endpoint for LiteLLM's guardrail requests.

    Args:
        get_interceptor: returns the current interceptor; None if there is no guard.
        clock: source of time.

    Attributes:
        counts: verdicts by action.
    """

    def __init__(
        self, get_interceptor: Callable[[], RequestInterceptor | None], *, clock: Clock = MONOTONIC
    ) -> None:
        self._get_interceptor, self._clock = get_interceptor, clock
        self._calls = BoundedMap[tuple[str, str], _PendingCall](_MAX_CALLS, on_evict=self._forget)
        self.counts: dict[str, int] = {}

    async def __call__(self, request: Request) -> Response:
        """Serve a request of LiteLLM."""
        caller: Caller = request.scope.get("agentguard.caller", ANONYMOUS)
        try:
            caller.acquire(self._clock.now())
        except ProxyError as refusal:
            return _build_json_response({"error": refusal.reason}, refusal.status)
        try:
            verdict = await self._judge(parse_guardrail_request(await request.body()), caller.tenant)
        except InputError as error:
            return _build_json_response({"error": str(error)}, 400)
        finally:
            caller.release()
        self.counts[verdict["action"]] = self.counts.get(verdict["action"], 0) + 1
        return _build_json_response(verdict)

    def close(self) -> None:
        """End all pending calls, so that their runs accept the next request."""
        while self._calls:
            self._forget(self._calls.popitem()[1])

    async def _judge(self, request: GuardrailRequest, tenant: str) -> dict[str, Any]:
        self._expire()
        try:
            if request.kind == "request":
                return await self._judge_request(request, tenant)
            return await self._judge_response(request, tenant)
        except Exception as error:  # an error of the guard is not an error of the request
            _LOG.warning("the guard failed on a request of LiteLLM: %s", type(error).__name__)
            return {"action": "NONE"}

    # -- before the model call

    async def _judge_request(self, request: GuardrailRequest, tenant: str) -> dict[str, Any]:
        if not request.messages:
            return {"action": "NONE"}
        proxy_request = self._build_proxy_request(request, tenant)
        guarded = await self._intercept(proxy_request)
        if guarded is None:
            return {"action": "NONE"}
        if isinstance(guarded, BackendResponse):
            return _build_block(_extract_text(guarded) or "[guard] The guard failed on this request.")
        if guarded.local_response is not None:
            guarded.settle()
            return _build_block(_extract_text(guarded.local_response) or "[guard] The run was stopped.")
        self._remember((tenant, request.call_id), _PendingCall(proxy_request, guarded, time.monotonic()))
        return _build_request_verdict(guarded.body, request)

    def _build_proxy_request(self, request: GuardrailRequest, tenant: str) -> ProxyRequest:
        body: dict[str, Any] = {"model": request.model, "messages": list(request.messages)}
        if request.tools:
            body["tools"] = list(request.tools)
        return ProxyRequest(
            api="chat",
            method="POST",
            target="/v1/chat/completions",
            headers=(),
            body=orjson.dumps(body),
            stream=False,
            model=request.model,
            tenant=tenant,
            run_id=request.run_id,
            request_id=request.call_id[:64],
            started_at=self._clock.now(),
        )

    # -- before the client receives the response

    async def _judge_response(self, request: GuardrailRequest, tenant: str) -> dict[str, Any]:
        call = self._calls.get((tenant, request.call_id))
        if call is None:
            return {"action": "NONE"}
        if call.verdict is not None and call.verdict["action"] == "BLOCKED":
            return call.verdict
        guarded = call.intercepted or await self._intercept_again(call)
        call.intercepted = None
        if guarded is None:
            return {"action": "NONE"}
        try:
            call.verdict = await _judge_response(guarded, request)
        finally:
            guarded.settle()
        return call.verdict

    async def _intercept_again(self, call: _PendingCall) -> InterceptedRequest | None:
        """Open the same request again: LiteLLM sends a stream several times, each time with more text."""
        opened = await self._intercept(replace(call.request, headers=_RETRY_HEADERS))
        return (
            None
            if opened is None or isinstance(opened, BackendResponse) or opened.local_response is not None
            else opened
        )

    async def _intercept(self, request: ProxyRequest) -> InterceptedRequest | BackendResponse | None:
        interceptor = self._get_interceptor()
        opened = None if interceptor is None else interceptor.intercept(request)
        return await opened if isinstance(opened, asyncio.Future) else opened

    # -- pending calls

    def _remember(self, key: tuple[str, str], call: _PendingCall) -> None:
        previous = self._calls.pop(key, None)
        if previous is not None:
            self._forget(previous)
        self._calls[key] = call

    def _expire(self) -> None:
        """Remove calls without a response: the model failed, or the client disconnected."""
        oldest = time.monotonic() - _CALL_TTL_S
        while self._calls and next(iter(self._calls.values())).created_at < oldest:
            self._forget(self._calls.popitem()[1])

    @staticmethod
    def _forget(call: _PendingCall) -> None:
        if call.intercepted is not None:
            call.intercepted.settle()


async def _judge_response(intercepted: InterceptedRequest, request: GuardrailRequest) -> dict[str, Any]:
    """Return the verdict on a response."""
    response = _to_chat_completion(request)
    try:
        judged = await intercepted.judge(response, _reject_resend)
    except _ResendRequested:
        return _build_block(_format_block_reason(intercepted.outcome))
    if judged.body == response.body:
        return {"action": "NONE"}
    message = _extract_message(judged)
    text = message.get("content") if isinstance(message.get("content"), str) else ""
    if request.tool_calls:  # LiteLLM would deliver the original tool calls, so block the response
        return _build_block(text or _format_block_reason(intercepted.outcome))
    if not request.texts or not text:
        return {"action": "NONE"}
    return {"action": "GUARDRAIL_INTERVENED", "texts": [text, *("" for _ in request.texts[1:])]}


async def _reject_resend(_body: bytes, _stream: bool) -> BackendResponse | StreamingResponse:
    raise _ResendRequested("only LiteLLM can call the model again")


def _to_chat_completion(request: GuardrailRequest) -> BackendResponse:
    """Convert the response into a chat completion."""
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(request.texts) or None}
    if request.tool_calls:
        message["tool_calls"] = list(request.tool_calls)
    body = {
        "id": request.call_id,
        "object": "chat.completion",
        "model": request.model,
        "choices": [
            {"index": 0, "finish_reason": "tool_calls" if request.tool_calls else "stop", "message": message}
        ],
    }
    return BackendResponse(
        status=200, headers=((b"content-type", b"application/json"),), body=orjson.dumps(body)
    )


def _build_request_verdict(body: bytes | None, request: GuardrailRequest) -> dict[str, Any]:
    """Return the verdict on a request; ``body`` is the body that the guard changed, or None."""
    if body is None:
        return {"action": "NONE"}
    changed = orjson.loads(body)
    verdict: dict[str, Any] = {"action": "GUARDRAIL_INTERVENED", "structured_messages": changed["messages"]}
    if request.tools and changed.get("tools") != list(request.tools):
        verdict["tools"] = changed.get("tools") or []
    return verdict


def _build_block(reason: str) -> dict[str, Any]:
    return {"action": "BLOCKED", "blocked_reason": reason}


def _format_block_reason(outcome: GuardOutcome) -> str:
    """Return the reason for a block: codes and strategies, without text of the run."""
    codes = ",".join(code for code, _ in outcome.findings)
    recoveries = ",".join(f"{strategy}@{step}" for strategy, step in outcome.recoveries)
    parts = ["[guard] This response was blocked"]
    parts += [f": {codes}"] if codes else []
    parts += [f" ({recoveries})"] if recoveries else []
    return "".join(parts) + ". Send the request again: the model then gets a hint."


def _extract_message(response: BackendResponse) -> Mapping[str, Any]:
    try:
        message = orjson.loads(response.body)["choices"][0]["message"]
    except (ValueError, KeyError, IndexError, TypeError):
        return {}
    return message if isinstance(message, dict) else {}


def _extract_text(response: BackendResponse) -> str:
    """Return the text of the guard's own response, or of a refusal."""
    text = _extract_message(response).get("content")
    return text if isinstance(text, str) else ""


def _build_json_response(data: Mapping[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(data), status, media_type="application/json")
