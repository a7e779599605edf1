"""OpenAI's client under the guard: the real SDK, a scripted model behind a real socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any, Self

import openai
import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI
from pydantic import BaseModel

from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from tests.unit.integrations.openai_server import Body, Raw, Server, call, completion, say, serving
from tests.unit.integrations.test_loop import First, whole

TOOLS: list[Any] = [
    {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}
    for name in ("book", "find")
]
TASK: Any = {"role": "user", "content": "Book seat 4."}


class World:
    """A client, its model and its tools."""

    def __init__(self, server: Server, guard: Guard, **options: Any) -> None:
        self.sessions: list[Session] = []
        self.transport = guard.transport(on_run=self.sessions.append, **options)
        self.server = server
        self.client = OpenAI(
            base_url=server.url,
            api_key="k",
            max_retries=0,
            http_client=DefaultHttpxClient(transport=self.transport),
        )
        self.booked: list[int] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()

    def ask(self, messages: list[Any], **more: Any) -> Any:
        return self.client.chat.completions.create(model="m", messages=messages, tools=TOOLS, **more)

    def agent(self, messages: list[Any], *, most: int = 20, **more: Any) -> str:
        """Run a usual agent loop; return the last answer."""
        for _ in range(most):
            message = self.ask(messages, **more).choices[0].message
            messages.append(message)
            if not message.tool_calls:
                return message.content or ""
            messages += [result(one, self.do(one)) for one in message.tool_calls]
        raise AssertionError("the loop did not end")

    def do(self, one: Any) -> str:
        given = json.loads(one.function.arguments)
        if one.function.name == "book":
            self.booked.append(given["seat"])
            return f"seat {given['seat']} is yours"
        return "nothing found"


def result(one: Any, text: str) -> Body:
    return {"role": "tool", "tool_call_id": one.id, "content": text}


def make(**parts: Any) -> Guard:
    guard = Guard(**parts)
    guard.tool(effect="write", name="book")(len)
    guard.tool(effect="read", name="find")(len)
    return guard


def script(messages: Iterable[Body]) -> Callable[[Body], Body]:
    given = iter(messages)
    return lambda body: completion(next(given))


def finds(first: int, count: int) -> list[Body]:
    return [call("find", f"f{i}", where="aisle") for i in range(first, first + count)]


def texts(body: Body) -> list[str]:
    return [str(message.get("content")) for message in body["messages"]]


def told(body: Body) -> list[str]:
    return [text for text in texts(body) if text.startswith("[guard]")]


def ids(body: Body) -> list[str]:
    return [one["id"] for message in body["messages"] for one in message.get("tool_calls") or ()]


def test_clean_exchange_keeps_its_bytes() -> None:
    answer = b'{ "id":"x", "choices" : [{"index":0,"finish_reason":"stop","message":{"role":"assistant",\n'
    answer += b'"content":"ok","x":1e3}}], "big": 123456789012345678901234567890}'
    with serving(lambda body: Raw(content=answer)) as server, World(server, make()) as world:
        raw = world.client.chat.completions.with_raw_response.create(
            model="m",
            messages=[TASK],
            extra_body={"x_new": [1, {"y": None}]},
        )
        assert raw.content == answer
        assert raw.parse().choices[0].message.content == "ok"
        assert server.raw[0] == raw.http_request.content
        assert server.bodies[0]["x_new"] == [1, {"y": None}]


def test_compressed_answer_is_parsed_and_forwarded_unchanged() -> None:
    with (
        serving(lambda body: completion(say("ok")), compressed=True) as server,
        World(server, make()) as world,
    ):
        assert world.agent([TASK]) == "ok"
        assert world.sessions[0].has_ended


def test_loop_rollback_persists_in_later_requests() -> None:
    given = [
        *finds(0, 3),
        call("find", "w", where="window"),
        call("book", "b", seat=4),
        say("Seat 4 is booked."),
    ]
    with (
        serving(script(given)) as server,
        World(server, make(recover=RecoveryPolicy(on_fail="rollback"))) as world,
    ):
        messages: list[Any] = [TASK]
        assert world.agent(messages) == "Seat 4 is booked."
    before, after = server.bodies[2], server.bodies[3:]
    assert ids(before) == ["f0", "f1"]
    for body in after:
        assert whole(body["messages"])
        assert not {"f1", "f2"} & set(ids(body))
        assert len(told(body)) == 1
    assert len(messages) == 12, "the client keeps its own history"
    assert [r.plan.strategy for r in world.sessions[0].recoveries] == ["rollback"]
    assert [step.tool_calls[0].id for step in world.sessions[0].run.steps if step.tool_calls][-2:] == [
        "w",
        "b",
    ]


def test_unknown_tool_is_refused_before_client_sees_it() -> None:
    given = [call("fly", "x"), call("book", "b", seat=4), say("Seat 4 is booked.")]
    with (
        serving(script(given)) as server,
        World(server, make(recover=RecoveryPolicy(on_fail="rollback"))) as world,
    ):
        messages: list[Any] = [TASK]
        assert world.agent(messages) == "Seat 4 is booked."
    assert world.booked == [4]
    assert told(server.bodies[1]), "the model was asked again with the correction"
    assert "fly" not in json.dumps([m if isinstance(m, dict) else m.model_dump() for m in messages])


def test_effect_of_abandoned_branch_is_not_requested_again() -> None:
    given = [call("book", "b1", seat=4), *finds(0, 1), say("I do not know."), call("book", "b2", seat=4)]
    accept = lambda run: run.steps[-1].content.startswith("Seat")  # noqa: E731
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(1), accept=accept)
    with serving(script([*given, say("Seat 4 is booked.")])) as server, World(server, guard) as world:
        messages: list[Any] = [TASK]
        assert world.agent(messages) == "Seat 4 is booked."
    assert world.booked == [4]
    assert "I do not know." not in json.dumps(
        [m if isinstance(m, dict) else m.model_dump() for m in messages]
    )
    assert "seat 4 is yours" in told(server.bodies[3])[0]
    assert "already taken effect" in told(server.bodies[4])[-1]
    assert ids(server.bodies[4]) == []
    assert world.sessions[0].has_ended
    assert [effect.state for effect in world.sessions[0].ledger.effects()] == ["done"]


def test_model_that_repeats_a_done_effect_is_stopped() -> None:
    booking = (call("book", f"b{i}", seat=4) for i in range(1, 99))
    given = [call("book", "b0", seat=4), say("I do not know."), *booking]
    accept = lambda run: run.steps[-1].content.startswith("Seat")  # noqa: E731
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(1), accept=accept)
    with serving(script(given)) as server, World(server, guard) as world:
        assert "already executed" in world.agent([TASK])
    assert world.booked == [4]


def test_stop_is_a_clear_final_answer() -> None:
    with (
        serving(script([*finds(0, 3), say("never asked")])) as server,
        World(server, make(recover=RecoveryPolicy(on_fail="stop"))) as world,
    ):
        answer = world.agent([TASK])
    assert answer.startswith("[guard] The run was stopped:")
    assert world.sessions[0].stop_reason is not None
    assert world.sessions[0].has_ended
    assert len(server.bodies) == 3


def test_stop_is_a_refusal_if_json_is_expected() -> None:
    class Seat(BaseModel):
        seat: int

    given = [call("find", "f", where="x"), say('{"seat": 4}')]
    with (
        serving(script(given)) as server,
        World(
            server, make(accept=lambda run: "the seat is taken", recover=RecoveryPolicy(on_fail="stop"))
        ) as world,
    ):
        parsed = world.client.chat.completions.parse(model="m", messages=[TASK], response_format=Seat)
        assert parsed.choices[0].message.tool_calls is not None
        world.sessions[0].stop_reason = "enough"
        history: list[Any] = [TASK, parsed.choices[0].message.model_dump(exclude={"parsed"})]
        history.append({"role": "tool", "tool_call_id": "f", "content": "none"})
        last = world.client.chat.completions.parse(model="m", messages=history, response_format=Seat)
        assert last.choices[0].message.parsed is None
        assert "enough" in (last.choices[0].message.refusal or "")


def test_parsed_answers_are_judged() -> None:
    class Seat(BaseModel):
        seat: int

    guard = make(
        accept=lambda run: '"seat": 4' in run.steps[-1].content or "wrong",
        recover=RecoveryPolicy(on_fail="hint"),
    )
    with serving(script([say('{"seat": 9}'), say('{"seat": 4}')])) as server, World(server, guard) as world:
        parsed = world.client.chat.completions.parse(model="m", messages=[TASK], response_format=Seat)
    assert parsed.choices[0].message.parsed == Seat(seat=4)
    assert texts(server.bodies[1])[1] == '{"seat": 9}', "the model sees what was refused, the client does not"


def test_acceptance_test_finally_accepts_the_answer() -> None:
    guard = make(accept=lambda run: "never", recover=RecoveryPolicy(on_fail="hint"))
    with serving(lambda body: completion(say("done"))) as server, World(server, guard) as world:
        assert world.agent([TASK]) == "done"
    assert 1 < len(server.bodies) <= 11


def test_disabled_tools_are_not_offered() -> None:
    given = [*finds(0, 3), call("book", "b", seat=4), say("Seat 4 is booked.")]
    with (
        serving(script(given)) as server,
        World(server, make(recover=RecoveryPolicy(on_fail="disable_tool"))) as world,
    ):
        world.agent([TASK], tool_choice={"type": "function", "function": {"name": "find"}})
    assert [tool["function"]["name"] for tool in server.bodies[-1]["tools"]] == ["book"]
    assert server.bodies[-1]["tool_choice"] == "auto"
    assert len(server.bodies[0]["tools"]) == 2


def test_restart_keeps_the_task_and_adds_the_error() -> None:
    with (
        serving(script([*finds(0, 3), say("Seat 4 is booked.")])) as server,
        World(server, make(recover=RecoveryPolicy(on_fail="restart"))) as world,
    ):
        assert world.agent([{"role": "system", "content": "Be brief."}, TASK]) == "Seat 4 is booked."
    assert texts(server.bodies[-1])[:2] == ["Be brief.", "Book seat 4."]
    assert len(server.bodies[-1]["messages"]) == 3


def test_user_messages_are_never_rolled_back() -> None:
    accept = lambda run: run.steps[-1].content.startswith("Seat")  # noqa: E731
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(1), accept=accept)
    answers = [call("find", "f", where="x"), say("I cannot."), say("Seat 4 is booked.")]
    with serving(script(answers)) as server, World(server, guard) as world:
        found = world.ask([TASK]).choices[0].message
        messages: list[Any] = [TASK, found, result(found.tool_calls[0], "nothing found")]
        messages.append({"role": "user", "content": "By the aisle!"})
        assert world.agent(messages) == "Seat 4 is booked."
    assert texts(server.bodies[-1])[:2] == ["Book seat 4.", "By the aisle!"]
    assert len(server.bodies[-1]["messages"]) == 3
    assert [step.source for step in world.sessions[0].run.steps] == ["user", "user", "agent"]


def test_each_task_is_a_run_and_earlier_messages_remain() -> None:
    accept = lambda run: run.steps[-1].content.startswith("Seat")  # noqa: E731
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(1), accept=accept)
    answers = [*finds(0, 2), say("Seat 4?"), say("I cannot."), say("Seat 4 is booked.")]
    with serving(script(answers)) as server, World(server, guard) as world:
        messages: list[Any] = [TASK]
        world.agent(messages)
        messages.append({"role": "user", "content": "Yes."})
        assert world.agent(messages) == "Seat 4 is booked."
    last = server.bodies[-1]
    assert ids(last) == ["f0", "f1"]
    assert texts(last)[-3:-1] == ["Seat 4?", "Yes."]
    assert "I cannot." not in texts(last)
    assert [session.run.task for session in world.sessions] == ["Book seat 4.", "Yes."]
    assert [len(session.run.steps) for session in world.sessions] == [4, 2]


def test_unknown_history_is_parsed() -> None:
    history: list[Any] = [TASK]
    for i in range(2):
        history += [{"role": "assistant", **finds(i, 1)[0]}]
        history += [{"role": "tool", "tool_call_id": f"f{i}", "content": "nothing found"}]
    with (
        serving(script([*finds(2, 1), say("Seat 4 is booked.")])) as server,
        World(server, make(recover=RecoveryPolicy(on_fail="rollback"))) as world,
    ):
        assert world.agent(history) == "Seat 4 is booked."
    assert ids(server.bodies[-1]) == ["f0"]


def test_server_error_is_forwarded_and_run_continues() -> None:
    given = iter(
        [completion(call("find", "f", where="x")), Raw(status=500, content=b'{"error":{"message":"down"}}')]
    )
    with serving(lambda body: next(given, completion(say("ok")))) as server, World(server, make()) as world:
        messages: list[Any] = [TASK]
        with pytest.raises(openai.InternalServerError, match="down"):
            world.agent(messages)
        assert world.agent(messages) == "ok"
    assert len(world.sessions) == 1
    assert len(world.sessions[0].run.steps) == 3


def test_lost_answer_frees_its_calls_when_client_retries() -> None:
    with (
        serving(script([call("book", "b1", seat=4), call("book", "b2", seat=4), say("ok")])) as server,
        World(server, make()) as world,
    ):
        world.ask([TASK])
        answer = world.ask([TASK], extra_headers={"x-stainless-retry-count": "1"}).choices[0].message
        assert answer.tool_calls[0].id == "b2"
        world.agent([TASK, answer, {"role": "tool", "tool_call_id": "b2", "content": "yours"}])
    assert len(world.sessions) == 1
    assert [effect.state for effect in world.sessions[0].ledger.effects()] == ["done"]


def test_two_runs_with_equal_prompts_are_separate() -> None:
    def model(body: Body) -> Body:
        done = sum(message["role"] == "tool" for message in body["messages"])
        made = call("find", f"c{len(server.bodies)}", where=str(done)) if done < 4 else say("done")
        return completion(made)

    with serving(model) as server, World(server, make()) as world:
        left: list[Any] = [TASK]
        right: list[Any] = [TASK]
        for _ in range(5):
            for messages in (left, right):
                message = world.ask(messages).choices[0].message
                messages.append(message)
                messages += [result(one, world.do(one)) for one in message.tool_calls or ()]
    assert [len(session.run.steps) for session in world.sessions] == [6, 6]
    seen = [{c.id for s in session.run.steps for c in s.tool_calls} for session in world.sessions]
    assert not seen[0] & seen[1]


def test_named_run_keeps_its_name_and_header_is_not_forwarded() -> None:
    with (
        serving(script([call("find", "f", where="x"), say("ok"), say("again")])) as server,
        World(server, make()) as world,
    ):
        messages: list[Any] = [TASK]
        world.agent(messages, extra_headers={"agentguard-run": "trip-17"})
        messages.append(TASK)
        world.agent(messages, extra_headers={"agentguard-run": "trip-17"})
    assert [session.id for session in world.sessions] == ["trip-17", "trip-17.2"]
    assert not any("agentguard-run" in headers for headers in server.headers)


@pytest.mark.parametrize("more", [{"n": 2}, {"extra_headers": {"agentguard-run": "off"}}])
def test_excluded_requests_pass_unguarded(more: Any) -> None:
    with serving(script([call("fly", "x")])) as server, World(server, make()) as world:
        assert world.ask([TASK], **more).choices[0].message.tool_calls[0].function.name == "fly"
        assert world.client.models.list().data == []
    assert world.sessions == []


def test_truncated_answer_is_not_an_end() -> None:
    with (
        serving(lambda body: completion(say("Seat"), finish="length")) as server,
        World(server, make()) as world,
    ):
        assert world.ask([TASK]).choices[0].finish_reason == "length"
    assert not world.sessions[0].has_ended


@pytest.mark.parametrize("on_error", ["fail_open", "fail_closed"])
def test_guard_error_follows_on_guard_error(on_error: Any) -> None:
    guard = make(recover=RecoveryPolicy(on_guard_error=on_error))

    def fail(session: Session) -> None:
        raise ValueError("broken observer")

    with serving(script([say("ok")])) as server:
        transport = guard.transport(on_run=fail)
        with OpenAI(
            base_url=server.url, api_key="k", http_client=DefaultHttpxClient(transport=transport)
        ) as client:
            if on_error == "fail_open":
                assert (
                    client.chat.completions.create(model="m", messages=[TASK]).choices[0].message.content
                    == "ok"
                )
            else:
                with pytest.raises(openai.PermissionDeniedError, match="guard failed"):
                    client.chat.completions.create(model="m", messages=[TASK])
    assert list(transport.interceptor.failures) == ["ValueError: broken observer"]
    assert len(server.bodies) == (1 if on_error == "fail_open" else 0)


def test_number_of_conversations_is_bounded() -> None:
    with (
        serving(lambda body: completion(call("find", f"c{len(server.bodies)}", where="x"))) as server,
        World(server, make(), max_conversations=3) as world,
    ):
        for _ in range(8):
            world.ask([TASK])
        assert len(world.transport.interceptor.conversations) == 3


@pytest.mark.parametrize("options", [{"buffer": "some"}, {"max_conversations": 0}])
def test_options_out_of_range_are_rejected(options: Any) -> None:
    with pytest.raises(ConfigError, match="transport"):
        make().transport(**options)


def test_asynchronous_client_is_guarded() -> None:
    given = [call("fly", "x"), *finds(0, 3), say("Seat 4 is booked.")]

    async def main(url: str) -> list[Any]:
        transport = make(recover=RecoveryPolicy(on_fail="rollback")).atransport()
        messages: list[Any] = [TASK]
        http = DefaultAsyncHttpxClient(transport=transport)
        async with AsyncOpenAI(base_url=url, api_key="k", http_client=http) as client:
            for _ in range(10):
                answer = await client.chat.completions.create(model="m", messages=messages, tools=TOOLS)
                message = answer.choices[0].message
                messages.append(message)
                if not message.tool_calls:
                    break
                messages += [result(one, "nothing found") for one in message.tool_calls]
        return messages

    with serving(script(given)) as server:
        messages = asyncio.run(main(server.url))
    assert messages[-1].content == "Seat 4 is booked."
    assert len(told(server.bodies[-1])) == 2
    assert whole(server.bodies[-1]["messages"])
