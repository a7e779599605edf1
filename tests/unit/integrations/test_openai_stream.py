"""Streamed chat completions under the guard: forwarded and buffered parts, and the view of a retry."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given, settings, strategies as st
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import BaseModel

from agentguard.model_api.sse import EventReader
from agentguard.recover.recovery_policy import RecoveryPolicy
from tests.unit.integrations.openai_server import Body, Raw, call, chunks, say, serving
from tests.unit.integrations.test_loop import First, whole
from tests.unit.integrations.test_openai import TASK, TOOLS, World, finds, ids, make, result, told

FLY = {**say("I try"), **call("fly", "x")}
BOOK = {**say("Now I"), **call("book", "b", seat=4)}
GOOD = [FLY, BOOK, say("Seat 4 is booked.")]


def streams(messages: list[Body], **more: Any) -> Any:
    made = iter([chunks(m, id=f"chatcmpl-{i}", **more) for i, m in enumerate(messages)])
    return lambda body: next(made)


def refusing(**parts: Any) -> Any:
    return make(recover=RecoveryPolicy(on_fail="rollback"), **parts)


def read(stream: Any) -> list[Any]:
    return list(stream)


def valid(seen: list[Any]) -> None:
    """Check that a stream is one completion: one id, one role at the start, and one finish at the end."""
    assert len({chunk.id for chunk in seen}) == 1
    choices = [choice for chunk in seen for choice in chunk.choices]
    assert [i for i, choice in enumerate(choices) if choice.delta.role] == [0]
    assert [i for i, choice in enumerate(choices) if choice.finish_reason] == [len(choices) - 1]


def text(seen: list[Any]) -> str:
    return "".join(choice.delta.content or "" for chunk in seen for choice in chunk.choices)


def test_clean_stream_keeps_its_bytes() -> None:
    pieces = [b": hello\r\n\r\n", *chunks({**say("One moment"), **call("find", "f", where="x")}, usage=True)]
    pieces[2] = pieces[2].replace(b"\n\n", b"\r\n\r\n")
    with serving(lambda body: pieces) as server, World(server, make()) as world:
        body = {"model": "m", "messages": [TASK], "stream": True}
        answer = httpx2.Client(transport=world.transport).post(f"{server.url}/chat/completions", json=body)
    assert answer.content == b"".join(pieces)
    assert answer.headers["content-type"] == "text/event-stream"


def test_refused_call_is_hidden_and_next_answer_follows_in_stream() -> None:
    with serving(streams(GOOD)) as server, World(server, refusing()) as world:
        seen = read(world.ask([TASK], stream=True))
    valid(seen)
    assert text(seen) == "I try \n\nNow I "
    names = [c.function.name for chunk in seen for c in chunk.choices[0].delta.tool_calls or () if c.function]
    assert names == ["book", None]
    assert told(server.bodies[1])


def test_sdk_stream_helper_accumulates_a_retried_stream() -> None:
    with serving(streams(GOOD, usage=True)) as server, World(server, refusing()) as world:
        messages: list[Any] = [TASK]
        for _ in range(2):
            with world.client.chat.completions.stream(
                model="m", messages=messages, tools=TOOLS, stream_options={"include_usage": True}
            ) as stream:
                last = stream.get_final_completion()
            message = last.choices[0].message
            messages += [message, *(result(one, "seat 4 is yours") for one in message.tool_calls or ())]
    assert last.choices[0].message.content == "Seat 4 is booked. "
    assert last.usage is not None
    assert last.usage.total_tokens == 12
    sent = server.bodies[2]["messages"]
    assert whole(sent)
    assert [m["content"] for m in sent if m["role"] == "assistant"] == ["Now I "], "refused text stays out"
    assert len(world.sessions) == 1
    assert world.sessions[0].has_ended


def test_loop_in_streams_is_rolled_back_permanently() -> None:
    wanted = [*finds(0, 3), call("book", "b", seat=4), say("Seat 4 is booked.")]
    with serving(streams(wanted)) as server, World(server, refusing()) as world:
        messages: list[Any] = [TASK]
        for _ in range(5):
            with world.client.chat.completions.stream(model="m", messages=messages, tools=TOOLS) as stream:
                message = stream.get_final_completion().choices[0].message
            messages += [message, *(result(one, "nothing found") for one in message.tool_calls or ())]
    assert ids(server.bodies[-1]) == ["f0", "b"]
    assert whole(server.bodies[-1]["messages"])


def test_rejected_end_continues_in_the_same_stream() -> None:
    guard = refusing(localizer=First(1), accept=lambda run: run.steps[-1].content.startswith("Seat"))
    with (
        serving(streams([say("No idea."), say("Seat 4 is booked.")])) as server,
        World(server, guard) as world,
    ):
        seen = read(world.ask([TASK], stream=True))
    valid(seen)
    assert text(seen) == "No idea. \n\nSeat 4 is booked. "


@pytest.mark.parametrize("json", [False, True])
def test_refused_answer_is_hidden_in_buffered_mode(json: bool) -> None:
    guard = refusing(localizer=First(1), accept=lambda run: run.steps[-1].content.startswith("Seat"))
    more: Any = {"response_format": {"type": "json_object"}} if json else {}
    with (
        serving(streams([say("No idea."), say("Seat 4 is booked.")])) as server,
        World(server, guard, **({} if json else {"buffer": "all"})) as world,
    ):
        seen = read(world.ask([TASK], stream=True, **more))
    valid(seen)
    assert text(seen) == "Seat 4 is booked. "


def test_stop_ends_stream_with_reason() -> None:
    guard = make(recover=RecoveryPolicy(on_fail="stop"))
    with serving(streams([*finds(0, 3), FLY])) as server, World(server, guard) as world:
        messages: list[Any] = [TASK]
        for i in range(3):
            seen = read(world.ask(messages, stream=True))
            messages += [{"role": "assistant", **finds(i, 1)[0]}]
            messages += [{"role": "tool", "tool_call_id": f"f{i}", "content": "nothing found"}]
        seen = read(world.ask(messages, stream=True))
        assert text(seen).startswith("[guard] The run was stopped:")
        valid(seen)
        assert len(server.bodies) == 3
    with serving(streams([FLY])) as server, World(server, guard) as world:
        seen = read(world.ask([TASK], stream=True))
    valid(seen)
    assert text(seen).startswith("I try \n\n[guard] The run was stopped:")
    assert seen[-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("cut", [1, 3, -1, -2])
def test_interrupted_stream_is_not_recorded_as_answer(cut: int) -> None:
    with serving(lambda body: chunks(BOOK)[:cut]) as server, World(server, make()) as world:
        seen: list[Any] = []
        with pytest.raises(openai.APIConnectionError):
            seen.extend(world.ask([TASK], stream=True))
        assert not any(chunk.choices[0].delta.tool_calls for chunk in seen)
        assert not world.sessions[0].has_ended
        with pytest.raises(openai.APIConnectionError):
            read(world.ask([TASK], stream=True))
    assert len(world.sessions) == 1, "asking again goes on with the run"
    assert world.sessions[0].ledger.effects() == ()


def test_early_disconnect_lets_the_run_continue() -> None:
    with serving(streams([BOOK, say("ok")])) as server, World(server, make()) as world:
        with world.ask([TASK], stream=True) as stream:
            next(stream)
        assert text(read(world.ask([TASK], stream=True))) == "ok "
    assert len(world.sessions) == 1


def test_failed_retry_is_an_error_in_the_stream() -> None:
    given = iter([chunks(FLY), Raw(status=429, content=b"{}")])
    with serving(lambda body: next(given)) as server, World(server, refusing()) as world:
        stream = world.ask([TASK], stream=True)
        with pytest.raises(openai.APIError, match="status 429"):
            read(stream)


def test_error_in_stream_is_forwarded() -> None:
    broken = [*chunks(say("a"))[:2], b'data: {"error": {"message": "overloaded"}}\n\n']
    with serving(lambda body: broken) as server, World(server, make()) as world:
        stream = world.ask([TASK], stream=True)
        with pytest.raises(openai.APIError, match="overloaded"):
            read(stream)


@pytest.mark.parametrize("on_error", ["fail_open", "fail_closed"])
def test_guard_error_at_end_of_stream_follows_on_guard_error(on_error: Any, monkeypatch: Any) -> None:
    with (
        serving(streams([FLY])) as server,
        World(server, make(recover=RecoveryPolicy(on_guard_error=on_error))) as world,
    ):
        stream = world.ask([TASK], stream=True)
        next(stream)
        monkeypatch.setattr(world.sessions[0], "propose", None)
        if on_error == "fail_open":
            assert read(stream)[-1].choices[0].finish_reason == "tool_calls"
        else:
            with pytest.raises(openai.APIError, match="guard failed"):
                read(stream)
        assert len(world.transport.interceptor.failures) == 1


def test_chunks_of_unknown_shape_pass_unguarded() -> None:
    odd = b'data: {"id": "x", "choices": ["?"]}\n\n'
    pieces = [*chunks(FLY)[:2], odd, *chunks(FLY)[2:]]
    body = {"model": "m", "messages": [TASK], "stream": True, "tools": TOOLS}
    transport = refusing().transport(inner=Pieces([pieces]))
    with httpx2.Client(transport=transport) as client:
        assert client.post("http://model/v1/chat/completions", json=body).content == b"".join(pieces)
    assert len(transport.interceptor.failures) == 1


class Pieces(httpx2.BaseTransport):
    """Transport that answers with streams in given pieces."""

    def __init__(self, answers: list[list[bytes]]) -> None:
        self.answers = iter(answers)

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        head = {"content-type": "text/event-stream"}
        return httpx2.Response(200, headers=head, content=iter(next(self.answers)))


@pytest.mark.slow
def test_stream_is_equal_for_every_split_of_bytes() -> None:
    first, second = b"".join(chunks(FLY)), b"".join(chunks(BOOK, id="chatcmpl-2"))
    body = {"model": "m", "messages": [TASK], "stream": True, "tools": TOOLS}
    guard, wanted = refusing(detectors={"unknown_tool": None}), None
    for cut in range(max(len(first), len(second))):
        pieces = Pieces([[first[:cut], first[cut:]], [second[:cut], second[cut:]]])
        with httpx2.Client(transport=guard.transport(inner=pieces)) as client:
            seen = client.post("http://model/v1/chat/completions", json=body).content
        wanted = wanted or seen
        assert seen == wanted
    assert b"fly" not in seen
    assert b"book" in seen


def test_stream_is_parsed_byte_by_byte_over_a_socket() -> None:
    answers = iter([[bytes([one]) for one in b"".join(chunks(message))] for message in (FLY, BOOK)])
    with serving(lambda body: next(answers)) as server, World(server, refusing()) as world:
        seen = read(world.ask([TASK], stream=True))
    valid(seen)
    assert text(seen) == "I try \n\nNow I "


@given(st.data())
@settings(max_examples=200, deadline=None)
def test_event_boundaries_do_not_depend_on_reads(data: Any) -> None:
    end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    lines = data.draw(st.lists(st.sampled_from([b"data: {}", b": c", b"data: \xc3\xa9", b"event: x", b""])))
    whole_bytes = end.join(lines) + end + end
    cut = data.draw(st.integers(0, len(whole_bytes)))
    events = EventReader()
    made = [*events.feed(whole_bytes[:cut]), *events.feed(whole_bytes[cut:])]
    assert b"".join(made) + events.remainder == whole_bytes
    once = EventReader()
    wanted = [e.strip() for e in once.feed(whole_bytes) if e.strip()]
    assert [e.strip() for e in made if e.strip()] == wanted


def test_asynchronous_client_streams_equally() -> None:
    class Seat(BaseModel):
        seat: int

    async def main(url: str) -> tuple[list[Any], Any]:
        http = DefaultAsyncHttpxClient(transport=refusing().atransport())
        async with AsyncOpenAI(base_url=url, api_key="k", max_retries=0, http_client=http) as client:
            stream = await client.chat.completions.create(
                model="m", messages=[TASK], tools=TOOLS, stream=True
            )
            seen = [chunk async for chunk in stream]
            async with client.chat.completions.stream(
                model="m", messages=[{"role": "user", "content": "Which?"}], response_format=Seat
            ) as parsing:
                last = await parsing.get_final_completion()
            broken = await client.chat.completions.create(model="m", messages=[TASK], stream=True)
            with pytest.raises(openai.APIConnectionError):
                [chunk async for chunk in broken]
        return seen, last

    answers = iter([chunks(FLY), chunks(BOOK), chunks(say('{"seat":4}')), chunks(BOOK)[:-1]])
    with serving(lambda body: next(answers)) as server:
        seen, last = asyncio.run(main(server.url))
    valid(seen)
    assert text(seen) == "I try \n\nNow I "
    assert last.choices[0].message.parsed == Seat(seat=4)
