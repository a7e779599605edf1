import asyncio
import json

import pytest

from agentguard.backends.base import BackendRequest
from agentguard.backends.stream_resumption import (
    NotResumable,
    build_resume_request,
    parse_partial_response,
)
from agentguard.errors import BackendError, Stalled
from tests.unit.backends.pool_fixtures import DONE, Scene, event, notes, ok, read, refuse, stream, texts

GOES_ON = {"a": {"resumable": True}, "b": {"resumable": True}, "c": {"resumable": True}}
QUESTION = {"model": "m", "messages": [{"role": "user", "content": "q"}], "stream": True, "max_tokens": 50}


def scene(*, per=GOES_ON, **more):
    return Scene(per=per, load_balancing="priority", **more)


def asks(pool_scene, **changes):
    body = json.dumps({**QUESTION, **changes}).encode()
    return pool_scene.ask(stream=True, body=body)


@pytest.mark.parametrize("then", ["cut", "stall", "junk", "close"])
def test_stream_cut_after_first_token_is_resumed_as_one_stream(then):
    """LiteLLM #40404: there, a cut, stalled or malformed stream never reaches the fallback."""
    here = scene(a=[stream("The answer", " is", then=then)], b=[stream(" forty", "-two.", id="id-2")])

    async def main():
        answer = await asks(here)
        got, error = await read(answer)
        assert error is None
        assert texts(got) == ({"id-1"}, "The answer is forty-two.", True)
        assert notes(answer)["continued"] == "b"
        assert sum(chunk == b": agentguard: continued by b\n\n" for chunk in got) == 1
        assert got[-1] == DONE
        sent = json.loads(here.ones["b"].asked[0].body)
        assert sent["messages"][-1] == {"role": "assistant", "content": "The answer is"}
        assert (sent["continue_final_message"], sent["add_generation_prompt"]) == (True, False)
        assert sent["max_tokens"] == 48
        assert here.kinds()["continued"] == 1

    here.run(main)


def test_resumed_stream_has_one_role_and_total_usage():
    here = scene(a=[stream("one", " two", then="cut")], b=[stream(" three", id="id-2")])

    async def main():
        got, _ = await read(await asks(here))
        chunks = [json.loads(c.removeprefix(b"data: ")) for c in got if c.startswith(b"data: {")]
        assert sum("role" in choice["delta"] for chunk in chunks for choice in chunk["choices"]) == 1
        usage = next(chunk["usage"] for chunk in chunks if chunk.get("usage"))
        assert usage == {"prompt_tokens": 8, "completion_tokens": 3, "total_tokens": 11}

    here.run(main)


def test_white_space_at_the_joint_appears_once():
    here = scene(a=[stream("one", " ", then="cut")], b=[stream(" two", id="id-2")])

    async def main():
        got, _ = await read(await asks(here))
        assert texts(got)[1] == "one two"
        assert json.loads(here.ones["b"].asked[0].body)["messages"][-1]["content"] == "one"

    here.run(main)


def test_leading_white_space_is_not_sent():
    """vLLM #9547, transformers #34214: a template that strips them hides the text to continue."""
    here = scene(a=[stream("\n\none", " \n", then="cut")], b=[stream(" \ntwo", id="id-2")])

    async def main():
        got, _ = await read(await asks(here))
        assert texts(got)[1] == "\n\none \ntwo"
        assert json.loads(here.ones["b"].asked[0].body)["messages"][-1]["content"] == "one"

    here.run(main)


def test_stream_can_be_resumed_twice():
    here = scene(
        a=[stream("one", then="cut")], b=[stream(" two", id="x", then="cut")], c=[stream(" three", id="y")]
    )

    async def main():
        got, error = await read(await asks(here))
        assert (texts(got), error) == (({"id-1"}, "one two three", True), None)
        assert json.loads(here.ones["c"].asked[0].body)["messages"][-1]["content"] == "one two"

    here.run(main)


def test_number_of_resumptions_is_bounded():
    here = scene(a=[stream("x", then="cut")])

    async def main():
        got, error = await read(await asks(here))
        assert (texts(got)[1:], isinstance(error, BackendError)) == (("xxx", False), True)
        assert len(here.ones["a"].asked) == 3

    here.run(main)


def test_only_resumable_replicas_are_used_or_the_same_one():
    per = {"a": {"resumable": True}}
    here = scene(per=per, a=[stream("one", then="cut"), stream(" two", id="x")], b=[ok()])

    async def main():
        got, error = await read(await asks(here))
        assert (texts(got)[1:], error) == (("one two", True), None)
        assert here.counts() == {"a": 2, "b": 0}

    here.run(main)


def test_stream_is_not_resumed_without_resumable_replica():
    here = scene(per={}, a=[stream("one", then="cut")], b=[ok()])

    async def main():
        got, error = await read(await asks(here))
        assert (texts(got)[1:], error.stage) == (("one", False), "committed")
        assert here.counts()["b"] == 0

    here.run(main)


