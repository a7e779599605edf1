"""Timer of tools in all integrations: a hanging tool is interrupted, and its effect is ambiguous."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from agents import function_tool
from langchain.agents import create_agent
from langchain.messages import AIMessage, HumanMessage
from langchain_core.tools import tool as langchain_tool

from agentguard.errors import ConfigError
from agentguard.guard import Guard
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from tests.unit.integrations import test_langchain, test_loop, test_openai_agents, test_pydantic_ai

WAY_OUT = "could not tell."


async def send(to: str) -> str:
    """Send a letter."""
    await asyncio.Event().wait()
    raise AssertionError("the tool was not interrupted")


def make_guard(**parts: Any) -> Guard:
    guard = Guard(recover=RecoveryPolicy(threshold=1.0, effect_threshold=1.0), tool_timeout_s=0.02, **parts)
    guard.tool(effect="write", name="send")(len)
    return guard


def run_loop(guard: Guard) -> Session:
    answers = iter([test_loop.calls(("send", {"to": "a"})), WAY_OUT])

    async def walk() -> Session:
        with guard.run("Send it.", tools=[send]) as run:
            while not run.done:
                await run.atools(await run.amodel(lambda messages: ready(next(answers))))
            return run.session

    return asyncio.run(walk())


async def ready(answer: Any) -> Any:
    return answer


def run_blocking_loop(guard: Guard) -> Session:
    answers = iter([test_loop.calls(("send", {"to": "a"})), WAY_OUT])
    release = threading.Event()

    def send(to: str) -> str:
        release.wait(30)
        return "late"

    with guard.run("Send it.", tools=[send]) as run:
        test_loop.drive(run, lambda messages: next(answers))
    release.set()
    return run.session


def run_langchain(guard: Guard) -> Session:
    sessions: list[Session] = []
    answers = iter([test_langchain.calls(("send", {"to": "a"})), AIMessage(WAY_OUT)])
    agent = create_agent(
        test_langchain.Scripted(answer=lambda messages: next(answers)),
        [langchain_tool(send)],
        middleware=[guard.langchain(on_run=sessions.append)],
    )
    asyncio.run(agent.ainvoke({"messages": [HumanMessage("Send it.")]}))
    return sessions[0]


def run_openai_agents(guard: Guard) -> Session:
    answers = test_openai_agents.script(
        test_openai_agents.calls(("send", {"to": "a"})), test_openai_agents.say(WAY_OUT)
    )
    run = test_openai_agents.Run(guard, answers, tools=[function_tool(send)])
    run.go()
    return run.session


def run_pydantic_ai(guard: Guard) -> Session:
    answers = iter([test_pydantic_ai.calls(("send", {"to": "a"})), test_pydantic_ai.say(WAY_OUT)])
    run = test_pydantic_ai.Run(guard, lambda messages: next(answers), tools=[send])
    run.go()
    return run.session


INTEGRATIONS = [run_loop, run_blocking_loop, run_langchain, run_openai_agents, run_pydantic_ai]


@pytest.mark.parametrize("run_agent", INTEGRATIONS, ids=lambda one: one.__name__)
def test_hanging_tool_is_interrupted_and_its_effect_is_ambiguous(
    run_agent: Callable[[Guard], Session],
) -> None:
    session = run_agent(make_guard())
    assert [effect.state.value for effect in session.ledger.effects()] == ["ambiguous"]
    (seen,) = next(step for step in session.run.steps if step.tool_calls).observations
    assert "send timed out" in seen.content
    assert "not known whether it took effect" in seen.content
    assert session.run.steps[-1].content == WAY_OUT, "the agent continues"
    timeouts = [one for one in session.findings if "fault_model:timing" in one.codes]
    assert [one.detector for one in timeouts] == ["tool_error"]


def test_timeout_of_a_tool_outranks_the_timeout_of_the_guard() -> None:
    guard = Guard(tool_timeout_s=600)
    guard.tool(effect="read", timeout_s=0.02, name="send")(len)
    session = run_loop(guard)
    (seen,) = next(step for step in session.run.steps if step.tool_calls).observations
    assert "within 0.02 s" in seen.content
    assert "took effect" not in seen.content, "a read has no effect"


def test_timeout_error_of_the_tool_itself_is_reported_as_its_own() -> None:
    async def send(to: str) -> str:
        raise TimeoutError("the post office is closed")

    answers = iter([test_loop.calls(("send", {"to": "a"})), WAY_OUT])

    async def walk() -> Session:
        with Guard(tool_timeout_s=600).run("Send it.", tools=[send]) as run:
            while not run.done:
                await run.atools(await run.amodel(lambda messages: ready(next(answers))))
            return run.session

    (seen,) = next(step for step in asyncio.run(walk()).run.steps if step.tool_calls).observations
    assert seen.content == "Error: TimeoutError: the post office is closed"


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
def test_invalid_timeout_is_rejected(timeout_s: float) -> None:
    with pytest.raises(ConfigError, match="tool timeout"):
        Guard(tool_timeout_s=timeout_s)
    with pytest.raises(ConfigError, match="tool timeout"):
        Guard().tool(effect="read", timeout_s=timeout_s)
