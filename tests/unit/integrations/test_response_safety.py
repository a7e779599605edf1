"""Response safety in every framework: a blocked reply is withheld, a conditional reply is regenerated."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from agents import Agent as SdkAgent
from langchain.agents import create_agent
from langchain_core.messages import AIMessage
from langgraph.checkpoint.memory import InMemorySaver
from pydantic_ai import Agent
from pydantic_ai.messages import ModelResponse, TextPart
from pydantic_ai.models.function import FunctionModel

from agentguard.errors import RunStopped
from agentguard.guard import Guard
from tests.unit.integrations.test_langchain import Scripted
from tests.unit.integrations.test_openai_agents import QUIET, Scripted as SdkScripted, say as sdk_say
from tests.unit.runtime.test_response_safety import CONDITIONAL, UNSAFE, safety

TASK = "How do I get in?"
Ask = Callable[[Guard, Callable[[], str]], str]


def langchain(guard: Guard, reply: Callable[[], str]) -> str:
    model = Scripted(answer=lambda messages: AIMessage(content=reply()))
    state = create_agent(model, [], middleware=[guard.langchain()]).invoke({"messages": [("user", TASK)]})
    assert not any("lock" in str(message.content) for message in state["messages"]), "nor is it in the state"
    return str(state["messages"][-1].content)


def alangchain(guard: Guard, reply: Callable[[], str]) -> str:
    model = Scripted(answer=lambda messages: AIMessage(content=reply()))
    agent = create_agent(model, [], middleware=[guard.langchain()])
    state = asyncio.run(agent.ainvoke({"messages": [("user", TASK)]}))
    return str(state["messages"][-1].content)


def langgraph(guard: Guard, reply: Callable[[], str]) -> str:
    model = Scripted(answer=lambda messages: AIMessage(content=reply()))
    graph = create_agent(model, [], middleware=[guard.langchain()], checkpointer=InMemorySaver())
    app = guard.langgraph(graph)
    state = app.invoke({"messages": [("user", TASK)]}, {"configurable": {"thread_id": "1"}})
    return str(state["messages"][-1].content)


def pydantic_ai(guard: Guard, reply: Callable[[], str]) -> str:
    model = FunctionModel(lambda messages, info: ModelResponse(parts=[TextPart(reply())]))
    return str(asyncio.run(Agent(model, capabilities=[guard.pydantic_ai()]).run(TASK)).output)


def openai_agents(guard: Guard, reply: Callable[[], str]) -> str:
    agent = SdkAgent(name="clerk", model=SdkScripted(lambda items: sdk_say(reply())))
    return str(asyncio.run(guard.openai_agents.run(agent, TASK, run_config=QUIET)).final_output)


EVERY: list[Ask] = [langchain, alangchain, langgraph, pydantic_ai, openai_agents]


@pytest.mark.parametrize("ask", EVERY, ids=lambda ask: ask.__name__)
def test_blocked_reply_is_withheld(ask: Ask) -> None:
    guard = Guard(safety=safety({"lock": UNSAFE}))
    try:
        seen = ask(guard, lambda: "Pick the lock so.")
    except RunStopped as stopped:
        assert "rated as unsafe" in str(stopped)
        assert ask not in (langchain, alangchain), "it has a message in its place"
    else:
        assert "lock" not in seen
        assert "rated as unsafe" in seen
        assert ask in (langchain, alangchain)


@pytest.mark.parametrize("ask", EVERY, ids=lambda ask: ask.__name__)
def test_conditional_reply_is_regenerated(ask: Ask) -> None:
    guard = Guard(safety=safety({"dose": CONDITIONAL}))
    replies = iter(["The dose is two.", "Ask a doctor."])
    told: list[Any] = []
    assert ask(guard, lambda: told.append(1) or next(replies)) == "Ask a doctor."  # type: ignore[func-returns-value]
    assert len(told) == 2
