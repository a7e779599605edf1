"""Behaviour of OpenAI's client that may break a guarded transport, one test each; the real SDK."""

from __future__ import annotations

import asyncio
import json
import threading
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, pydantic_function_tool
from pydantic import BaseModel

from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from tests.unit.integrations.openai_responses_server import Model, called, said
from tests.unit.integrations.openai_server import call, completion, say, serving
from tests.unit.integrations.test_loop import First
from tests.unit.integrations.test_openai import TASK, TOOLS, World, finds, make, result, script, told
from tests.unit.integrations.test_openai_responses import Asker


@pytest.mark.parametrize("stream", [False, True])
def test_tool_runner_of_sdk_continues_after_refusals_and_rollbacks(stream: bool) -> None:
    """The runner checks histories, ids and output items strictly; the guard's messages must pass."""
    booked: list[int] = []

    def book(given: dict[str, Any]) -> str:
        booked.append(given["seat"])
        return f"seat {given['seat']} is yours"

    parameters = {
        "type": "object",
        "properties": {"seat": {"type": "integer"}},
        "required": ["seat"],
        "additionalProperties": False,
    }
    tool: Any = {"type": "function", "name": "book", "parameters": parameters, "strict": True}
    outputs = [
        [called("fly", "x")],
        [called("book", "b1", seat=4)],
        [said("Have a nice trip!", "m1")],
        [called("book", "b2", seat=4)],
        [said("Seat 4 is booked.", "m2")],
    ]
    accept = lambda run: run.steps[-1].content.startswith("Seat")  # noqa: E731
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(2), accept=accept)
    guard.tool(effect="write", idempotency_key="seat", name="book")(len)
    with serving(Model(outputs, stream=stream)) as server, Asker(server, guard, buffer="all") as world:
        tool_runner = pytest.importorskip("openai.lib.responses_tool_runner", reason="openai 3.40 or newer")
        runner = tool_runner.ResponsesToolRunner(functions=[tool_runner.RegisteredFunction(tool, book)])
        made = runner.run(
            world.client,
            {"model": "m", "input": "Book seat 4."},
            stream=stream,
            max_steps=8,
        )
    assert made.output_text == "Seat 4 is booked."
    assert booked == [4]
    assert len(world.sessions) == 1
    assert len(world.sessions[0].recoveries) == 2


def test_streaming_response_read_by_hand_is_judged() -> None:
    with (
        serving(script([call("fly", "x"), say("I cannot fly.")])) as server,
        World(server, make(recover=RecoveryPolicy(on_fail="rollback"))) as world,
        world.client.chat.completions.with_streaming_response.create(
            model="m", messages=[TASK], tools=TOOLS
        ) as raw,
    ):
        answer = json.loads(raw.read())
    assert answer["choices"][0]["message"]["content"] == "I cannot fly."
    assert len(world.sessions[0].recoveries) == 1


class Seat(BaseModel):
    """Give the seat."""

    seat: int


def test_parsed_tool_arguments_are_judged_before_parsing() -> None:
    with (
        serving(script([call("fly", "x"), call("Seat", "s", seat=4)])) as server,
        World(server, make(recover=RecoveryPolicy(on_fail="rollback"))) as world,
    ):
        made = world.client.chat.completions.parse(
            model="m", messages=[TASK], tools=[pydantic_function_tool(Seat)]
        )
    calls = made.choices[0].message.tool_calls or []
    assert [one.function.parsed_arguments for one in calls] == [Seat(seat=4)]


def test_parallel_calls_are_one_turn_and_removed_together() -> None:
    both = {
        "role": "assistant",
        "content": None,
        "tool_calls": [call("find", f"p{i}", where="aisle")["tool_calls"][0] for i in range(2)],
    }
    given = [both, *finds(0, 3), say("None.")]
    with (
        serving(script(given)) as server,
        World(server, make(recover=RecoveryPolicy(on_fail="rollback"))) as world,
    ):
        assert world.agent([TASK]) == "None."
    for body in server.bodies:
        open_calls: set[str] = set()
        for message in body["messages"]:
            if message.get("role") == "tool":
                open_calls.remove(message["tool_call_id"])
            else:
                assert not open_calls
            open_calls |= {one["id"] for one in message.get("tool_calls") or ()}
        assert not open_calls
    assert told(server.bodies[-1])


def test_cancelled_request_lets_its_run_continue() -> None:
    """The task that waits for an answer is cancelled; the same request is sent again."""
    asked, release = threading.Event(), threading.Event()
    answers = iter([say("never seen"), call("book", "b", seat=4), say("Seat 4 is booked.")])

    def answer(body: Any) -> Any:
        given = next(answers)
        if given.get("content") == "never seen":
            asked.set()
            release.wait(20)
        return completion(given)

    async def main(url: str) -> list[Session]:
        sessions: list[Session] = []
        transport = make().atransport(on_run=sessions.append)
        http = DefaultAsyncHttpxClient(transport=transport)
        messages: list[Any] = [TASK]
        async with AsyncOpenAI(base_url=url, api_key="k", max_retries=0, http_client=http) as client:
            ask = lambda: client.chat.completions.create(model="m", messages=messages, tools=TOOLS)  # noqa: E731
            task = asyncio.create_task(ask())
            await asyncio.to_thread(asked.wait, 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            release.set()
            message = (await ask()).choices[0].message
            messages += [message, result(message.tool_calls[0], "seat 4 is yours")]
            assert (await ask()).choices[0].message.content == "Seat 4 is booked."
            assert len(transport.interceptor.conversations) == 1, "no conversation is left behind"
        return sessions

    with serving(answer) as server:
        sessions = asyncio.run(main(server.url))
    assert len(sessions) == 1
    assert [step.source for step in sessions[0].run.steps] == ["user", "agent", "agent"]
    assert sessions[0].has_ended
