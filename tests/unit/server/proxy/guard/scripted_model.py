"""A client, the interface of the proxy and a scripted model, for each guarded API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from agentguard_server.proxy.hooks import ProxyRequest, RequestInterceptor
from agentguard_server.proxy.http.headers import build_guard_headers

from agentguard.backends.base import Response, StreamingResponse
from tests.unit.integrations import anthropic_server, openai_responses_server, openai_server

Body = dict[str, Any]
Turn = tuple[str, ...]
"""``("say", text)`` or ``("call", tool, id, where)``."""


@dataclass(kw_only=True)
class Api:
    """Message format of one API, as far as the tests need it."""

    name: str
    answer: Callable[[Turn], Body]
    stream: Callable[[Body], list[bytes]]
    body: Callable[[list[Any]], Body]
    given: Callable[[Body], list[Any]]
    result: Callable[[str, str], Any]
    calls: Callable[[Body], list[str]]
    text: Callable[[Body], str]
    history: str


def _chat_answer(turn: Turn) -> Body:
    made = openai_server.say(turn[1]) if turn[0] == "say" else _chat_call(turn)
    return openai_server.completion(made)


def _chat_call(turn: Turn) -> Body:
    return openai_server.call(turn[1], turn[2], where=turn[-1])


def _responses_answer(turn: Turn) -> Body:
    item = (
        openai_responses_server.said(turn[1])
        if turn[0] == "say"
        else openai_responses_server.called(turn[1], turn[2], where=turn[-1])
    )
    return openai_responses_server.response(f"resp_{turn[2] if turn[0] == 'call' else turn[1]}", [item])


def _messages_answer(turn: Turn) -> Body:
    if turn[0] == "say":
        return anthropic_server.message(anthropic_server.says(turn[1]))
    return anthropic_server.message(anthropic_server.uses(turn[1], turn[2], where=turn[-1]))


def _schema(name: str, under: str) -> Body:
    return {"name": name, under: {"type": "object", "properties": {}}}


NAMES = ("book", "find")
CHAT = Api(
    name="chat",
    answer=_chat_answer,
    stream=lambda made: openai_server.chunks(made["choices"][0]["message"], id=made["id"]),
    body=lambda history: {
        "model": "m",
        "messages": history,
        "tools": [{"type": "function", "function": _schema(name, "parameters")} for name in NAMES],
    },
    given=lambda made: [made["choices"][0]["message"]],
    result=lambda id, text: {"role": "tool", "tool_call_id": id, "content": text},
    calls=lambda made: [one["id"] for one in made["choices"][0]["message"].get("tool_calls") or ()],
    text=lambda made: made["choices"][0]["message"].get("content") or "",
    history="messages",
)
RESPONSES = Api(
    name="responses",
    answer=_responses_answer,
    stream=openai_responses_server.events,
    body=lambda history: {
        "model": "m",
        "input": history,
        "tools": [{"type": "function", **_schema(name, "parameters")} for name in NAMES],
    },
    given=lambda made: made["output"],
    result=lambda id, text: {"type": "function_call_output", "call_id": id, "output": text},
    calls=lambda made: [one["call_id"] for one in made["output"] if one["type"] == "function_call"],
    text=lambda made: "".join(p["text"] for one in made["output"] for p in one.get("content") or ()),
    history="input",
)
MESSAGES = Api(
    name="messages",
    answer=_messages_answer,
    stream=anthropic_server.events,
    body=lambda history: {
        "model": "m",
        "max_tokens": 99,
        "messages": history,
        "tools": [_schema(name, "input_schema") for name in NAMES],
    },
    given=lambda made: [{"role": "assistant", "content": made["content"]}],
    result=lambda id, text: {
        "role": "user",
        "content": [{"type": "tool_result", "tool_use_id": id, "content": text}],
    },
    calls=lambda made: [one["id"] for one in made["content"] if one["type"] == "tool_use"],
    text=lambda made: "".join(one.get("text", "") for one in made["content"]),
    history="messages",
)
APIS = {api.name: api for api in (CHAT, RESPONSES, MESSAGES)}


def calls(tool: str, count: int, *, first: int = 0) -> list[Turn]:
    return [("call", tool, f"{tool}{i}", "aisle") for i in range(first, first + count)]


@dataclass(kw_only=True)
class Played:
    """One client of the proxy; keeps the upstream requests and the answers."""

    api: Api
    guarding: RequestInterceptor
    turns: Iterator[Turn]
    tenant: str = ""
    run_id: str = ""
    sent: list[Body] = field(default_factory=list)
    heads: list[dict[str, str]] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    unguarded: int = 0
    headers: tuple[tuple[bytes, bytes], ...] = ()

    def agent(self, history: list[Any], *, most: int = 12, result: str = "nothing found") -> str:
        """Run a usual agent loop; return the text of the last answer."""
        for _ in range(most):
            made = self.ask(self.api.body(history))
            history += self.api.given(made)
            called = self.api.calls(made)
            if not called:
                return self.api.text(made)
            history += [self.api.result(id, result) for id in called]
        raise AssertionError("the loop did not end")

    def ask(self, body: Body) -> Body:
        """Send one request without streaming."""
        made: Body = json.loads(asyncio.run(self._whole(json.dumps(body).encode())))
        return made

    def raw(self, body: bytes, *, stream: bool = False) -> bytes:
        """Send one request; return the bytes that the client gets."""
        return asyncio.run(self._streamed(body) if stream else self._whole(body))

    def asked(self, body: bytes, *, stream: bool = False) -> ProxyRequest:
        return ProxyRequest(
            api=self.api.name,
            method="POST",
            target="/v1/x",
            headers=self.headers,
            body=body,
            stream=stream,
            model="m",
            tenant=self.tenant,
            run_id=self.run_id,
            request_id="r1",
            started_at=0.0,
        )

    async def _whole(self, raw: bytes) -> bytes:
        guarded = self.guarding.intercept(self.asked(raw))
        if isinstance(guarded, asyncio.Future):
            guarded = await guarded
        if isinstance(guarded, Response):
            self.statuses.append(guarded.status)
            return guarded.body
        if guarded is None:
            self.unguarded += 1
            return (await self._model(raw, False)).body
        try:
            if (final := guarded.local_response) is not None:
                return final.body
            answer = await guarded.judge(await self._model(guarded.body or raw, False), self._model)
            self.heads.append({n.decode(): v.decode() for n, v in build_guard_headers(guarded.outcome)})
            self.statuses.append(answer.status)
            return answer.body
        finally:
            guarded.settle()
            guarded.settle()

    async def _streamed(self, raw: bytes) -> bytes:
        guarded = self.guarding.intercept(self.asked(raw, stream=True))
        if isinstance(guarded, asyncio.Future):
            guarded = await guarded
        assert guarded is not None
        assert not isinstance(guarded, Response)
        try:
            if (final := guarded.local_response) is not None:
                return final.body
            self.heads.append({n.decode(): v.decode() for n, v in build_guard_headers(guarded.outcome)})
            hold, out, again = guarded.create_stream_buffer(), b"", True
            while again:
                for piece in self._events(guarded.body or raw):
                    out += hold.feed(piece)
                shown, again = await hold.finish(self._model)
                out += shown
            return out
        finally:
            guarded.settle()

    def _events(self, raw: bytes) -> list[bytes]:
        self.sent.append(json.loads(raw))
        return self.api.stream(self.api.answer(next(self.turns)))

    async def _model(self, raw: bytes, stream: bool) -> Response | StreamingResponse:  # type: ignore[override]
        assert not stream
        self.sent.append(json.loads(raw))
        made = json.dumps(self.api.answer(next(self.turns))).encode()
        return Response(status=200, headers=((b"content-type", b"application/json"),), body=made)
