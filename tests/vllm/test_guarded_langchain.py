"""A LangChain agent under the guard with a real vLLM: `create_agent`, `ChatOpenAI`, tools with effects.

The model's words are masked (`tests.vllm.scripted_endpoint`): the tests check contracts, not the quality of
the model.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langchain_openai", reason="needs langchain-openai, which the dev extra installs")

from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware
from langchain_core.messages import AIMessage, HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver

from agentguard.guard import Guard
from agentguard.recover.plan import RecoveryOutcome
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from agentguard.store import Store
from tests.vllm.scripted_endpoint import BESIDE, DONE, TASK, allowed
from tests.vllm_server import VllmServer

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Masked(AgentMiddleware[Any, Any, Any]):
    """Middleware listed after the guard, so that it sees the model's input."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[list[Any]] = []

    def _masked(self, request: Any) -> Any:
        self.seen.append(list(request.messages))
        told = [m.text for m in request.messages if m.text.startswith("[guard]")]
        results = [m.text for m in request.messages if isinstance(m, ToolMessage)]
        body = {"structured_outputs": {"choice": allowed(told, results)}}
        return request.override(model_settings={**request.model_settings, "extra_body": body})

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        return handler(self._masked(request))

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        return await handler(self._masked(request))


class World:
    """An agent with a store, its tools, and their recorded calls."""

    def __init__(self, vllm: VllmServer, path: Path) -> None:
        self.booked: list[int] = []
        self.sessions: list[Session] = []
        self.path, self.masked = path, Masked()
        self.store = Store.open(path)
        guard = self.guard = Guard(
            recover=RecoveryPolicy(on_fail="rollback", escalations={"acceptance": "restart"}),
            accept=lambda run: run.steps[-1].content == DONE,
            store=self.store,
        )
        world = self

        @tool
        def find(where: str) -> str:
            """Find a seat."""
            return "nothing found"

        @tool
        def book(seat: int) -> str:
            """Book a seat."""
            world.booked.append(seat)
            return f"seat {seat} is yours"

        guard.tool(effect="read", name="find")(len)
        guard.tool(effect="write", idempotency_key="seat", name="book")(len)
        self.tools = [find, book]
        self.model: Any = ChatOpenAI(
            base_url=vllm.url,
            api_key="none",
            model="judge",
            max_tokens=80,
            max_retries=0,
            timeout=300,
            stream_usage=True,
        )

    def agent(self, **more: Any) -> Any:
        middleware = [self.guard.langchain(on_run=self.sessions.append), self.masked]
        return create_agent(self.model, self.tools, middleware=middleware, **more)

    def check(self, messages: list[Any]) -> None:
        """Check the invariants after every run."""
        session = self.sessions[0]
        assert messages[-1].text == DONE
        assert self.booked == [4], "the effect happened once"
        assert [one.plan.strategy for one in session.recoveries] == ["rollback", "rollback", "restart"]
        assert session.recoveries[-1].outcome is RecoveryOutcome.CONFIRMED
        assert [effect.state for effect in session.ledger.effects()] == ["done"]
        left = " ".join(message.text for message in messages)
        assert BESIDE not in left
        assert not [call for m in messages if isinstance(m, AIMessage) for call in _named(m, "fly")]
        self.store.close()
        with Store.open(self.path) as store:
            kept = store.get_record(session.id)
            assert kept is not None
            assert kept.trajectory.steps[-1].content == DONE
            assert len(kept.trajectory.branches) >= 3
        spent = [step.usage for step in session.run.steps if step.source == "agent"]
        assert spent
        assert all(usage is not None and usage.prompt_tokens for usage in spent)


def _named(message: AIMessage, name: str) -> list[Any]:
    return [call for call in message.tool_calls if call["name"] == name]


def test_agent_is_rolled_back_and_books_once(vllm: VllmServer, tmp_path: Path) -> None:
    world = World(vllm, tmp_path / "runs.db")
    out = world.agent().invoke({"messages": [HumanMessage(TASK)]}, {"recursion_limit": 60})
    world.check(out["messages"])


def test_streamed_agent_in_guarded_graph_is_forked(vllm: VllmServer, tmp_path: Path) -> None:
    world = World(vllm, tmp_path / "runs.db")
    app = world.guard.langgraph(world.agent(checkpointer=InMemorySaver()), on_run=world.sessions.append)
    config = {"configurable": {"thread_id": "1"}, "recursion_limit": 80}

    async def main() -> tuple[int, list[Any]]:
        tokens = 0
        stream = app.astream({"messages": [HumanMessage(TASK)]}, config, stream_mode=["messages", "values"])
        async for mode, payload in stream:
            tokens += mode == "messages"
            last = payload if mode == "values" else None
            state = last or {}
        return tokens, state["messages"]

    tokens, messages = asyncio.run(main())
    assert tokens > 10, "the model's tokens are streamed as they come"
    world.check(messages)
