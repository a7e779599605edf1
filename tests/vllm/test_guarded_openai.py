"""OpenAI's client under the guard with a real vLLM: refused, rolled-back and unrepeated calls.

The model's words are masked (`tests.vllm.scripted_endpoint`): the tests check contracts, not the quality of
the model.
"""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI, DefaultAsyncHttpxClient, DefaultHttpxClient, OpenAI

from agentguard.guard import Guard
from agentguard.recover.plan import RecoveryOutcome
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from agentguard.store import Store
from tests.vllm.scripted_endpoint import BESIDE, DONE, TASK, TOOLS, AsyncSteered, Steered
from tests.vllm_server import VllmServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class World:
    """A guard with a store, the tools, and their recorded calls."""

    def __init__(self, path: Path) -> None:
        self.booked: list[int] = []
        self.sessions: list[Session] = []
        self.path = path
        self.store = Store.open(path)
        self.guard = Guard(
            recover=RecoveryPolicy(on_fail="rollback", escalations={"acceptance": "restart"}),
            accept=lambda run: run.steps[-1].content == DONE,
            store=self.store,
        )
        self.guard.tool(effect="read", name="find")(len)
        self.guard.tool(effect="write", idempotency_key="seat", name="book")(len)

    def do(self, name: str, arguments: str) -> str:
        given = json.loads(arguments)
        if name == "find":
            return "nothing found"
        assert name == "book", "a refused call never reaches the client"
        self.booked.append(given["seat"])
        return f"seat {given['seat']} is yours"

    def check(self, answer: str, seen: list[list[Any]], client_saw: str) -> None:
        """Check the invariants after every run, for any API and streaming mode."""
        session = self.sessions[0]
        assert answer == DONE
        assert self.booked == [4], "the effect happened once"
        done = [one.plan.strategy for one in session.recoveries]
        assert done == ["rollback", "rollback", "restart"]
        assert session.recoveries[-1].outcome is RecoveryOutcome.CONFIRMED
        assert "fly" not in client_saw
        assert BESIDE not in client_saw
        assert [effect.state for effect in session.ledger.effects()] == ["done"]
        assert any("already taken effect" in json.dumps(items) for items in seen)
        self.store.close()
        with Store.open(self.path) as store:
            kept = store.get_record(session.id)
            assert kept is not None
            assert kept.trajectory.steps[-1].content == DONE
            assert len(kept.trajectory.branches) >= 3
        spent = [step.usage for step in session.run.steps if step.source == "agent"]
        assert spent
        assert all(usage is not None and usage.prompt_tokens for usage in spent)


@pytest.mark.parametrize("stream", [False, True])
def test_guarded_chat_completions_book_once(vllm: VllmServer, stream: bool, tmp_path: Path) -> None:
    world, inner = World(tmp_path / "runs.db"), Steered()
    http = DefaultHttpxClient(transport=world.guard.transport(inner=inner, on_run=world.sessions.append))
    tools: Any = [{"type": "function", "function": tool} for tool in TOOLS]
    messages: list[Any] = [{"role": "user", "content": TASK}]
    with OpenAI(base_url=vllm.url, api_key="none", max_retries=0, timeout=300, http_client=http) as client:
        for _ in range(12):
            given: dict[str, Any] = {"model": "judge", "messages": messages, "tools": tools, "max_tokens": 80}
            if stream:
                given["stream_options"] = {"include_usage": True}
                with client.chat.completions.stream(**given) as events:
                    message: Any = events.get_final_completion().choices[0].message
            else:
                message = client.chat.completions.create(**given).choices[0].message
            messages.append(message.model_dump(exclude_none=True, exclude={"parsed"}))
            for one in message.tool_calls or ():
                text = world.do(one.function.name, one.function.arguments)
                messages.append({"role": "tool", "tool_call_id": one.id, "content": text})
            if not message.tool_calls:
                break
    answer = str(message.content)
    if stream:  # streamed parts of a refused answer remain, and the accepted answer follows
        assert answer.endswith(DONE)
        messages[-1] = {**messages[-1], "content": (answer := DONE)}
    world.check(answer, inner.seen, json.dumps(messages))


@pytest.mark.parametrize("stream", [False, True])
def test_guarded_asynchronous_responses_book_once(vllm: VllmServer, stream: bool, tmp_path: Path) -> None:
    world, inner = World(tmp_path / "runs.db"), AsyncSteered()
    http = DefaultAsyncHttpxClient(
        transport=world.guard.atransport(inner=inner, on_run=world.sessions.append, hold="all")
    )
    tools: Any = [{"type": "function", **tool} for tool in TOOLS]
    items: list[Any] = [{"role": "user", "content": TASK}]

    async def ask(client: AsyncOpenAI) -> Any:
        given: dict[str, Any] = {"model": "judge", "input": items, "tools": tools, "max_output_tokens": 80}
        if not stream:
            return await client.responses.create(**given)
        async with client.responses.stream(**given) as events:
            return await events.get_final_response()

    async def agent() -> str:
        async with AsyncOpenAI(
            base_url=vllm.url, api_key="none", max_retries=0, timeout=300, http_client=http
        ) as client:
            for _ in range(12):
                response = await ask(client)
                items.extend(item.model_dump(exclude_none=True) for item in response.output)
                called = [item for item in response.output if item.type == "function_call"]
                for one in called:
                    text = world.do(one.name, one.arguments)
                    items.append({"type": "function_call_output", "call_id": one.call_id, "output": text})
                if not called:
                    return str(response.output_text)
        raise AssertionError("the loop did not end")

    world.check(asyncio.run(agent()), inner.seen, json.dumps(items))


def test_truncated_answer_is_not_an_end(vllm: VllmServer) -> None:
    sessions: list[Session] = []
    guard = Guard(accept=lambda run: "an end would be refused")
    http = DefaultHttpxClient(transport=guard.transport(on_run=sessions.append))
    with OpenAI(base_url=vllm.url, api_key="none", max_retries=0, timeout=300, http_client=http) as client:
        events = list(client.responses.create(model="judge", input=TASK, max_output_tokens=3, stream=True))
        last: Any = events[-1]
        assert last.response.status == "incomplete"
        chat = client.chat.completions.create(
            model="judge", messages=[{"role": "user", "content": TASK}], max_tokens=3
        )
        assert chat.choices[0].finish_reason == "length"
    assert [session.has_ended for session in sessions] == [False, False]
    assert [session.recoveries for session in sessions] == [[], []]
