"""Anthropic's client under the guard: the real SDK, a scripted model behind a real socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Self

import anthropic
import httpx2
import pytest
from anthropic import Anthropic, AsyncAnthropic, DefaultAsyncHttpxClient, DefaultHttpxClient

from agentguard.guard import Guard
from agentguard.intercept.adapters.anthropic_messages import AnthropicAdapter
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from tests.unit.integrations.anthropic_server import Body, events, message, says, thinks, uses
from tests.unit.integrations.openai_server import Raw, Server, serving
from tests.unit.integrations.test_loop import First
from tests.unit.integrations.test_openai import make

TASK: Any = {"role": "user", "content": "Book seat 4."}
TOOLS: list[Any] = [{"name": name, "input_schema": {"type": "object"}} for name in ("book", "find")]


class Asker:
    """A client and its scripted answers."""

    def __init__(self, server: Server, guard: Guard, **options: Any) -> None:
        self.sessions: list[Session] = []
        self.transport = guard.transport(on_run=self.sessions.append, **options)
        base = server.url.removesuffix("/v1")
        http = DefaultHttpxClient(transport=self.transport)
        self.client = Anthropic(base_url=base, api_key="k", max_retries=0, http_client=http)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def ask(self, messages: list[Any], *, stream: bool = False, **more: Any) -> Any:
        asked = {"model": "claude", "max_tokens": 99, "messages": messages, "tools": TOOLS, **more}
        if not stream:
            return self.client.messages.create(**asked)
        with self.client.messages.stream(**asked) as flow:
            return flow.get_final_message()

    def agent(self, messages: list[Any], **more: Any) -> Any:
        """Run a usual agent loop; return the last answer."""
        for _ in range(20):
            got = self.ask(messages, **more)
            messages.append({"role": "assistant", "content": got.content})
            calls = [block for block in got.content if block.type == "tool_use"]
            if not calls:
                return got
            results = [
                {"type": "tool_result", "tool_use_id": c.id, "content": "nothing found"} for c in calls
            ]
            messages.append({"role": "user", "content": results})
        raise AssertionError("the loop did not end")


def script(*answers: Body, stream: bool = False) -> Callable[[Body], Any]:
    given = iter(answers)
    return lambda body: events(next(given)) if stream else next(given)


def finds(count: int) -> list[Body]:
    return [message(says("I look."), uses("find", f"t{i}", where="aisle"), id=f"m{i}") for i in range(count)]


def ids(body: Body) -> list[str]:
    blocks = [b for m in body["messages"] if isinstance(m["content"], list) for b in m["content"]]
    return [block["id"] for block in blocks if block["type"] == "tool_use"]


def whole(messages: list[Body]) -> bool:
    """Check that roles alternate, and that the next message answers each call, results first."""
    roles = [one["role"] for one in messages]
    if roles != [("user", "assistant")[i % 2] for i in range(len(roles))]:
        return False
    for place, one in enumerate(messages):
        calls = {b["id"] for b in one["content"] if b["type"] == "tool_use"} if one["role"] != "user" else ()
        if calls:
            kinds = [b["type"] for b in messages[place + 1]["content"]]
            got = {b.get("tool_use_id") for b in messages[place + 1]["content"]} - {None}
            if got != calls or kinds != sorted(kinds, key="tool_result".__ne__):
                return False
    return True


def said(body: Body) -> str:
    return str(body["messages"])


def test_clean_exchange_keeps_its_bytes() -> None:
    answer = (
        b'{ "type":"message", "content" : [{"type":"text","text":"ok","x":1e3}],\n"stop_reason":"end_turn",'
    )
    answer += b'"id":"m","role":"assistant","model":"c","usage":{"input_tokens":1,"output_tokens":1}}'
    body = b'{"model": "c",  "messages":[{"role":"user","content":"hi"}], "x_new":[1,{"y":null}]}'
    with serving(lambda _: Raw(content=answer)) as server:
        transport = make().transport()
        with httpx2.Client(transport=transport) as client:
            got = client.post(f"{server.url}/messages", content=body)
    assert got.content == answer
    assert server.raw == [body]


@pytest.mark.parametrize("stream", [False, True])
def test_loop_rollback_persists_in_later_requests(stream: bool) -> None:
    wanted = [*finds(3), message(uses("find", "other", where="hall")), message(says("Done."))]
    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    with serving(script(*wanted, stream=stream)) as server, Asker(server, guard) as asker:
        last = asker.agent([TASK], stream=stream)
    assert [block.text for block in last.content] == ["Done."]
    assert ids(server.bodies[-1]) == ["t0", "other"]
    assert "[guard]" in said(server.bodies[-1])
    assert all(whole(body["messages"]) for body in server.bodies)
    assert len(asker.sessions) == 1
    assert asker.sessions[0].has_ended
    assert not asker.transport.interceptor.failures


def test_refused_call_is_hidden_and_next_answer_follows_in_stream() -> None:
    fly = message(thinks("Away!"), says("I try"), uses("fly", "x"))
    book = message(thinks("So."), says("Now I"), uses("book", "b", seat=4), id="msg_2")
    answers, guard = [fly, book, message(says("Done."))], make(recover=RecoveryPolicy(on_fail="rollback"))
    with serving(script(*answers, stream=True)) as server, Asker(server, guard) as asker:
        messages: list[Any] = [TASK]
        got = asker.ask(messages, stream=True)
        assert [block.type for block in got.content] == ["thinking", "text", "thinking", "text", "tool_use"]
        assert [block.name for block in got.content if block.type == "tool_use"] == ["book"]
        assert got.content[-1].input == {"seat": 4}
        assert got.id == "msg_1"
        messages.append({"role": "assistant", "content": got.content})
        result = {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "yours"}]}
        messages.append({"role": "user", "content": [result, {"type": "text", "text": "Thanks!"}]})
        asker.ask(messages, stream=True)
    sent = server.bodies[2]["messages"]
    assert whole(sent)
    assert [b["type"] for b in sent[1]["content"]] == ["thinking", "text", "tool_use"], "as it was answered"
    assert sent[1]["content"][0] == {"type": "thinking", "thinking": "So.", "signature": "c2lnbmVk"}
    assert asker.sessions[0].run.steps[-1].content == "Done."


def test_clean_stream_keeps_its_bytes() -> None:
    pieces = [b": hello\n\n", *events(message(thinks("Hm."), says("One"), uses("find", "f", where="x")))]
    with serving(lambda body: pieces) as server, httpx2.Client(transport=make().transport()) as client:
        body = {"model": "c", "max_tokens": 9, "messages": [TASK], "stream": True}
        answer = client.post(f"{server.url}/messages", json=body)
    assert answer.content == b"".join(pieces)


@pytest.mark.parametrize("stream", [False, True])
def test_stop_ends_run_with_reason(stream: bool) -> None:
    tried, guard = message(says("I try"), uses("fly", "x")), make(recover=RecoveryPolicy(on_fail="stop"))
    with serving(script(tried, stream=stream)) as server, Asker(server, guard) as asker:
        got = asker.ask([TASK], stream=stream)
    assert got.content[-1].text.startswith("[guard] The run was stopped:")
    assert got.stop_reason == "end_turn"
    assert asker.sessions[0].stop_reason


@pytest.mark.parametrize("stream", [False, True])
def test_rejected_end_is_regenerated(stream: bool) -> None:
    guard = make(
        recover=RecoveryPolicy(on_fail="rollback"),
        localizer=First(1),
        accept=lambda run: run.steps[-1].content.startswith("Seat"),
    )
    answers = [message(says("No idea.")), message(says("Seat 4 is booked."), id="msg_2")]
    with serving(script(*answers, stream=stream)) as server, Asker(server, guard, buffer="all") as asker:
        got = asker.ask([TASK], stream=stream)
    assert [block.text for block in got.content] == ["Seat 4 is booked."]


@pytest.mark.parametrize("cut", [1, 4, -1, -2])
def test_interrupted_stream_is_not_recorded_as_answer(cut: int) -> None:
    pieces = events(message(says("Now"), uses("book", "b", seat=4)))[:cut]
    with serving(lambda body: pieces) as server, Asker(server, make()) as asker:
        seen = []
        with (
            pytest.raises(httpx2.RemoteProtocolError),
            asker.client.messages.create(
                model="c", max_tokens=9, messages=[TASK], tools=TOOLS, stream=True
            ) as flow,
        ):
            seen.extend(flow)
        assert not any(
            one.type == "content_block_start" and one.content_block.type == "tool_use" for one in seen
        )
        assert not asker.sessions[0].has_ended


def test_error_in_stream_is_forwarded() -> None:
    error = b'event: error\ndata: {"type":"error","error":{"type":"overloaded_error","message":"busy"}}\n\n'
    broken = [*events(message(says("a")))[:3], error]
    with (
        serving(lambda body: broken) as server,
        Asker(server, make()) as asker,
        pytest.raises(anthropic.APIStatusError, match="busy"),
    ):
        asker.ask([TASK], stream=True)


def test_disabled_tools_stay_defined_but_are_not_allowed() -> None:
    dialect, body = AnthropicAdapter(), {"tools": TOOLS, "tool_choice": {"type": "tool", "name": "book"}}
    assert dialect.remove_tools(body, {"book"}) == {"tools": TOOLS[1:], "tool_choice": {"type": "auto"}}
    assert dialect.remove_tools(body, {"book", "find"}) == {**body, "tool_choice": {"type": "none"}}
    assert dialect.remove_tools(body, {"other"}) is body


def test_history_is_recognised_with_any_cache_marks() -> None:
    key = AnthropicAdapter().build_item_key
    marked = {"type": "text", "text": "Hi", "cache_control": {"type": "ephemeral"}}
    assert key({"role": "user", "content": [marked]}) == key({"role": "user", "content": "Hi"})
    result = {"type": "tool_result", "tool_use_id": "t", "content": [{"type": "text", "text": "4"}]}
    plain = {**result, "content": "4", "cache_control": {"type": "ephemeral"}}
    assert key({"role": "user", "content": [result]}) == key({"role": "user", "content": [plain]})
    failed = {**plain, "is_error": True}
    assert key({"role": "user", "content": [plain]}) != key({"role": "user", "content": [failed]})
    call = uses("find", "t", where="x")
    given = {"role": "assistant", "content": [thinks("a"), says("I look."), call]}
    assert key(given) == key({"role": "assistant", "content": [says("I look."), {**call, "caller": None}]})


def test_asynchronous_client_is_guarded() -> None:
    fly, book = message(uses("fly", "x")), message(uses("book", "b", seat=4), id="msg_2")

    async def ask(base: str) -> Any:
        transport = make(recover=RecoveryPolicy(on_fail="rollback")).atransport()
        http = DefaultAsyncHttpxClient(transport=transport)
        async with AsyncAnthropic(base_url=base, api_key="k", max_retries=0, http_client=http) as client:
            asked: Any = {"model": "c", "max_tokens": 9, "messages": [TASK], "tools": TOOLS}
            async with client.messages.stream(**asked) as flow:
                return await flow.get_final_message()

    with serving(script(fly, book, stream=True)) as server:
        got = asyncio.run(ask(server.url.removesuffix("/v1")))
    assert [block.name for block in got.content] == ["book"]


def test_failed_tool_is_recorded_as_error() -> None:
    result = {"type": "tool_result", "tool_use_id": "t", "content": "no", "is_error": True}
    items = AnthropicAdapter().extract_items(
        {
            "messages": [
                {"role": "assistant", "content": [uses("find", "t")]},
                {"role": "user", "content": [result, says("Go on.")]},
            ]
        }
    )
    assert [len(one["content"]) for one in items] == [1, 1, 1]
    assert AnthropicAdapter().split_turns(items, 0) == [(0, 2), (2, 3)]
    assert AnthropicAdapter().build_step(items[:2], "assistant").observations[0].is_error is True
