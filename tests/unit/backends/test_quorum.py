import asyncio
import json

import pytest
from hypothesis import given, settings, strategies as st

from agentguard.errors import BackendError
from agentguard.model_api.canonicalization import canonicalize_response, canonicalize_stream
from tests.unit.backends.pool_fixtures import Scene, chat, event, fail, hang, notes, ok, read, stream, texts


def test_majority_wins_and_others_are_cancelled():
    scene = Scene(a=[ok("wrong")], b=[ok("right")], c=[ok("right ")])

    async def main():
        answer = await scene.ask(quorum_size=3)
        assert json.loads(answer.body)["choices"][0]["message"]["content"].strip() == "right"
        assert notes(answer)["voted"] == "2/3"
        assert scene.counts() == {"a": 1, "b": 1, "c": 1}

    scene.run(main)


def test_undecisive_replies_are_not_awaited():
    scene = Scene(a=[ok("x")], b=[ok("x")], c=[hang()])

    async def main():
        answer = await scene.ask(quorum_size=3)
        assert notes(answer)["voted"] == "2/3"
        assert scene.clock.now() < 1
        assert len(scene.ones["c"].cancelled) == 1

    scene.run(main)


def test_missing_majority_returns_first_reply_with_note():
    scene = Scene(a=[ok("one", 0.3)], b=[ok("two", 0.1)], c=[ok("three", 0.2)])

    async def main():
        answer = await scene.ask(quorum_size=3)
        assert answer.replica == "b"
        assert notes(answer) == {"voted": "1/3", "no_majority": "1"}

    scene.run(main)


def test_failed_replies_have_no_vote_and_all_failed_is_an_error():
    order = {"retry": "off"}
    scene = Scene(a=[fail()], b=[ok("x")], c=[ok("x")], order=order)

    async def main():
        assert notes(await scene.ask(quorum_size=3))["voted"] == "2/3"
        for one in scene.ones.values():
            one.script = [fail()]
        assert isinstance(await scene.attempt(quorum_size=3), BackendError)

    scene.run(main)


def test_hanging_reply_does_not_delay_a_tie_beyond_the_deadline():
    scene = Scene(a=[ok("x")], b=[ok("y")], c=[hang()], order={"retry": "off"})

    async def main():
        answer = await scene.ask(10.0, quorum_size=3)
        assert scene.clock.now() < 10.25
        assert notes(answer)["no_majority"] == "1"

    scene.run(main)


def test_votes_are_bounded():
    scene = Scene(
        a=[ok("x", 5)], b=[ok("x", 5)], c=[ok("x", 5)], quorum={"max_replicas": 2, "max_concurrent": 1}
    )

    async def main():
        found = await asyncio.gather(*(scene.ask(quorum_size=9) for _ in range(3)))
        assert sum(scene.counts().values()) == 4
        assert sorted(notes(one).get("not_voted", "") for one in found) == ["", "busy", "busy"]
        assert scene.pool.status()["quorum"] == 0

    scene.run(main)


def test_single_replica_is_not_voted():
    scene = Scene(a=[ok()])
    assert notes(scene.run(lambda: scene.ask(quorum_size=3))) == {"not_voted": "one replica"}


def test_votes_can_be_disabled():
    scene = Scene(a=[ok()], b=[ok()], quorum="off")
    assert notes(scene.run(lambda: scene.ask(quorum_size=3))) == {"not_voted": "off"}


def test_streamed_reply_is_voted_whole_and_forwarded_unchanged():
    scene = Scene(a=[stream("a", "b", id="1")], b=[stream("ab", id="2")], c=[stream("no", id="3")])

    async def main():
        answer = await scene.ask(quorum_size=3, stream=True)
        assert notes(answer)["voted"] == "2/3"
        got, error = await read(answer)
        assert (texts(got)[1:], error) == (("ab", True), None)

    scene.run(main)


def test_interrupted_stream_has_no_vote():
    scene = Scene(a=[stream("ab", then="cut")], b=[stream("ab")], c=[stream("ab")], order={"retry": "off"})

    async def main():
        answer = await scene.ask(quorum_size=3, stream=True)
        assert notes(answer)["voted"] == "2/3"
        assert answer.replica in ("b", "c")

    scene.run(main)