@pytest.mark.parametrize("other", [refuse(400), ok(), stream(then="cut")])
def test_failed_resumption_keeps_the_first_error(other):
    here = scene(a=[stream("one", then="stall")], b=[other], order={"retry": "off"})

    async def main():
        got, error = await read(await asks(here))
        assert texts(got)[1:] == ("one", False)
        assert isinstance(error, Stalled)
        assert error.stage == "committed"

    here.run(main)


def test_begun_tool_call_is_not_resumed():
    call = {"tool_calls": [{"index": 0, "id": "c", "function": {"name": "book", "arguments": "{"}}]}
    here = scene(a=[stream("one", then="cut", before=[event(call)])], b=[ok()])

    async def main():
        _, error = await read(await asks(here))
        assert isinstance(error, BackendError)
        assert here.counts()["b"] == 0

    here.run(main)


def test_resumption_consumes_retry_budget():
    budget = {"reserve": 0, "ratio": 0, "per_second": 0}
    here = scene(a=[stream("one", then="cut")], b=[ok()], order={"retry": {"budget": budget}})

    async def main():
        _, error = await read(await asks(here))
        assert isinstance(error, BackendError)
        assert here.counts()["b"] == 0

    here.run(main)


def test_deadline_covers_resumption():
    slow = stream(*("word " * 100).split(), gap=1.0)
    here = scene(a=[stream("one", then="cut")], b=[slow], order={"timeout": {"total_s": 10}})

    async def main():
        _, error = await read(await asks(here))
        assert error.code == "deadline_exceeded"
        assert 10 <= here.clock.now() < 10.25

    here.run(main)


def test_cancellation_during_resumption_ends_it():
    here = scene(a=[stream("one", then="cut")], b=[stream("x", first=50.0)])

    async def main():
        answer = await asks(here)
        task = asyncio.create_task(read(answer))
        await here.clock.sleep(5)
        assert here.ones["b"].open == 1
        task.cancel()
        await asyncio.wait({task})
        assert here.ones["b"].open == 0

    here.run(main)


def completion(text, finish=None, **more):
    choice = {"index": 0, "text": text, "finish_reason": finish}
    return b"data: " + json.dumps({"id": "cmpl-1", "choices": [choice], **more}).encode() + b"\n\n"


def test_completion_is_resumed_after_its_prompt():
    before = parse_partial_response("completions", completion("Once ") + completion("upon "))
    body = json.dumps({"prompt": "Tell: ", "max_tokens": 10, "min_tokens": 1}).encode()
    sent = json.loads(build_resume_request(BackendRequest(target="/completions", body=body), before))
    assert sent == {"prompt": "Tell: Once upon", "max_tokens": 8, "min_tokens": 0}
    assert before.trailing_whitespace == " "
    with pytest.raises(NotResumable, match="not text"):
        build_resume_request(BackendRequest(target="/", body=b'{"prompt": [1, 2]}'), before)


def test_empty_partial_response_repeats_the_request():
    before = parse_partial_response("chat", event({"role": "assistant", "content": ""}))
    sent = json.loads(
        build_resume_request(BackendRequest(target="/", body=json.dumps(QUESTION).encode()), before)
    )
    assert sent == QUESTION


@pytest.mark.parametrize(
    "shown",
    [
        event({"tool_calls": [{"index": 0}]}),
        event({"reasoning_content": "hm"}),
        event({"content": "x"}, finish="stop"),
        b'data: {"choices": [{"index": 1, "delta": {"content": "x"}}]}\n\n',
        b'data: {"choices": [{"index": 0, "delta": {"content": "x"}, "logprobs": {"content": [1]}}]}\n\n',
        b"data: {nonsense\n\n",
    ],
)
def test_only_plain_text_is_resumable(shown):
    with pytest.raises(NotResumable):
        parse_partial_response("chat", shown)


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"best_of": 2},
        {"logprobs": True},
        {"guided_json": {}, "structured_outputs": {"json": {}}},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required"},
        {"continue_final_message": True},
        {"messages": []},
        {"messages": "text"},
    ],
)
def test_unjoinable_request_is_not_resumed(more):
    before = parse_partial_response("chat", event({"content": "x"}))
    with pytest.raises(NotResumable):
        build_resume_request(
            BackendRequest(target="/", body=json.dumps({**QUESTION, **more}).encode()), before
        )


def test_messages_are_resent_unchanged():
    odd = b'{"messages": [ {"role":"user","content":"\\u00e9", "n": 1e2} ],  "temperature": 0.10}'
    before = parse_partial_response("chat", event({"content": "x"}))
    sent = build_resume_request(BackendRequest(target="/", body=odd), before)
    assert b'{"role":"user","content":"\\u00e9", "n": 1e2}' in sent
    assert b'"temperature":0.10' in sent
