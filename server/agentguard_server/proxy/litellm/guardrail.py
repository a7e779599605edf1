"""LiteLLM's generic guardrail endpoint: who has a LiteLLM proxy keeps it and has its runs guarded.

LiteLLM sends each request before the model is asked, and each answer before the client gets it. The request's
messages are a turn of a run, as if they came through this proxy: the run's findings, its budgets and its
sticky view are the same. What can be done is less: LiteLLM takes a changed list of messages and a blocked
answer, but neither another answer nor a changed tool call. So where the guard would ask the model again, the
answer is blocked, and the run's next request is the corrected one.

This was tested with LiteLLM 1.106.2; older versions may take no changed messages.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from starlette.requests import Request
from starlette.responses import Response

from agentguard.backends.base import Headers, StreamingResponse
from agentguard.backends.base import Response as BackendResponse
from agentguard.errors import InputError, ResilienceError
from agentguard_server.proxy.auth.api_keys import ANYBODY, Caller
from agentguard_server.proxy.hooks import InterceptedRequest, ProxyRequest
from agentguard_server.proxy.litellm.request import GuardrailRequest, read
from agentguard_server.proxy.state import AppState

_LOG = logging.getLogger("agentguard.proxy")

PATH: Final = "/beta/litellm_basic_guardrail_api"
_KEPT: Final = 4096
_KEPT_S: Final = 900.0
_REPEATED: Final[Headers] = ((b"x-stainless-retry-count", b"1"),)


class _AskedAgain(ResilienceError):
    """The guard wants another answer, which LiteLLM cannot be asked for."""


@dataclass(slots=True)
class _Call:
    """A call whose request was judged and whose answer is awaited, or was judged."""

    asked: ProxyRequest
    guarded: InterceptedRequest | None
    at: float
    verdict: dict[str, Any] | None = None


class Guardrail:
    """The endpoint.

    Args:
        gateway: whose guard judges.

    Attributes:
        counts: verdicts by action.
    """

    def __init__(self, gateway: AppState) -> None:
        self._gateway = gateway
        self._calls: OrderedDict[tuple[str, str], _Call] = OrderedDict()
        self.counts: dict[str, int] = {}

    async def __call__(self, request: Request) -> Response:
        """Answer a request of LiteLLM's."""
        found = request.scope.get("agentguard.caller")
        caller = found if isinstance(found, Caller) else ANYBODY
        after = caller.enter(self._gateway.clock.now())
        if after is not None:
            return _answer({"error": "this key has used up its limit"}, 429)
        try:
            verdict = await self._judged(read(await request.body()), caller.tenant)
        except InputError as error:
            return _answer({"error": str(error)}, 400)
        finally:
            caller.leave()
        self.counts[verdict["action"]] = self.counts.get(verdict["action"], 0) + 1
        return _answer(verdict)

    def close(self) -> None:
        """Let all runs wait for their next requests."""
        while self._calls:
            self._forget(self._calls.popitem(last=False)[1])

    async def _judged(self, said: GuardrailRequest, tenant: str) -> dict[str, Any]:
        self._expire()
        try:
            if said.kind == "request":
                return await self._request(said, tenant)
            return await self._response(said, tenant)
        except Exception as error:  # whatever the guard trips over, the request is not to blame
            _LOG.warning("the guard failed on a request of LiteLLM's: %s", type(error).__name__)
            return {"action": "NONE"}

    # -- before the model is asked

    async def _request(self, said: GuardrailRequest, tenant: str) -> dict[str, Any]:
        if not said.messages:
            return {"action": "NONE"}
        asked = self._asked(said, tenant)
        guarded = await self._open(asked)
        if guarded is None:
            return {"action": "NONE"}
        if isinstance(guarded, BackendResponse):
            return _blocked(_text_of(guarded) or "[guard] The guard failed on this request.")
        if guarded.final is not None:
            guarded.settle()
            return _blocked(_text_of(guarded.final) or "[guard] The run was stopped.")
        self._keep((tenant, said.call), _Call(asked, guarded, time.monotonic()))
        return _rewritten(guarded.body, said)

    def _asked(self, said: GuardrailRequest, tenant: str) -> ProxyRequest:
        body: dict[str, Any] = {"model": said.model, "messages": list(said.messages)}
        if said.tools:
            body["tools"] = list(said.tools)
        return ProxyRequest(
            api="chat",
            method="POST",
            target="/v1/chat/completions",
            headers=(),
            body=orjson.dumps(body),
            stream=False,
            model=said.model,
            tenant=tenant,
            run=said.run,
            id=said.call[:64],
            started=self._gateway.clock.now(),
        )

    # -- before the client gets the answer

    async def _response(self, said: GuardrailRequest, tenant: str) -> dict[str, Any]:
        call = self._calls.get((tenant, said.call))
        if call is None:
            return {"action": "NONE"}
        if call.verdict is not None and call.verdict["action"] == "BLOCKED":
            return call.verdict
        guarded = call.guarded or await self._opened_again(call)
        call.guarded = None
        if guarded is None:
            return {"action": "NONE"}
        try:
            call.verdict = await _verdict(guarded, said)
        finally:
            guarded.settle()
        return call.verdict

    async def _opened_again(self, call: _Call) -> InterceptedRequest | None:
        """The same request once more: LiteLLM shows a stream's answer again and again as it grows."""
        opened = await self._open(replace(call.asked, headers=_REPEATED))
        return (
            None
            if opened is None or isinstance(opened, BackendResponse) or opened.final is not None
            else opened
        )

    async def _open(self, asked: ProxyRequest) -> InterceptedRequest | BackendResponse | None:
        guarding = self._gateway.guarding
        opened = None if guarding is None else guarding.open(asked)
        return await opened if isinstance(opened, asyncio.Future) else opened

    # -- what is remembered between the two

    def _keep(self, key: tuple[str, str], call: _Call) -> None:
        before = self._calls.pop(key, None)
        if before is not None:
            self._forget(before)
        self._calls[key] = call
        while len(self._calls) > _KEPT:
            self._forget(self._calls.popitem(last=False)[1])

    def _expire(self) -> None:
        """Forget calls whose answer never came: the model failed, or the client left."""
        before = time.monotonic() - _KEPT_S
        while self._calls and next(iter(self._calls.values())).at < before:
            self._forget(self._calls.popitem(last=False)[1])

    @staticmethod
    def _forget(call: _Call) -> None:
        if call.guarded is not None:
            call.guarded.settle()


