"""Behaviour of LangChain that may break a guard, one test each; the real framework, scripted models."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Annotated, Any, NotRequired

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import AgentMiddleware, AgentState, TodoListMiddleware
from langchain.agents.middleware.types import ExtendedModelResponse
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, ToolMessage
from langchain_core.messages.utils import convert_to_openai_messages
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.types import Command

from agentguard.integrations.langchain.middleware import GuardMiddleware
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from tests.unit.integrations.test_langchain import Scripted, Seats, calls, find, make, run, told, whole

HOOKS = ("before_agent", "before_model", "after_agent", "wrap_model_call", "wrap_tool_call")


@pytest.mark.parametrize("hook", HOOKS)
def test_each_hook_has_both_variants_and_the_argument_names_of_langchain(hook: str) -> None:
    now, later = getattr(GuardMiddleware, hook), getattr(GuardMiddleware, f"a{hook}")
    names = list(inspect.signature(now).parameters)
    assert names == list(inspect.signature(later).parameters)
    assert names[1:] == (["request", "handler"] if hook.startswith("wrap") else ["state", "runtime"])
    assert inspect.iscoroutinefunction(later)
    assert not inspect.iscoroutinefunction(now)


def test_guard_never_jumps_to_tools_nor_from_after_model() -> None:
    jumps = {
        target
        for hook in HOOKS
        for name in (hook, f"a{hook}")
        for target in getattr(getattr(GuardMiddleware, name), "__can_jump_to__", ())
    }
    assert jumps == {"end", "model"}
    assert GuardMiddleware.after_model is AgentMiddleware.after_model
    assert GuardMiddleware.aafter_model is AgentMiddleware.aafter_model


def test_streamed_part_of_refused_answer_remains() -> None:
    sessions: list[Session] = []
    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    refused = AIMessage("Let me fly.", tool_calls=[{"id": "f", "name": "fly", "args": {}}])
    given = iter([refused, AIMessage("I cannot.")])
    agent = create_agent(
        Scripted(answer=lambda messages: next(given)),
        Seats().tools,
        middleware=[guard.langchain(on_run=sessions.append)],
    )
    chunks = list(agent.stream({"messages": [HumanMessage("Fly.")]}, stream_mode="messages"))
    said = [chunk.text for chunk, _ in chunks if isinstance(chunk, AIMessage)]
    assert said == ["Let me fly.", "I cannot."]
    assert sessions[0].run.branches[0].steps[0].content == "Let me fly."


def test_truncation_does_not_restore_other_channels() -> None:
    """A fork restores them; see test_langgraph.py."""
    todo = {"content": "book", "status": "pending"}
    turns: list[AIMessage] = [calls(("write_todos", {"todos": [todo]}))]

    def model(messages: list[AnyMessage]) -> AIMessage:
        if told(messages):
            return AIMessage("There is none.")
        return turns.pop() if turns else find()

    guard = make(recover=RecoveryPolicy(on_fail="restart"))
    out, _ = run(guard, Seats(), model, middleware=[TodoListMiddleware()])
    assert not [m for m in out["messages"] if isinstance(m, ToolMessage)], "all turns were taken back"
    assert out["todos"] == [todo]


class Marked(AgentState[Any]):
    attempts: NotRequired[Annotated[list[str], lambda old, new: [*(old or []), *new]]]


class Marks(AgentMiddleware[Any, Any, Any]):
    """Middleware that sends a command with each answer."""

    state_schema = Marked

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        response = handler(request)
        said = response.result[0].text or "a call"
        return ExtendedModelResponse(response, command=Command(update={"attempts": [said]}))


def test_commands_of_refused_answer_are_not_executed() -> None:
    given = iter([calls(("fly", {})), AIMessage("I cannot.")])
    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    out, session = run(guard, Seats(), lambda messages: next(given), middleware=[Marks()])
    assert out["messages"][-1].text == "I cannot."
    assert len(session.recoveries) == 1
    assert out["attempts"] == ["I cannot."]


def test_remaining_messages_keep_their_ids_and_are_unique() -> None:
    """A replacement without an id would be appended, and the replaced message would remain."""
    before: list[dict[str, str]] = []

    def model(messages: list[AnyMessage]) -> AIMessage:
        assert all(message.id for message in messages if not isinstance(message, AIMessage))
        before.append({message.id: message.text for message in messages if message.id})
        return AIMessage("There is none.") if told(messages) else find()

    out, session = run(make(recover=RecoveryPolicy(on_fail="rollback")), Seats(), model)
    assert session.recoveries
    ids = [message.id for message in out["messages"]]
    assert len(set(ids)) == len(ids)
    first = next(iter(before[0]))
    assert ids[0] == first


def test_tool_error_survives_langchain_conversion() -> None:
    @tool
    def pay(order: str) -> str:
        """Pay an order."""
        raise ValueError("no such order")

    pay.handle_tool_error = True
    pay.handle_validation_error = True
    given = iter([calls(("pay", {})), AIMessage("Not paid.")])  # arguments that do not fit
    sessions: list[Session] = []
    agent = create_agent(
        Scripted(answer=lambda messages: next(given)),
        [pay],
        middleware=[
            make(recover=RecoveryPolicy(on_fail="hint", effect_threshold=1.0)).langchain(
                on_run=sessions.append
            )
        ],
    )
    out = agent.invoke({"messages": [HumanMessage("Pay.")]})
    answer = next(m for m in out["messages"] if isinstance(m, ToolMessage))
    assert answer.status == "error"
    assert "error" not in convert_to_openai_messages([answer])[0], "the fact that makes this necessary"
    assert sessions[0].run.steps[1].observations[0].is_error is True


def test_nested_agent_in_tool_is_a_separate_run() -> None:
    seats, sessions = Seats(), list[Session]()
    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    inside = iter([calls(("book", {"seat": 4})), AIMessage("Seat 4 is booked.")])
    inner = create_agent(
        Scripted(answer=lambda messages: next(inside)),
        seats.tools,
        middleware=[guard.langchain(name="clerk", on_run=sessions.append)],
    )

    @tool
    def delegate(task: str) -> str:
        """Let the clerk do it."""
        return str(inner.invoke({"messages": [HumanMessage(task)]})["messages"][-1].text)

    outside = iter([calls(("delegate", {"task": "Book seat 4."})), AIMessage("Done.")])
    agent = create_agent(
        Scripted(answer=lambda messages: next(outside)),
        [delegate],
        middleware=[guard.langchain(name="boss", on_run=sessions.append)],
    )
    out = agent.invoke({"messages": [HumanMessage("See to my seat.")]})
    assert out["messages"][-2].text == "Seat 4 is booked."
    assert [[step.agent for step in session.run.steps][-1] for session in sessions] == ["boss", "clerk"]
    assert all(session.has_ended and not session.recoveries for session in sessions)
    assert seats.booked == {4: 1}


def test_run_cancelled_within_tool_repeats_nothing_after_resume() -> None:
    async def main() -> None:
        began, booked = asyncio.Event(), list[int]()

        @tool
        async def book(seat: int) -> str:
            """Book a seat."""
            booked.append(seat)
            began.set()
            await asyncio.sleep(60)
            return "yours"

        sessions: list[Session] = []
        given = iter([calls(("book", {"seat": 4})), AIMessage("I do not know.")])
        agent = create_agent(
            Scripted(answer=lambda messages: next(given)),
            [book],
            middleware=[make().langchain(on_run=sessions.append)],
            checkpointer=InMemorySaver(),
        )
        config: Any = {"configurable": {"thread_id": "1"}}
        task = asyncio.create_task(agent.ainvoke({"messages": [HumanMessage("Book seat 4.")]}, config))
        await began.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert [effect.state for effect in sessions[0].ledger.effects()] == ["attempted"]
        out = await agent.ainvoke(None, config)
        assert booked == [4]
        assert "was not repeated" in out["messages"][-2].text
        assert whole(out["messages"])

    asyncio.run(main())
