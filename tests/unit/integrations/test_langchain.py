"""LangChain agents under the guard: the real framework, scripted models behind its own model interface."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import (
    AgentMiddleware,
    ModelCallLimitMiddleware,
    SummarizationMiddleware,
    ToolRetryMiddleware,
)
from langchain.agents.structured_output import ToolStrategy
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage, RemoveMessage, ToolMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import StructuredTool, ToolException, tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph.message import REMOVE_ALL_MESSAGES
from langgraph.types import Command, interrupt
from pydantic import BaseModel

from agentguard.guard import Guard
from agentguard.integrations.langchain.messages import (
    MessageBranch,
    apply_repaired_turn,
    build_guard_message,
    build_step,
    split_turns,
)
from agentguard.recover.plan import RecoveryOutcome
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from agentguard.store import Store
from agentguard.trajectory.model import ToolCall
from tests.unit.integrations.test_loop import First

Model = Callable[[list[AnyMessage]], AIMessage]


class Scripted(BaseChatModel):
    """A model that answers by a function."""

    answer: Any
    offered: Any = None

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        return Scripted(answer=self.answer, offered=[t.name for t in tools])

    def _generate(self, messages: Any, stop: Any = None, run_manager: Any = None, **more: Any) -> ChatResult:
        given = (
            self.answer(messages, self.offered)
            if self.answer.__code__.co_argcount > 1
            else self.answer(messages)
        )
        return ChatResult(generations=[ChatGeneration(message=given)])


class Seats:
    def __init__(self) -> None:
        self.booked: Counter[int] = Counter()
        seats = self

        @tool
        def book(seat: int) -> str:
            """Book a seat."""
            seats.booked[seat] += 1
            return f"seat {seat} is yours"

        @tool
        def find(where: str) -> str:
            """Find a seat."""
            return "nothing found"

        self.tools = [book, find]


def make(**parts: Any) -> Guard:
    guard = Guard(**parts)
    guard.tool(effect="write", name="book")(len)
    guard.tool(effect="read", name="find")(len)
    return guard


def calls(*wanted: tuple[str, dict[str, Any]]) -> AIMessage:
    made = [{"id": f"c{i}-{id(wanted)}", "name": name, "args": args} for i, (name, args) in enumerate(wanted)]
    return AIMessage(content="", tool_calls=made)


def find() -> AIMessage:
    return calls(("find", {"where": "aisle"}))


def told(messages: list[AnyMessage]) -> bool:
    return any(message.text.startswith("[guard]") for message in messages)


def run(guard: Guard, seats: Seats, model: Model, **options: Any) -> tuple[dict[str, Any], Session]:
    sessions: list[Session] = []
    middleware = [guard.langchain(on_run=sessions.append), *options.pop("middleware", [])]
    agent = create_agent(Scripted(answer=model), seats.tools, middleware=middleware, **options)
    given = {"messages": [HumanMessage("Book seat 4.")]}
    return agent.invoke(given, {"recursion_limit": 60}), sessions[-1]


def whole(messages: list[AnyMessage]) -> bool:
    """Check that each call is directly followed by its result, and each result has its call."""
    wanted: set[str] = set()
    for message in messages:
        if isinstance(message, ToolMessage):
            if message.tool_call_id not in wanted:
                return False
            wanted.discard(message.tool_call_id)
        elif wanted:
            return False
        elif isinstance(message, AIMessage):
            wanted = {str(call["id"]) for call in message.tool_calls}
    return not wanted


def test_clean_run_is_unchanged() -> None:
    seats = Seats()
    given = iter([calls(("book", {"seat": 4})), AIMessage("Seat 4 is booked.")])
    out, session = run(make(), seats, lambda messages: next(given))
    assert [message.type for message in out["messages"]] == ["human", "ai", "tool", "ai"]
    assert set(out) == {"messages"}, "the guard's own channel stays inside"
    assert (session.recoveries, session.has_ended, len(session)) == ([], True, 3)


def test_loop_is_cut_at_a_turn_boundary() -> None:
    seats = Seats()

    def model(messages: list[AnyMessage]) -> AIMessage:
        assert whole(messages)
        return AIMessage("There is none.") if told(messages) else find()

    out, session = run(make(recover=RecoveryPolicy(on_fail="rollback")), seats, model)
    assert whole(out["messages"])
    assert [recovery.outcome for recovery in session.recoveries] == [RecoveryOutcome.UNKNOWN]
    assert len(session.run.branches[0].steps) == 2


def test_parallel_calls_are_removed_together() -> None:
    seats = Seats()

    def model(messages: list[AnyMessage]) -> AIMessage:
        assert whole(messages)
        if told(messages):
            return AIMessage("There is none.")
        return calls(("find", {"where": "aisle"}), ("find", {"where": "window"}))

    out, session = run(make(recover=RecoveryPolicy(on_fail="rollback")), seats, model)
    assert whole(out["messages"])
    assert session.recoveries


def test_booking_of_abandoned_branch_is_not_repeated() -> None:
    seats = Seats()
    book = {"seat": 4}
    given = iter([calls(("book", book)), AIMessage("No idea."), calls(("book", book)), AIMessage("Seat 4.")])
    guard = make(
        recover=RecoveryPolicy(on_fail="rollback"),
        localizer=First(1),
        accept=lambda run: run.steps[-1].content.startswith("Seat"),
    )
    out, session = run(guard, seats, lambda messages: next(given))
    assert seats.booked == {4: 1}
    assert out["messages"][-1].text == "Seat 4."
    assert "seat 4 is yours" in next(m.text for m in out["messages"] if told([m]))
    assert session.recoveries[0].plan.step == 1


def test_turn_is_refused_before_its_tools_run() -> None:
    seats = Seats()
    given = iter(
        [calls(("book", {"seat": 4}), ("fly", {})), calls(("book", {"seat": 4})), AIMessage("Done.")]
    )
    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    out, session = run(guard, seats, lambda messages: next(given))
    assert seats.booked == {4: 1}
    assert not any(call["name"] == "fly" for m in out["messages"] for call in getattr(m, "tool_calls", ()))
    assert session.run.branches[0].steps[0].tool_calls[1].name == "fly"


def test_hint_of_a_refusal_persists_in_later_turns() -> None:
    seats, seen = Seats(), list[list[AnyMessage]]()
    given = iter([calls(("fly", {})), find(), AIMessage("None.")])

    def model(messages: list[AnyMessage]) -> AIMessage:
        seen.append(messages)
        return next(given)

    out, session = run(make(recover=RecoveryPolicy(on_fail="rollback")), seats, model)
    assert [told(messages) for messages in seen] == [False, True, True]
    assert [m.type for m in out["messages"]] == ["human", "human", "ai", "tool", "ai"]
    assert len(session) == 3, "what the guard says is no step"


class Seat(BaseModel):
    seat: int


@pytest.mark.parametrize("wanted", [Seat, ToolStrategy(Seat)])
def test_structured_output_can_be_refused_and_is_a_known_tool(wanted: Any) -> None:
    seats = Seats()
    given = iter([calls(("book", {"seat": 4})), calls(("Seat", {"seat": 9})), calls(("Seat", {"seat": 4}))])
    accept = lambda run: run.steps[-1].tool_calls[0].arguments == {"seat": 4} or "wrong"  # noqa: E731
    guard = make(recover=RecoveryPolicy(on_fail="rollback"), localizer=First(2), accept=accept)
    out, session = run(guard, seats, lambda messages: next(given), response_format=wanted)
    assert out["structured_response"] == Seat(seat=4)
    assert [recovery.trigger for recovery in session.recoveries] == ["acceptance"]
    assert whole(out["messages"])
    assert seats.booked == {4: 1}


def test_tool_added_during_the_run_is_known() -> None:
    @tool
    def pay(order: str) -> str:
        """Pay an order."""
        return "paid"

    class Later(AgentMiddleware[Any, Any, Any]):
        """Middleware listed before the guard: its tool is in the request that the guard gets."""

        tools = [pay]  # noqa: RUF012

        def wrap_model_call(self, request: Any, handler: Any) -> Any:
            begun = any(isinstance(m, AIMessage) for m in request.messages)
            kept = [one for one in request.tools if begun or one.name != "pay"]
            return handler(request.override(tools=kept))

    sessions: list[Session] = []
    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    given = iter([find(), calls(("pay", {"order": "7"})), AIMessage("Paid.")])
    agent = create_agent(
        Scripted(answer=lambda messages: next(given)),
        Seats().tools,
        middleware=[Later(), guard.langchain(on_run=sessions.append)],
    )
    out = agent.invoke({"messages": [HumanMessage("Pay.")]})
    assert out["messages"][-1].text == "Paid."
    assert sessions[0].recoveries == []


def test_counters_of_other_middleware_count_if_guard_is_first() -> None:
    seats = Seats()
    limit = ModelCallLimitMiddleware(run_limit=4)
    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    out, session = run(guard, seats, lambda messages: find(), middleware=[limit])
    assert sum(step.source == "agent" for step in session.run.steps) <= 5
    assert "limit" in out["messages"][-1].text.lower()


def test_asynchronous_agents_are_guarded() -> None:
    seats = Seats()
    sessions: list[Session] = []
    undone: list[int] = []

    async def cancel(seat: int) -> None:
        undone.append(seat)

    guard = Guard(
        localizer=First(1), recover=RecoveryPolicy(on_fail="compensate"), accept=lambda run: bool(undone)
    )
    guard.tool(effect="write", undo=cancel, name="book")(len)
    given = iter([calls(("book", {"seat": 9})), AIMessage("Done."), AIMessage("Undone.")])
    agent = create_agent(
        Scripted(answer=lambda messages: next(given)),
        seats.tools,
        middleware=[guard.langchain(on_run=sessions.append)],
    )
    out = asyncio.run(agent.ainvoke({"messages": [HumanMessage("Book seat 4.")]}))
    assert undone == [9]
    assert "were undone: book" in "".join(m.text for m in out["messages"])
    assert sessions[0].recoveries[0].outcome is RecoveryOutcome.CONFIRMED


def test_tool_that_only_pauses_is_called_again() -> None:
    done: list[str] = []

    @tool
    def pay(order: str) -> str:
        """Pay an order."""
        if interrupt("pay?") == "yes":
            done.append(order)
        return "paid"

    guard = make()
    guard.tool(effect="destructive", name="pay")(len)
    given = iter([calls(("pay", {"order": "7"})), AIMessage("Paid.")])
    agent = create_agent(
        Scripted(answer=lambda messages: next(given)),
        [pay],
        middleware=[guard.langchain()],
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "1"}}
    agent.invoke({"messages": [HumanMessage("Pay order 7.")]}, config)
    out = agent.invoke(Command(resume="yes"), config)
    assert done == ["7"]
    assert out["messages"][-1].text == "Paid."


class Asks(AgentMiddleware[Any, Any, Any]):
    """Middleware that asks a person about the result of each call, after the tool has returned."""

    def __init__(self) -> None:
        super().__init__()
        self.answers: list[Any] = []

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        result = handler(request)
        self.answers.append(interrupt(f"keep {result.text!r}?"))
        return result

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        result = await handler(request)
        self.answers.append(interrupt(f"keep {result.text!r}?"))
        return result


@pytest.mark.parametrize("asynchronous", [False, True])
@pytest.mark.parametrize("fresh", [False, True])
def test_pause_after_tool_result_does_not_call_tool_again(
    asynchronous: bool, fresh: bool, tmp_path: Any
) -> None:
    """LangGraph runs the whole node again on resume; ``fresh`` simulates a new process."""
    seats, asks, saver, sessions = Seats(), Asks(), InMemorySaver(), list[Session]()
    store = Store.open(tmp_path / "runs.db")
    given = iter([calls(("book", {"seat": 4})), AIMessage("Seat 4.")])

    def agent() -> Any:
        guard = make(store=store)
        middleware = [guard.langchain(on_run=sessions.append), asks]
        model = Scripted(answer=lambda messages: next(given))
        return create_agent(model, seats.tools, middleware=middleware, checkpointer=saver)

    def go(made: Any, input: Any) -> Any:
        config = {"configurable": {"thread_id": "1"}}
        if asynchronous:
            return asyncio.run(made.ainvoke(input, config))
        return made.invoke(input, config)

    made = agent()
    out = go(made, {"messages": [HumanMessage("Book seat 4.")]})
    assert out["__interrupt__"][0].value == "keep 'seat 4 is yours'?"
    store.flush()
    out = go(agent() if fresh else made, Command(resume="yes"))
    store.close()
    assert seats.booked == {4: 1}
    assert asks.answers == ["yes"], "whoever asked gets the answer"
    assert [m.text for m in out["messages"]] == ["Book seat 4.", "", "seat 4 is yours", "Seat 4."]
    assert [effect.state for effect in sessions[-1].ledger.effects()] == ["done"]


def test_configured_tool_retry_is_one_call() -> None:
    tries = iter([ConnectionError("no line"), None])

    @tool
    def pay(order: str) -> str:
        """Pay an order."""
        error = next(tries)
        if error is not None:
            raise error
        return "paid"

    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    sessions: list[Session] = []
    given = iter([calls(("pay", {"order": "7"})), AIMessage("Paid.")])
    middleware = [
        guard.langchain(on_run=sessions.append),
        ToolRetryMiddleware(max_retries=1, initial_delay=0),
    ]
    agent = create_agent(Scripted(answer=lambda messages: next(given)), [pay], middleware=middleware)
    out = agent.invoke({"messages": [HumanMessage("Pay.")]})
    assert out["messages"][-1].text == "Paid."
    assert [effect.state for effect in sessions[0].ledger.effects()] == ["done"]


def test_disabled_tool_is_not_offered() -> None:
    seats = Seats()
    offers: list[list[str]] = []

    def model(messages: list[AnyMessage], offered: list[str]) -> AIMessage:
        offers.append(offered)
        return find() if "find" in offered else AIMessage("There is none.")

    run(make(recover=RecoveryPolicy(on_fail="disable_tool")), seats, model)
    assert offers[-1] == ["book"]


def test_stop_ends_run_with_reason() -> None:
    out, session = run(make(recover=RecoveryPolicy(on_fail="stop")), Seats(), lambda messages: find())
    assert session.stop_reason
    assert session.stop_reason in out["messages"][-1].text


def test_thread_with_history_is_a_new_run_each_time() -> None:
    seats = Seats()
    sessions: list[Session] = []
    agent = create_agent(
        Scripted(answer=lambda messages: AIMessage("Hello.")),
        seats.tools,
        middleware=[make().langchain(on_run=sessions.append)],
        checkpointer=InMemorySaver(),
    )
    config: Any = {"configurable": {"thread_id": "1"}}
    for text in ("Hi.", "Hi again."):
        agent.invoke({"messages": [HumanMessage(text)]}, config)
    assert [len(session) for session in sessions] == [2, 4]
    assert [session.run.task for session in sessions] == ["Hi.", "Hi again."]


def test_stop_before_tools_prevents_their_execution() -> None:
    seats = Seats()
    given = iter([calls(("book", {"seat": 4}), ("fly", {}))])
    out, session = run(make(recover=RecoveryPolicy(on_fail="stop")), seats, lambda messages: next(given))
    assert not seats.booked
    assert session.stop_reason
    assert session.stop_reason in out["messages"][-1].text


class Shortens(AgentMiddleware[Any, Any, Any]):
    """Middleware that replaces all but the last turn by a summary, as soon as there are two."""

    def before_model(self, state: Any, runtime: Any) -> dict[str, Any] | None:
        made = split_turns(state["messages"])
        if len(made) < 3:
            return None
        kept = [HumanMessage("Summary: seat 4 is wanted."), *made[-1]]
        return {"messages": [RemoveMessage(id=REMOVE_ALL_MESSAGES), *kept]}


def test_summarised_turns_remain_known() -> None:
    seats = Seats()
    places = iter(["a", "b", "c", "c", "c", "c", "c", "c"])
    histories: list[list[str]] = []

    def model(messages: list[AnyMessage]) -> AIMessage:
        assert whole(messages)
        histories.append([message.text for message in messages])
        return AIMessage("There is none.") if told(messages) else calls(("find", {"where": next(places)}))

    guard = make(recover=RecoveryPolicy(on_fail="rollback"))
    _, session = run(guard, seats, model, middleware=[Shortens()])
    made = [step.tool_calls[0].arguments["where"] for step in session.run.branches[0].steps]
    assert set(made) == {"c"}, "only the loop was left"
    assert len(session.recoveries) == 1
    assert histories[-1][0] == "Summary: seat 4 is wanted."
    assert [step.source for step in session.run.steps].count("user") == 1, "a summary is no step"


def test_summarization_middleware_does_not_hide_turns_from_guard() -> None:
    seats = Seats()
    summary = SummarizationMiddleware(
        Scripted(answer=lambda messages: AIMessage("Seat 4 is wanted.")),
        trigger=("messages", 4),
        keep=("messages", 2),
    )
    count = iter(range(99))

    def model(messages: list[AnyMessage]) -> AIMessage:
        assert whole(messages)
        if told(messages) or next(count) > 20:
            return AIMessage("There is none.")
        return find()

    out, session = run(make(recover=RecoveryPolicy(on_fail="rollback")), seats, model, middleware=[summary])
    assert next(count) < 10, "the loop was seen although its turns were summed up"
    assert session.recoveries
    assert whole(out["messages"])


def test_rollback_never_removes_the_task() -> None:
    given = iter([AIMessage("No idea."), AIMessage("Seat 4.")])
    guard = make(
        recover=RecoveryPolicy(on_fail="rollback"),
        localizer=First(0),
        accept=lambda run: run.steps[-1].content.startswith("Seat"),
    )
    out, session = run(guard, Seats(), lambda messages: next(given))
    assert [message.text for message in out["messages"]][:1] == ["Book seat 4."]
    assert [step.content for step in session.run.steps] == ["Book seat 4.", "Seat 4."]


def test_truncation_keeps_turns_complete() -> None:
    ask, first = HumanMessage("go"), calls(("find", {"where": "a"}), ("find", {"where": "b"}))
    seen = [ToolMessage("x", tool_call_id=str(call["id"])) for call in first.tool_calls]
    hint, last = build_guard_message("[guard] look"), AIMessage("end")
    messages: list[AnyMessage] = [ask, first, *seen, hint, last]
    line = MessageBranch()
    assert [len(turn) for turn in line.add_new_turns(messages, 0)] == [1, 3, 1]
    assert line.add_new_turns(messages, 3) == []
    assert line.truncate(messages, 0) == [ask], "the task stays"
    assert line.truncate(messages, 1) == [ask]
    assert line.truncate(messages, 2) == [ask, first, *seen], (
        "what the guard said goes with the turn after it"
    )
    assert line.truncate(messages, 3) == messages


def test_branch_identifies_turns_by_message_id() -> None:
    messages: list[AnyMessage] = [
        HumanMessage("go", id="0"),
        *(AIMessage("x", id=str(i)) for i in range(1, 5)),
    ]
    line = MessageBranch()
    line.add_new_turns(messages, 0)
    short: list[AnyMessage] = [HumanMessage("what was", id="s"), *messages[3:], AIMessage("new", id="5")]
    assert [turn[0].id for turn in line.add_new_turns(short, 5)] == ["5"]
    assert line.count_steps(short) == 6
    assert line.count_steps(messages[:2]) == 2
    assert line.truncate(short, 1) == short[:1], "the summary stays, what came after the step goes"
    assert line.truncate(short, 4) == short[:2]
    assert line.truncate(short, 9) == short


def test_run_killed_in_its_tools_resumes_in_another_process(tmp_path: Any) -> None:
    """The guard and the agent are created again, as in a new process; only saver and store remain."""
    seats, saver, sessions = Seats(), InMemorySaver(), list[Session]()
    died = iter([True])
    url = f"sqlite:///{tmp_path / 'runs.db'}"

    @tool
    def book(seat: int) -> str:
        """Book a seat."""
        seats.booked[seat] += 1
        if next(died, False):
            raise KeyboardInterrupt
        return "yours"

    def model(messages: list[AnyMessage]) -> AIMessage:
        return (find(), calls(("book", {"seat": 4})), AIMessage("Seat 4."))[len(messages) // 2]

    def process(store: Store, given: Any) -> Any:
        agent = create_agent(
            Scripted(answer=model),
            [book, seats.tools[1]],
            middleware=[make(store=store).langchain(on_run=sessions.append)],
            checkpointer=saver,
        )
        return agent.invoke(given, {"configurable": {"thread_id": "1"}}, durability="sync")

    with Store.open(url) as store:
        with pytest.raises(KeyboardInterrupt):
            process(store, {"messages": [HumanMessage("Book seat 4.")]})
        store.flush()
    with Store.open(url) as store:
        out = process(store, None)
        store.flush()
    assert seats.booked == {4: 1}
    assert "was not repeated" in out["messages"][-2].text
    assert sessions[0].id == sessions[1].id
    assert [step.source.value for step in sessions[1].run.steps] == ["user", "agent", "agent", "agent"]


def test_example_runs() -> None:
    script = Path(__file__).parents[3] / "examples" / "guard_langchain.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "Seat 4 is booked.\nbooked: [4], messages in the history: 7\nrollback (confirmed)"
    )


def test_repaired_answer_is_updated_in_every_provider_field() -> None:
    block = {"type": "tool_use", "id": "c1", "name": "Book", "input": {"seat": "4"}}
    answer = AIMessage(
        content=[{"type": "text", "text": "I book it."}, block],
        tool_calls=[{"id": "c1", "name": "Book", "args": {"seat": "4"}}],
        invalid_tool_calls=[
            {"type": "invalid_tool_call", "id": "c2", "name": "find", "args": "where", "error": None}
        ],
        additional_kwargs={"tool_calls": [{"id": "c1"}], "kept": 1},
    )
    call = ToolCall(id="c1", name="book", arguments={"seat": 4})
    made = apply_repaired_turn(answer, replace(build_step([answer], agent="a"), tool_calls=(call,)))
    assert made.tool_calls == [{"type": "tool_call", "id": "c1", "name": "book", "args": {"seat": 4}}]
    assert made.content[1] == {**block, "name": "book", "input": {"seat": 4}}
    assert made.invalid_tool_calls == answer.invalid_tool_calls
    assert made.additional_kwargs == {"kept": 1}


def test_error_result_of_a_failed_call_has_no_effect_and_the_call_may_run_at_once() -> None:
    made, requests = list[str](), list[int]()

    def reserve(item: str) -> str:
        """Reserve an item."""
        made.append(item)
        if len(made) < 5:
            raise ToolException("503 Service Unavailable")
        return "12 reserved"

    def model(messages: list[AnyMessage]) -> AIMessage:
        requests.append(len(messages))
        is_known = any("12 reserved" in message.text for message in messages)
        return AIMessage("12.") if is_known else calls(("reserve", {"item": "bolt"}))

    tools = [StructuredTool.from_function(reserve, handle_tool_error=True)]
    agent = create_agent(Scripted(answer=model), tools, middleware=[Guard().langchain()])
    agent.invoke({"messages": [HumanMessage("Reserve the bolts.")]})
    assert (len(made), len(requests)) == (5, 6)


def test_error_result_of_an_interrupted_call_leaves_its_outcome_unknown() -> None:
    made: list[str] = []

    def pay(amount: int) -> str:
        """Pay."""
        made.append("paid")
        raise ToolException("the request timed out")

    given = iter([*(calls(("pay", {"amount": 3})) for _ in range(4)), AIMessage("Not confirmed.")])
    guard = Guard()
    guard.tool(effect="destructive", name="pay")(len)
    tools = [StructuredTool.from_function(pay, handle_tool_error=True)]
    agent = create_agent(Scripted(answer=lambda messages: next(given)), tools, middleware=[guard.langchain()])
    agent.invoke({"messages": [HumanMessage("Pay 3.")]})
    assert made == ["paid"]