def test_cancellation_cancels_all_replies():
    scene = Scene(a=[hang()], b=[hang()], c=[hang()])

    async def main():
        task = asyncio.create_task(scene.ask(quorum_size=3))
        await scene.clock.sleep(2)
        task.cancel()
        await asyncio.wait({task})
        assert [one.cancelled for one in scene.ones.values()] == [[2.0]] * 3

    scene.run(main)


def call(arguments, id="c"):
    return [{"id": id, "type": "function", "function": {"name": "book", "arguments": arguments}}]


def test_tool_calls_are_compared_by_meaning():
    one = canonicalize_response("chat", chat(None, calls=call('{"a": 1, "b": 2}', "c1")))
    assert one == canonicalize_response("chat", chat("", calls=call('{"b":2,"a":1}', "c2"), name="y"))
    assert one != canonicalize_response("chat", chat(None, calls=call('{"a": 1, "b": 3}', "c1")))
    assert canonicalize_response("chat", chat("one")) != canonicalize_response("chat", chat("two"))


@pytest.mark.parametrize("api", ["chat", "completions", "messages", "responses", "embeddings", ""])
@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"nonsense", b'{"choices": 1}', b'{"content": [{}]}', b"\xff"]
)
def test_unreadable_replies_are_compared_by_bytes(api, body):
    assert canonicalize_response(api, body) == canonicalize_response(api, body)
    assert canonicalize_stream(api, body) == canonicalize_stream(api, body)
    assert canonicalize_response(api, body) != canonicalize_response("chat", chat("an answer"))


def test_ids_and_usage_do_not_affect_the_vote():
    one, two = ({"id": n, "usage": {"x": n}, "data": [1]} for n in (1, 2))
    assert canonicalize_response("", json.dumps(one).encode()) == canonicalize_response(
        "", json.dumps(two).encode()
    )
    assert canonicalize_response("", b'{"data": [1]}') != canonicalize_response("", b'{"data": [2]}')


def test_streamed_and_whole_messages_and_responses_are_equal():
    blocks = [
        {"type": "text", "text": "hi"},
        {"type": "tool_use", "id": "t", "name": "book", "input": {"a": 1}},
    ]
    events = [
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "h"}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "i"}},
        {"type": "content_block_start", "index": 1, "content_block": {**blocks[1], "input": {}}},
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": '{"a"'},
        },
        {
            "type": "content_block_delta",
            "index": 1,
            "delta": {"type": "input_json_delta", "partial_json": ":1}"},
        },
    ]
    streamed = b"".join(b"event: x\ndata: " + json.dumps(one).encode() + b"\n\n" for one in events)
    whole = json.dumps({"id": "m", "content": blocks}).encode()
    assert canonicalize_response("messages", whole) == canonicalize_stream("messages", streamed)

    output = [
        {"type": "reasoning", "id": "r"},
        {"type": "message", "id": "1", "content": [{"type": "output_text", "text": "hi"}]},
        {"type": "function_call", "id": "2", "call_id": "c", "name": "book", "arguments": '{"a": 1}'},
    ]
    done = {"type": "response.completed", "response": {"id": "resp", "output": output}}
    streamed = b"data: " + json.dumps(done).encode() + b"\n\n"
    assert canonicalize_response("responses", json.dumps({"output": output}).encode()) == canonicalize_stream(
        "responses", streamed
    )


@settings(max_examples=40, deadline=None)
@given(st.text(max_size=30), st.integers(1, 5))
def test_chunk_borders_do_not_affect_the_vote(text, size):
    parts = [text[at : at + size] for at in range(0, len(text), size)]
    streamed = b"".join(event({"content": part}) for part in parts) or event({"content": ""})
    assert canonicalize_response("chat", chat(text)) == canonicalize_stream("chat", streamed)
    pieces = [json.dumps({"choices": [{"index": 0, "text": part}]}).encode() for part in parts or [""]]
    whole = json.dumps({"choices": [{"index": 0, "text": text}]}).encode()
    assert canonicalize_response("completions", whole) == canonicalize_stream(
        "completions", b"".join(b"data: " + piece + b"\n\n" for piece in pieces)
    )
