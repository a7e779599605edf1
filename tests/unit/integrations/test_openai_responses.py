"""The Responses API under the guard, with resent items and with stored responses."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient
from pydantic import BaseModel

from agentguard.guard import Guard
from agentguard.recover.recovery_policy import RecoveryPolicy
from tests.unit.integrations.openai_responses_server import Item, Model, called, events, response, said, whole
from tests.unit.integrations.openai_server import Raw, Server, serving
from tests.unit.integrations.test_loop import First
from tests.unit.integrations.test_openai import World, make

TOOLS: list[Any] = [
    {"type": "function", "name": name, "parameters": {"type": "object", "properties": {}}, "strict": False}
    for name in ("book", "find")
]
TASK = "Book seat 4."
DONE = [said("Seat 4 is booked.")]
BOOK = [called("book", "b", seat=4)]


def finds(count: int, first: int = 0) -> list[list[Item]]:
    return [[called("find", f"f{i}", where="aisle")] for i in range(first, first + count)]


class Asker(World):
    """A client of the Responses API; ``keeping`` names the previous response, else all items are resent."""

    def __init__(
        self, server: Server, guard: Guard, *, keeping: bool = False, stream: bool = False, **options: Any
    ) -> None:
        super().__init__(server, guard, **options)
        self.keeping, self.stream, self.ids = keeping, stream, [""]

    def create(self, **given: Any) -> Any:
        given = {"model": "m", "tools": TOOLS, **given}
        if not self.stream:
            return self.client.responses.create(**given)
        with self.client.responses.stream(**given) as stream:
            return stream.get_final_response()

    def run(self, task: str = TASK, *, most: int = 12) -> str:
        """Run an agent loop; return the last text."""
        before: dict[str, Any] = {"previous_response_id": self.ids[-1]} if self.ids[-1] else {}
        items: list[Any] = [{"role": "user", "content": task}]
        for _ in range(most):
            made = self.create(input=items, **before)
            self.ids.append(made.id)
            outputs = [self.output(item) for item in made.output if item.type == "function_call"]
            if not outputs:
                return str(made.output_text)
            if self.keeping:
                items, before = outputs, {"previous_response_id": made.id}
            else:
                items = [*items, *(item.model_dump(exclude_none=True) for item in made.output), *outputs]
        raise AssertionError("the loop did not end")

    def output(self, item: Any) -> Item:
        if item.name == "book":
            self.booked.append(json.loads(item.arguments)["seat"])
        text = "seat 4 is yours" if item.name == "book" else "nothing found"
        return {"type": "function_call_output", "call_id": item.call_id, "output": text}


def told(items: list[Item]) -> list[str]:
    return [item["content"] for item in items if str(item.get("content")).startswith("[guard]")]


def ids(items: list[Item]) -> list[str]:
    return [item["call_id"] for item in items if item.get("type") == "function_call"]


BOTH = pytest.mark.parametrize("keeping", [False, True])
ALL = pytest.mark.parametrize("stream", [False, True])


def test_clean_exchange_keeps_its_bytes() -> None:
    answer = json.dumps(response("r", DONE), indent=1).encode()
    with serving(lambda body: Raw(content=answer)) as server, Asker(server, make()) as world:
        raw = world.client.responses.with_raw_response.create(model="m", input=TASK)
        assert raw.content == answer
        assert server.raw[0] == raw.http_request.content


@BOTH
@ALL
def test_loop_rollback_is_permanent(keeping: bool, stream: bool) -> None:
    model = Model([*finds(3), [called("find", "w", where="window")], BOOK, DONE], stream=stream)
    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    with serving(model) as server, Asker(server, guard, keeping=keeping, stream=stream) as world:
        assert world.run() == "Seat 4 is booked."
        assert len(world.sessions) == 1
    assert ids(model.seen[2]) == ["f0", "f1"]
    assert [ids(items) for items in model.seen[3:]] == [["f0"], ["f0", "w"], ["f0", "w", "b"]]
    assert all(len(told(items)) == 1 for items in model.seen[3:])
    assert all(whole(items) for items in model.seen)
    if keeping:
        assert [body.get("previous_response_id") for body in server.bodies[2:]] == [
            "resp_2",
            "resp_1",
            "resp_4",
            "resp_5",
        ]


@BOTH
@ALL
def test_rollback_to_the_first_answer_restores_the_task(keeping: bool, stream: bool) -> None:
    guard = make(
        recover=RecoveryPolicy(on_fail="rollback"),
        localizer=First(1),
        accept=lambda run: run.steps[-1].content.startswith("Seat"),
    )
    model = Model([BOOK, [said("I do not know.", "m0")], [called("book", "b2", seat=4)], DONE], stream=stream)
    with serving(model) as server, Asker(server, guard, keeping=keeping, stream=stream) as world:
        assert world.run().endswith("Seat 4 is booked.")
        assert world.booked == [4]
        assert world.sessions[0].has_ended
    assert ids(model.seen[-1]) == []
    assert "already taken effect" in told(model.seen[-1])[-1]
    assert "previous_response_id" not in server.bodies[-1]


@BOTH
@ALL
def test_unknown_tool_is_refused_before_client_sees_it(keeping: bool, stream: bool) -> None:
    model = Model([[said("I try."), called("fly", "x")], BOOK, DONE], stream=stream)
    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    with serving(model) as server, Asker(server, guard, keeping=keeping, stream=stream) as world:
        assert world.run() == "Seat 4 is booked."
        assert world.booked == [4]
        assert len(world.sessions) == 1
    assert told(model.seen[1])
    assert "x" not in ids(model.seen[-1])
    assert "I try." not in json.dumps(model.seen[-1]), "refused text stays out of the model's sight"


@BOTH
def test_second_task_is_a_second_run(keeping: bool) -> None:
    model = Model([BOOK, DONE, [said("Seat 5.")], [said("Seat 5 is booked.")]])
    guard = make(
        recover=RecoveryPolicy(on_fail="hint"),
        accept=lambda run: run.steps[-1].content.endswith("is booked."),
    )
    with serving(model) as server, Asker(server, guard, keeping=True) as world:
        world.run()
        assert world.run("And seat 5.") == "Seat 5 is booked."
    assert len(world.sessions) == 2
    assert server.bodies[-1]["previous_response_id"] == "resp_3", "the refused answer, and why, are in sight"
    assert [len(told(items)) for items in model.seen] == [0, 0, 0, 1]


@BOTH
@ALL
def test_stop_is_a_clear_final_answer_and_run_can_continue(keeping: bool, stream: bool) -> None:
    model = Model([*finds(3), DONE], stream=stream)
    guard = make(recover=RecoveryPolicy(on_fail="stop"))
    with serving(model) as server, Asker(server, guard, keeping=keeping, stream=stream) as world:
        assert world.run().startswith("[guard] The run was stopped:")
        assert len(model.seen) == 3
        if keeping:
            assert world.run("Go on.") == "Seat 4 is booked."
            assert whole(model.seen[-1])


@ALL
def test_stop_before_a_call_is_a_final_answer(stream: bool) -> None:
    model = Model([[said("I try."), called("fly", "x")]], stream=stream)
    with (
        serving(model) as server,
        Asker(server, make(recover=RecoveryPolicy(on_fail="stop")), stream=stream) as world,
    ):
        assert "[guard] The run was stopped:" in world.run()


def test_clean_stream_keeps_its_bytes() -> None:
    pieces = events(response("r", [said("One moment."), *BOOK]))
    with serving(lambda body: pieces) as server, Asker(server, make()) as world:
        ask = world.client.responses.with_streaming_response.create
        raw = ask(model="m", input=TASK, stream=True).__enter__()
        assert raw.read() == b"".join(pieces)
        raw.close()


def test_events_of_a_retried_stream_are_one_response() -> None:
    model = Model([[said("I try.", "m1"), called("fly", "x")], [said("Now I.", "m2"), *BOOK]], stream=True)
    with serving(model) as server, Asker(server, make(recover=RecoveryPolicy(on_fail="rollback"))) as world:
        seen: list[Any] = list(world.client.responses.create(model="m", input=TASK, tools=TOOLS, stream=True))
    assert [event.sequence_number for event in seen] == list(range(len(seen)))
    assert [event.type for event in seen].count("response.created") == 1
    assert seen[-1].type == "response.completed"
    assert seen[-1].response.id == seen[0].response.id == "resp_1"
    added = [event for event in seen if event.type == "response.output_item.added"]
    assert [event.output_index for event in added] == [0, 1, 2]
    assert [item.type for item in seen[-1].response.output] == ["message", "message", "function_call"]
    assert "fly" not in "".join(str(event) for event in seen)


def test_refused_answer_is_hidden_in_buffered_mode() -> None:
    class Seat(BaseModel):
        seat: int

    guard = make(recover=RecoveryPolicy(on_fail="hint"), accept=lambda run: "4" in run.steps[-1].content)
    model = Model([[said('{"seat": 9}')], [said('{"seat": 4}')]], stream=True)
    with serving(model) as server, Asker(server, guard) as world:
        stream = world.client.responses.stream(model="m", input=TASK, text_format=Seat)
        made = stream.__enter__().get_final_response()
    assert made.output_parsed == Seat(seat=4)
    assert made.id == "resp_2"


def test_parsed_responses_are_judged() -> None:
    class Seat(BaseModel):
        seat: int

    guard = make(recover=RecoveryPolicy(on_fail="hint"), accept=lambda run: "4" in run.steps[-1].content)
    with (
        serving(Model([[said('{"seat": 9}')], [said('{"seat": 4}')]])) as server,
        Asker(server, guard) as world,
    ):
        made = world.client.responses.parse(model="m", input=TASK, text_format=Seat)
    assert made.output_parsed == Seat(seat=4)


@pytest.mark.parametrize("cut", [1, 4, -1])
def test_interrupted_stream_is_not_recorded_as_answer(cut: int) -> None:
    pieces = events(response("r", [said("One moment."), *BOOK]))[:cut]
    with serving(lambda body: pieces) as server, Asker(server, make()) as world:
        seen: list[Any] = []
        with pytest.raises(openai.APIConnectionError):
            seen.extend(world.client.responses.create(model="m", input=TASK, tools=TOOLS, stream=True))
        assert "function_call" not in "".join(event.type for event in seen)
        assert not world.sessions[0].has_ended


@ALL
def test_incomplete_response_is_not_an_end(stream: bool) -> None:
    made = response("r", DONE, status="incomplete")
    with serving(lambda body: events(made) if stream else made) as server, Asker(server, make()) as world:
        given: Any = world.client.responses.create(model="m", input=TASK, stream=stream)
        last = list(given)[-1].response if stream else given
        assert last.status == "incomplete"
        assert not world.sessions[0].has_ended


def test_truncated_streamed_response_is_not_an_end_despite_completed_event() -> None:
    made = response("r", DONE, status="incomplete")  # as vLLM 0.32 streams it
    pieces = [piece.replace(b"response.incomplete", b"response.completed") for piece in events(made)]
    with serving(lambda body: pieces) as server, Asker(server, make()) as world:
        last: Any = list(world.client.responses.create(model="m", input=TASK, stream=True))[-1]
        assert (last.type, last.response.status) == ("response.completed", "incomplete")
        assert not world.sessions[0].has_ended


def test_lost_answer_frees_its_calls_when_client_retries() -> None:
    model = Model([finds(1)[0], BOOK, [called("book", "b2", seat=4)], DONE])
    with serving(model) as server, Asker(server, make()) as world:
        first = world.create(input=TASK)
        given = {"previous_response_id": first.id, "input": [world.output(first.output[0])]}
        world.create(**given)
        again = world.create(**given, extra_headers={"x-stainless-retry-count": "1"})
        world.create(previous_response_id=again.id, input=[world.output(again.output[0])])
    assert len(world.sessions) == 1
    assert [effect.state for effect in world.sessions[0].ledger.effects()] == ["done"]


def test_other_item_and_call_types_are_supported() -> None:
    thought = {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "Look first."}]}
    search = {"type": "web_search_call", "id": "ws", "status": "completed"}
    shell = {"type": "custom_tool_call", "id": "ct", "call_id": "c", "name": "find", "input": "aisle"}
    model = Model([[thought, search, shell], DONE])
    with serving(model) as server, Asker(server, make()) as world:
        made = world.create(input=[{"role": "user", "content": [{"type": "input_text", "text": TASK}]}])
        kept = [item.model_dump(exclude_none=True) for item in made.output if item.type == "custom_tool_call"]
        output = {
            "type": "custom_tool_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "1"}],
        }
        first = {"role": "user", "content": [{"type": "input_text", "text": TASK}]}
        world.create(input=[first, *kept, output])
        step = world.sessions[0].run.steps[1]
    assert len(world.sessions) == 1, "a client may leave out reasoning"
    assert (step.tool_calls[0].name, step.observations[0].content) == ("find", "1")


@pytest.mark.parametrize("more", [{"background": True}, {"conversation": "conv_1"}])
def test_excluded_requests_pass_unguarded(more: Any) -> None:
    with serving(Model([[called("fly", "x")]])) as server, Asker(server, make()) as world:
        assert world.create(input=TASK, **more).output[0].name == "fly"
    assert world.sessions == []


def test_unknown_previous_response_is_continued() -> None:
    model = Model([*finds(3), DONE])
    model.kept["resp_old"] = [{"role": "user", "content": "Hello"}]
    guard = make(recover=RecoveryPolicy(on_fail="restart"))
    with serving(model) as server, Asker(server, guard, keeping=True) as world:
        world.ids.append("resp_old")
        assert world.run() == "Seat 4 is booked."
    assert server.bodies[-1]["previous_response_id"] == "resp_old"
    assert ids(model.seen[-1]) == []


@ALL
def test_asynchronous_client_is_guarded(stream: bool) -> None:
    async def main(url: str) -> Any:
        transport = make(recover=RecoveryPolicy(on_fail="rollback")).atransport()
        http = DefaultAsyncHttpxClient(transport=transport)
        async with AsyncOpenAI(base_url=url, api_key="k", max_retries=0, http_client=http) as client:
            if not stream:
                return await client.responses.create(model="m", input=TASK, tools=TOOLS)
            async with client.responses.stream(model="m", input=TASK, tools=TOOLS) as made:
                return await made.get_final_response()

    with serving(Model([[called("fly", "x")], BOOK], stream=stream)) as server:
        made = asyncio.run(main(server.url))
    assert [item.name for item in made.output] == ["book"]
