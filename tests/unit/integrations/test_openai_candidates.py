"""Elected and repaired answers behind OpenAI's client: their streams, and their resent form."""

from __future__ import annotations

from typing import Any

import pytest

from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.recover.selective_redundancy import SelectiveRedundancy
from tests.unit.integrations.openai_responses_server import Model, called, said
from tests.unit.integrations.openai_server import Body, call, chunks, completion, say, serving
from tests.unit.integrations.test_openai import TASK, World, make, result, told
from tests.unit.integrations.test_openai_responses import Asker
from tests.unit.integrations.test_openai_stream import read, text, valid

SEAT: dict[str, Any] = {
    "type": "object",
    "properties": {"seat": {"type": "integer"}},
    "required": ["seat"],
}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "book", "parameters": SEAT}},
    {"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}},
]
NINE = {**say("I book nine"), **call("book", "nine", seat=9)}
FOUR = {**say("I book four"), **call("book", "four", seat=4)}
TEXT = {**say("I book it"), **call("book", "text", seat="4")}


def guarded(**recover: Any) -> Any:
    return make(recover=RecoveryPolicy(**{"on_fail": "roll_forward", **recover}))


def answers(messages: list[Body]) -> Any:
    """Return streams for streaming requests, and whole answers for others."""
    given = iter(messages)

    def give(body: Body) -> Any:
        message = next(given)
        usage = bool((body.get("stream_options") or {}).get("include_usage"))
        return chunks(message, id="chatcmpl-s", usage=usage) if body.get("stream") else completion(message)

    return give


def ask(world: World, messages: list[Any], **more: Any) -> list[Any]:
    made: Any = {"model": "m", "messages": messages, "tools": TOOLS, "stream": True, **more}
    return read(world.client.chat.completions.create(**made))


def calls_of(seen: list[Any]) -> list[tuple[str, str]]:
    """Return name and arguments of the calls in a stream, assembled as a client does."""
    made: dict[int, list[str]] = {}
    for chunk in seen:
        for one in chunk.choices[0].delta.tool_calls or () if chunk.choices else ():
            known = made.setdefault(one.index, ["", ""])
            known[0] += one.function.name or ""
            known[1] += one.function.arguments or ""
    return [(name, arguments) for name, arguments in made.values()]


def test_elected_answer_follows_in_stream_without_candidates() -> None:
    script = answers([NINE, FOUR, FOUR, say("Done.")])
    with serving(script) as server, World(server, guarded(redundancy=SelectiveRedundancy())) as world:
        seen = ask(world, [TASK], stream_options={"include_usage": True})
        bodies = list(server.bodies)
        message: Body = {"role": "assistant", "content": text(seen), **call("book", "four", seat=4)}
        ask(world, [TASK, message, result(_Call("four"), "seat 4 is yours")])
    valid([chunk for chunk in seen if chunk.choices])
    assert text(seen) == "I book nine \n\nI book four"
    assert calls_of(seen) == [("book", '{"seat": 4}')]
    assert seen[-1].usage.total_tokens == 12, "the elected answer's own, as was asked for"
    assert ["stream" in body for body in bodies] == [True, False, False]
    assert all("stream_options" not in body for body in bodies[1:])
    assert len(world.sessions) == 1, "the client's history is known"
    assert server.bodies[-1]["messages"][1]["content"] == "I book four", "the model is shown what was elected"
    assert len(world.sessions[0]) == 3


class _Call:
    def __init__(self, id: str) -> None:
        self.id = id


def test_undisputed_answer_is_streamed_unchanged() -> None:
    script = answers([FOUR, FOUR])
    with serving(script) as server, World(server, guarded(redundancy=SelectiveRedundancy())) as world:
        seen = ask(world, [TASK])
    valid(seen)
    assert text(seen) == "I book four "
    assert calls_of(seen) == [("book", '{"seat": 4}')]
    assert len(server.bodies) == 2