async def _verdict(guarded: InterceptedRequest, said: GuardrailRequest) -> dict[str, Any]:
    """What LiteLLM is told of an answer."""
    answer = _completion(said)
    try:
        judged = await guarded.judge(answer, _ask)
    except _AskedAgain:
        return _blocked(_why(guarded.headers))
    if judged.body == answer.body:
        return {"action": "NONE"}
    message = _message_of(judged)
    text = message.get("content") if isinstance(message.get("content"), str) else ""
    if said.calls:  # a call that is changed or taken back cannot be handed on: the client would run the other
        return _blocked(text or _why(guarded.headers))
    if not said.texts or not text:
        return {"action": "NONE"}
    return {"action": "GUARDRAIL_INTERVENED", "texts": [text, *("" for _ in said.texts[1:])]}


async def _ask(_body: bytes, _stream: bool) -> BackendResponse | StreamingResponse:
    raise _AskedAgain("the model is LiteLLM's to ask")


def _completion(said: GuardrailRequest) -> BackendResponse:
    """The answer as a completion of a chat."""
    message: dict[str, Any] = {"role": "assistant", "content": "\n".join(said.texts) or None}
    if said.calls:
        message["tool_calls"] = list(said.calls)
    body = {
        "id": said.call,
        "object": "chat.completion",
        "model": said.model,
        "choices": [
            {"index": 0, "finish_reason": "tool_calls" if said.calls else "stop", "message": message}
        ],
    }
    return BackendResponse(
        status=200, headers=((b"content-type", b"application/json"),), body=orjson.dumps(body)
    )


def _rewritten(body: bytes | None, said: GuardrailRequest) -> dict[str, Any]:
    """The verdict on a request whose body the guard has changed, or not."""
    if body is None:
        return {"action": "NONE"}
    made = orjson.loads(body)
    verdict: dict[str, Any] = {"action": "GUARDRAIL_INTERVENED", "structured_messages": made["messages"]}
    if said.tools and made.get("tools") != list(said.tools):
        verdict["tools"] = made.get("tools") or []
    return verdict


def _blocked(reason: str) -> dict[str, Any]:
    return {"action": "BLOCKED", "blocked_reason": reason}


def _why(did: Headers) -> str:
    """Why an answer is blocked, in the guard's own words, which quote nothing of the run."""
    told = {name: value.decode("latin-1") for name, value in did}
    found = told.get(b"agentguard-findings", "")
    done = told.get(b"agentguard-recoveries", "")
    parts = ["[guard] This answer was held back"]
    parts += [f": {found}"] if found else []
    parts += [f" ({done})"] if done else []
    return "".join(parts) + ". Send the request again: the model is told what to do instead."


def _message_of(answer: BackendResponse) -> Mapping[str, Any]:
    try:
        found = orjson.loads(answer.body)["choices"][0]["message"]
    except (ValueError, KeyError, IndexError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _text_of(answer: BackendResponse) -> str:
    """The text of the guard's own answer, or of a refusal."""
    text = _message_of(answer).get("content")
    return text if isinstance(text, str) else ""


def _answer(data: Mapping[str, Any], status: int = 200) -> Response:
    return Response(orjson.dumps(data), status, media_type="application/json")