def test_buffered_mode_hides_losing_candidates() -> None:
    script = answers([NINE, FOUR, FOUR])
    with (
        serving(script) as server,
        World(server, guarded(redundancy=SelectiveRedundancy()), buffer="all") as world,
    ):
        seen = ask(world, [TASK])
    valid(seen)
    assert text(seen) == "I book four"


def test_repaired_call_is_streamed_once_without_repeated_text() -> None:
    script = answers([TEXT, say("Done.")])
    with serving(script) as server, World(server, guarded()) as world:
        seen = ask(world, [TASK])
        message: Body = {"role": "assistant", "content": text(seen), **call("book", "text", seat=4)}
        ask(world, [TASK, message, result(_Call("text"), "seat 4 is yours")])
    valid(seen)
    assert text(seen) == "I book it "
    assert calls_of(seen) == [("book", '{"seat":4}')]
    assert len(world.sessions) == 1
    assert "was repaired" in told(server.bodies[1])[0]


def test_refusal_and_election_may_occur_in_one_stream() -> None:
    fly = {**say("I fly"), **call("fly", "x")}
    script = answers([fly, NINE, FOUR, FOUR])
    guard = guarded(on_fail="reprompt", redundancy=SelectiveRedundancy())
    with serving(script) as server, World(server, guard) as world:
        seen = ask(world, [TASK])
    valid(seen)
    assert text(seen) == "I fly \n\nI book nine \n\nI book four"
    assert calls_of(seen) == [("book", '{"seat": 4}')]


def test_candidate_of_another_model_is_requested_by_name() -> None:
    block = {"recovery_block": {"models": ["large"], "prompts": ["Mind."], "temperatures": [0.2]}}
    script = answers([call("fly", "x"), FOUR])
    with serving(script) as server, World(server, guarded(on_fail=block)) as world:
        message = world.client.chat.completions.create(model="m", messages=[TASK], tools=TOOLS).choices[0]
    own, other = server.bodies
    assert message.message.tool_calls is not None
    assert message.message.tool_calls[0].id == "four"
    assert (own["model"], other["model"], other["temperature"]) == ("m", "large", 0.2)
    assert other["messages"] == [*own["messages"], {"role": "user", "content": "Mind."}]


@pytest.mark.parametrize("keeping", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_elected_response_is_one_response_for_the_client(stream: bool, keeping: bool) -> None:
    outputs = [
        [said("I book nine"), called("book", "nine", seat=9)],
        [said("I book four", "msg-4"), called("book", "four", seat=4)],
        [said("I book four"), called("book", "four2", seat=4)],
        [said("Seat 4 is booked.")],
    ]
    model = _Mixed(outputs)
    with (
        serving(model) as server,
        Asker(server, guarded(redundancy=SelectiveRedundancy()), keeping=keeping, stream=stream) as asker,
    ):
        asker.run()
    assert asker.booked == [4]
    assert len(asker.sessions) == 1
    last = [item for item in model.seen[-1] if item.get("type") == "function_call"]
    assert [item["call_id"] for item in last] == ["four"], "the model goes on from what was elected"


@pytest.mark.parametrize("keeping", [True, False])
@pytest.mark.parametrize("stream", [True, False])
def test_repaired_response_is_continued_by_the_model(stream: bool, keeping: bool) -> None:
    tools = [{"type": "function", "name": "book", "parameters": SEAT, "strict": False}]
    model = _Mixed([[said("I book"), called("book", "b", seat="4")], [said("Seat 4 is booked.")]])
    with serving(model) as server, Asker(server, guarded(), keeping=keeping, stream=stream) as asker:
        asker_tools, given = tools, asker.create
        asker.create = lambda **more: given(**{**more, "tools": asker_tools})  # type: ignore[method-assign]
        asker.run()
    assert asker.booked == [4]
    (call_,) = [item for item in model.seen[-1] if item.get("type") == "function_call"]
    assert call_["arguments"] == '{"seat":4}'
    assert any("was repaired" in str(item.get("content")) for item in model.seen[-1])


class _Mixed(Model):
    """Backend that streams only streaming requests."""

    def __call__(self, body: Body) -> Any:
        self._stream = bool(body.get("stream"))
        return super().__call__(body)
