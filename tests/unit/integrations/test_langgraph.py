"""LangGraph's graphs under the guard: the real framework, with real checkpointers."""

from __future__ import annotations

import asyncio
import operator
import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

import pytest
from langchain.agents import create_agent
from langchain.agents.middleware import HumanInTheLoopMiddleware, TodoListMiddleware
from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.errors import GraphRecursionError
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, tools_condition
from langgraph.types import Command, RetryPolicy, interrupt

from agentguard.errors import ConfigError, RecoveryError
from agentguard.guard import Guard
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.plan import RecoveryOutcome
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.session import Session
from agentguard.store import Store
from tests.unit.integrations.test_langchain import Scripted, Seats, calls, find, make, told, whole
from tests.unit.integrations.test_loop import First

Model = Callable[[list[AnyMessage]], AIMessage]


class State(MessagesState):
    turns: Annotated[int, operator.add]
    todos: Annotated[list[str], operator.add]


def graph_of(model: Model, tools: Any, *, checkpointer: Any = None, **compiled: Any) -> Any:
    """Return a custom graph: a model that also writes to other channels, and a tool node."""

    def think(state: State) -> dict[str, Any]:
        assert whole(state["messages"]), "no call is without its answer"
        answer = model(state["messages"])
        return {"messages": [answer], "turns": 1, "todos": [answer.text or "call"]}

    built = StateGraph(State)
    built.add_node("think", think)
    built.add_node("act", tools)
    built.add_edge(START, "think")
    built.add_conditional_edges("think", tools_condition, {"tools": "act", "__end__": "__end__"})
    built.add_edge("act", "think")
    saver = InMemorySaver() if checkpointer is None else checkpointer
    return built.compile(checkpointer=saver, **compiled)


def on(thread: str, **more: Any) -> Any:
    return {"configurable": {"thread_id": thread}, "recursion_limit": 60, **more}


def ask(text: str = "Book seat 4.") -> dict[str, Any]:
    return {"messages": [HumanMessage(text)]}


def looping(messages: list[AnyMessage]) -> AIMessage:
    return AIMessage("There is none.") if told(messages) else find()


def seated(run: Any) -> bool:
    return bool(run.steps[-1].content.startswith("Seat"))


def booking() -> Model:
    """Return a model that books, gives up, and after a hint books again and reports it."""
    book = {"seat": 4}
    given = iter([calls(("book", book)), AIMessage("No idea."), calls(("book", book)), AIMessage("Seat 4.")])
    return lambda messages: next(given)


def rolling(**parts: Any) -> Guard:
    return make(recover=RecoveryPolicy(on_fail="rollback"), **parts)


def test_clean_run_is_unchanged() -> None:
    seats = Seats()
    given = iter([calls(("book", {"seat": 4})), AIMessage("Seat 4 is booked.")])
    guard = make()
    app = guard.langgraph(graph_of(lambda messages: next(given), guard.langgraph_tools(seats.tools)))
    out = app.invoke(ask(), on("1"))
    session = app.get_session(on("1"))
    assert [message.type for message in out["messages"]] == ["human", "ai", "tool", "ai"]
    assert (session.recoveries, session.has_ended, len(session)) == ([], True, 3)
    assert session.run.task == "Book seat 4."
    assert {spec.name for spec in session.run.tools} == {"book", "find"}


def test_loop_is_forked_and_all_channels_are_restored() -> None:
    guard, seats = rolling(), Seats()
    graph = graph_of(looping, guard.langgraph_tools(seats.tools))
    app = guard.langgraph(graph)
    out = app.invoke(ask(), on("1"))
    session = app.get_session(on("1"))
    left = len(session.run.branches[0].steps)
    assert whole(out["messages"])
    assert [recovery.outcome for recovery in session.recoveries] == [RecoveryOutcome.UNKNOWN]
    assert session.recoveries[0].plan.actions[0].by == "fork"
    answers = [m for m in out["messages"] if isinstance(m, AIMessage)]
    assert (out["turns"], len(out["todos"])) == (len(answers), len(answers)), "other channels went back, too"
    most = max(state.values.get("turns", 0) for state in graph.get_state_history(on("1")))
    assert most > out["turns"], "and the line that was left is still in the thread"
    assert left == 2


def test_booking_is_not_repeated_when_its_node_runs_again() -> None:
    guard, seats = rolling(localizer=First(1), accept=seated), Seats()
    app = guard.langgraph(graph_of(booking(), guard.langgraph_tools(seats.tools)))
    out = app.invoke(ask(), on("1"))
    assert seats.booked == {4: 1}
    assert out["messages"][-1].text == "Seat 4."
    assert "seat 4 is yours" in next(m.text for m in out["messages"] if told([m]))
    assert out["turns"] == 2, "an end that was refused is forked, too"


@pytest.mark.parametrize("invented", [1, 2, 3])
def test_agent_without_middleware_corrects_invented_tool(invented: int) -> None:
    seats, answers = Seats(), list[AIMessage]()
    for number in range(invented):
        call = {"id": f"fly-{number}", "name": "fly", "args": {}}
        answers.append(AIMessage(content="", tool_calls=[call]))
    given = iter([*answers, calls(("book", {"seat": 4})), AIMessage("Seat 4 is booked.")])
    agent = create_agent(
        Scripted(answer=lambda messages: next(given)), seats.tools, checkpointer=InMemorySaver()
    )
    out = make().langgraph(agent).invoke(ask(), on("1"))
    assert out["messages"][-1].text == "Seat 4 is booked."
    assert seats.booked == {4: 1}


def test_agent_with_middleware_has_one_session_and_refuses_answers() -> None:
    seats, sessions = Seats(), list[Session]()
    given = iter(
        [
            calls(("book", {"seat": 4}), ("fly", {})),
            calls(("book", {"seat": 4})),
            AIMessage("No idea."),
            calls(("book", {"seat": 4})),
            AIMessage("Seat 4."),
        ]
    )
    twice = RecoveryPolicy(on_fail="rollback", budget=RecoveryBudget(rollbacks_per_step=2))
    guard = make(recover=twice, localizer=First(1), accept=seated)
    others: list[Session] = []
    agent = create_agent(
        Scripted(answer=lambda messages: next(given)),
        seats.tools,
        middleware=[guard.langchain(on_run=others.append)],
        checkpointer=InMemorySaver(),
    )
    out = guard.langgraph(agent, on_run=sessions.append).invoke(ask(), on("1"))
    assert others == [], "the middleware has no run of its own"
    assert [recovery.plan.tier.name for recovery in sessions[0].recoveries] == ["REJECT", "FORK"]
    assert seats.booked == {4: 1}
    assert out["messages"][-1].text == "Seat 4."
    assert whole(out["messages"])


def test_agent_without_middleware_is_forked() -> None:
    seats, guard = Seats(), rolling()
    agent = create_agent(Scripted(answer=looping), seats.tools, checkpointer=InMemorySaver())
    app = guard.langgraph(agent)
    out = app.invoke(ask(), on("1"))
    assert app.get_session(on("1")).recoveries
    assert whole(out["messages"])
    assert out["messages"][-1].text == "There is none."


def test_asynchronous_methods_behave_equally() -> None:
    seats, undone = Seats(), list[int]()

    async def cancel(seat: int) -> None:
        undone.append(seat)

    given = iter([calls(("book", {"seat": 9})), AIMessage("Done."), AIMessage("Undone.")])
    guard = Guard(
        localizer=First(1), recover=RecoveryPolicy(on_fail="compensate"), accept=lambda run: bool(undone)
    )
    guard.tool(effect="write", undo=cancel, name="book")(len)
    app = guard.langgraph(graph_of(lambda messages: next(given), guard.langgraph_tools(seats.tools)))

    async def both() -> Any:
        return [chunk async for chunk in app.astream(ask(), on("1"), stream_mode="values")]

    chunks = asyncio.run(both())
    assert undone == [9]
    assert "were undone: book" in "".join(m.text for m in chunks[-1]["messages"])
    assert app.get_session(on("1")).recoveries[0].outcome is RecoveryOutcome.CONFIRMED
    other = rolling()
    app = other.langgraph(graph_of(looping, other.langgraph_tools(seats.tools)))
    out = asyncio.run(app.ainvoke(ask(), on("2")))
    assert whole(out["messages"])
    assert app.get_session(on("2")).recoveries


def test_guarded_stream_equals_unguarded_stream() -> None:
    seats = Seats()

    def stream(guarded: bool, mode: Any) -> list[Any]:
        given = iter([find(), AIMessage("None.")])
        guard = make()
        graph = graph_of(lambda messages: next(given), guard.langgraph_tools(seats.tools))
        app = guard.langgraph(graph) if guarded else graph
        return list(app.stream({"messages": [HumanMessage("go", id="0")]}, on("1"), stream_mode=mode))

    for mode in ("values", "updates", ["values", "updates"]):
        plain, guarded = stream(False, mode), stream(True, mode)
        assert [_shown(chunk) for chunk in guarded] == [_shown(chunk) for chunk in plain], mode
    assert len(stream(True, "values")) == 4


@pytest.mark.parametrize("subgraphs", [False, True])
@pytest.mark.parametrize("version", ["v1", "v2"])
@pytest.mark.parametrize("mode", ["updates", "checkpoints", ["checkpoints", "debug"], ["values"]])
def test_chunks_of_guarded_stream_have_the_form_of_the_graph(
    mode: Any, version: str, *, subgraphs: bool
) -> None:
    def stream(*, is_guarded: bool) -> list[Any]:
        given, guard = iter([find(), AIMessage("None.")]), make()
        graph = graph_of(lambda messages: next(given), guard.langgraph_tools(Seats().tools))
        app = guard.langgraph(graph) if is_guarded else graph
        options = {"stream_mode": mode, "subgraphs": subgraphs, "version": version}
        return [_read_form(chunk) for chunk in app.stream(ask(), on("1"), **options)]

    assert stream(is_guarded=True) == stream(is_guarded=False)


def _read_form(chunk: Any) -> Any:
    """Return the mode, the namespace and the keys of a chunk."""
    if isinstance(chunk, tuple):
        return tuple(part if isinstance(part, str | tuple) else sorted(part) for part in chunk)
    return {**chunk, "data": sorted(chunk["data"])} if "data" in chunk else sorted(chunk)


class CountingSaver(InMemorySaver):
    """Checkpointer that counts the loads of a thread's state."""

    loads = 0

    def get_tuple(self, config: Any) -> Any:
        self.loads += 1
        return super().get_tuple(config)


@pytest.mark.parametrize("turns", [1, 12])
def test_clean_run_loads_its_state_at_its_begin_and_end_only(turns: int) -> None:
    saver, guard = CountingSaver(), make()
    answers = [calls(("book", {"seat": seat})) for seat in range(turns)]
    given = iter([*answers, AIMessage("Done.")])
    graph = graph_of(lambda messages: next(given), guard.langgraph_tools(Seats().tools), checkpointer=saver)
    guard.langgraph(graph).invoke(ask("Book all seats."), on("1"))
    assert saver.loads == 3, "before the call, by the graph, and after the call"


def test_rolled_back_turn_is_no_error_of_the_graph() -> None:
    errors: list[BaseException] = []

    class Watcher(BaseCallbackHandler):
        def on_chain_error(self, error: BaseException, **_: Any) -> None:
            errors.append(error)

    guard = rolling()
    app = guard.langgraph(graph_of(looping, guard.langgraph_tools(Seats().tools)))
    app.invoke(ask(), on("1", callbacks=[Watcher()]))
    assert app.get_session(on("1")).recoveries
    assert errors == []


def _shown(chunk: Any) -> Any:
    """Return a chunk without the ids that differ between runs."""
    if isinstance(chunk, tuple):
        return (chunk[0], _shown(chunk[1]))
    return {key: len(value) if isinstance(value, list) else value for key, value in chunk.items()} | {
        key: sorted(value) for key, value in chunk.items() if isinstance(value, dict)
    }


def test_stream_shows_the_state_restored_by_fork() -> None:
    guard = rolling()
    app = guard.langgraph(graph_of(looping, guard.langgraph_tools(Seats().tools)))
    lengths = [len(chunk["messages"]) for chunk in app.stream(ask(), on("1"), stream_mode="values")]
    assert any(later < earlier for earlier, later in pairwise(lengths))


@pytest.mark.parametrize("durability", ["sync", "async", "exit"])
def test_every_durability_keeps_boundaries_for_forks(durability: str) -> None:
    guard = rolling()
    app = guard.langgraph(graph_of(looping, guard.langgraph_tools(Seats().tools)))
    out = app.invoke(ask(), on("1"), durability=durability)
    assert out["turns"] == len([m for m in out["messages"] if isinstance(m, AIMessage)])
    assert app.get_session(on("1")).recoveries


class Forgetful(InMemorySaver):
    """Checkpointer that keeps only the latest checkpoint."""

    def list(self, config: Any, **more: Any) -> Any:
        yield from list(super().list(config, **more))[:1]


def test_checkpointer_with_only_latest_state_is_reported() -> None:
    guard = rolling()
    graph = graph_of(looping, guard.langgraph_tools(Seats().tools), checkpointer=Forgetful())
    with pytest.raises(RecoveryError, match="durability='exit'"):
        guard.langgraph(graph).invoke(ask(), on("1"))


def test_turns_without_checkpoint_cannot_be_forked_to() -> None:
    """The run began without the guard, with durability='exit', and was interrupted there."""
    guard, seats = rolling(localizer=First(1), accept=seated), Seats()
    given = iter([find(), find(), AIMessage("No idea."), AIMessage("Seat 4.")])
    graph = graph_of(lambda messages: next(given), guard.langgraph_tools(seats.tools))
    graph.invoke(ask(), on("1"), durability="exit", interrupt_after=["think"])
    graph.invoke(None, on("1"), durability="exit", interrupt_after=["think"])
    app = guard.langgraph(graph)
    with pytest.raises(RecoveryError, match="no checkpoint before step 1"):
        app.invoke(None, on("1"))


def test_rollbacks_count_against_the_recursion_limit() -> None:
    guard = make(recover=RecoveryPolicy(on_fail="hint"))
    app = guard.langgraph(graph_of(lambda messages: find(), guard.langgraph_tools(Seats().tools)))
    with pytest.raises(GraphRecursionError):
        app.invoke(ask(), on("1", recursion_limit=12))
    steps = [s.metadata["step"] for s in app.get_state_history(on("1"))]
    assert max(steps) <= 12 + 2, "one limit for all segments together"


def test_interrupts_of_graph_pass_through_and_resume() -> None:
    paid: list[str] = []

    @tool
    def pay(order: str) -> str:
        """Pay an order."""
        if interrupt("pay?") == "yes":
            paid.append(order)
        return "paid"

    guard = make()
    guard.tool(effect="destructive", name="pay")(len)
    given = iter([calls(("pay", {"order": "7"})), AIMessage("Paid.")])
    app = guard.langgraph(graph_of(lambda messages: next(given), guard.langgraph_tools([pay])))
    out = app.invoke(ask(), on("1"))
    assert out["__interrupt__"][0].value == "pay?"
    assert not app.get_session(on("1")).has_ended
    before = app.get_session(on("1"))
    out = app.invoke(Command(resume="yes"), on("1"))
    assert app.get_session(on("1")) is before, "it is the same run"
    assert paid == ["7"]
    assert out["messages"][-1].text == "Paid."
    assert (before.has_ended, len(before)) == (True, 3)


@pytest.mark.parametrize("same", [False, True])
def test_calls_beside_paused_call_run_once_though_their_node_runs_again(same: bool) -> None:
    """A tool node runs all calls of a turn; on resume, it runs completed calls again."""
    seats, asked = Seats(), list[str]()

    @tool
    def confirm(what: str) -> str:
        """Ask a person."""
        asked.append(str(interrupt(what)))
        return asked[-1]

    wanted = [("book", {"seat": 4}), ("book", {"seat": 4 if same else 5}), ("confirm", {"what": "sure?"})]
    given = iter([calls(*wanted), AIMessage("Seat 4.")])
    guard = make()
    guard.tool(effect="write", name="confirm")(len)
    tools = guard.langgraph_tools([*seats.tools, confirm])
    app = guard.langgraph(graph_of(lambda messages: next(given), tools))
    assert app.invoke(ask(), on("1"))["__interrupt__"][0].value == "sure?"
    out = app.invoke(Command(resume="yes"), on("1"))
    assert seats.booked == ({4: 2} if same else {4: 1, 5: 1})
    assert asked == ["yes"]
    assert [m.text for m in out["messages"]][-2:] == ["yes", "Seat 4."]
    session = app.get_session(on("1"))
    assert [effect.state for effect in session.ledger.effects()] == ["done"] * 3


def test_retried_node_repeats_no_effect() -> None:
    seats, tries = Seats(), iter([True])

    @tool
    def pay(order: str) -> str:
        """Pay an order."""
        if next(tries, False):
            raise ConnectionError("no line")
        return "paid"

    guard = make()
    given = iter([calls(("book", {"seat": 4}), ("pay", {"order": "7"})), AIMessage("Seat 4.")])
    tools = guard.langgraph_tools([*seats.tools, pay], handle_tool_errors=False)
    built = graph_of(lambda messages: next(given), tools).builder
    built.nodes["act"].retry_policy = RetryPolicy(
        initial_interval=0.01, max_attempts=2, retry_on=ConnectionError
    )
    out = guard.langgraph(built.compile(checkpointer=InMemorySaver())).invoke(ask(), on("1"))
    assert seats.booked == {4: 1}
    assert "was not repeated" in out["messages"][-2].text, "what failed midway is in doubt"


def test_pauses_of_the_caller_are_kept() -> None:
    guard, given = make(), iter([find(), AIMessage("None.")])
    graph = graph_of(
        lambda messages: next(given), guard.langgraph_tools(Seats().tools), interrupt_before=["act"]
    )
    app = guard.langgraph(graph)
    app.invoke(ask(), on("1"))
    assert app.get_state(on("1")).next == ("act",)
    out = app.invoke(None, on("1"), interrupt_before=["think"])
    assert app.get_state(on("1")).next == ("think",)
    assert list(app.stream(None, on("1"), stream_mode="updates"))[-1]["think"]["turns"] == 1
    assert app.get_session(on("1")).has_ended
    assert len(out["messages"]) == 3


def test_stop_ends_run_with_reason() -> None:
    guard = make(recover=RecoveryPolicy(on_fail="stop"))
    app = guard.langgraph(graph_of(lambda messages: find(), guard.langgraph_tools(Seats().tools)))
    out = app.invoke(ask(), on("1"))
    session = app.get_session(on("1"))
    assert session.stop_reason
    assert session.stop_reason in out["messages"][-1].text
    assert app.get_state(on("1")).next == ()
    assert session.has_ended


def test_escalation_interrupts_the_graph() -> None:
    guard = make(recover=RecoveryPolicy(on_fail="escalate"))
    heard: list[str] = []

    def model(messages: list[AnyMessage]) -> AIMessage:
        heard.append(messages[-1].text)
        return AIMessage("Thanks.") if "Take seat 5" in messages[-1].text else find()

    app = guard.langgraph(graph_of(model, guard.langgraph_tools(Seats().tools)))
    out = app.invoke(ask(), on("1"))
    assert out["__interrupt__"][0].value
    assert app.get_state(on("1")).next == ("think",)
    out = app.invoke(Command(resume="Take seat 5."), on("1"))
    assert out["messages"][-1].text == "Thanks."
    assert heard[-1] == "Take seat 5."
    assert app.get_session(on("1")).has_ended


def test_escalation_calls_a_function() -> None:
    guard, asked = make(recover=RecoveryPolicy(on_fail="escalate")), list[str]()

    def person(question: str) -> str:
        asked.append(question)
        return "[guard] Take seat 5."

    app = guard.langgraph(graph_of(looping, guard.langgraph_tools(Seats().tools)), ask=person)
    out = app.invoke(ask(), on("1"))
    assert len(asked) == 1
    assert out["messages"][-1].text == "There is none."


def test_restart_forks_before_the_first_answer() -> None:
    guard, seats = make(recover=RecoveryPolicy(on_fail="restart"), accept=seated), Seats()
    given = iter([find(), AIMessage("No idea."), AIMessage("Seat 4.")])
    app = guard.langgraph(graph_of(lambda messages: next(given), guard.langgraph_tools(seats.tools)))
    out = app.invoke(ask(), on("1"))
    assert [m.type for m in out["messages"]] == ["human", "human", "ai"]
    assert (out["turns"], out["messages"][-1].text) == (1, "Seat 4.")
    assert app.get_session(on("1")).recoveries[0].outcome is RecoveryOutcome.CONFIRMED


def test_hint_at_the_end_continues_with_full_state() -> None:
    guard = make(recover=RecoveryPolicy(on_fail="hint"), accept=seated)
    given = iter([AIMessage("No idea."), AIMessage("Seat 4.")])
    app = guard.langgraph(graph_of(lambda messages: next(given), guard.langgraph_tools(Seats().tools)))
    out = app.invoke(ask(), on("1"))
    assert [m.type for m in out["messages"]] == ["human", "ai", "human", "ai"]
    assert out["turns"] == 2


def test_thread_with_history_is_a_new_run_and_keeps_its_history() -> None:
    guard, seats = rolling(), Seats()
    app = guard.langgraph(graph_of(looping, guard.langgraph_tools(seats.tools)))
    first = app.invoke(ask("Hi."), on("1"))
    again = app.invoke(ask("Find one more."), on("1"))
    kept = len(first["messages"])
    assert [m.id for m in again["messages"][:kept]] == [m.id for m in first["messages"]]
    assert app.get_session(on("1")).run.task == "Find one more."


def test_fork_never_removes_the_task_or_earlier_messages() -> None:
    guard = rolling(localizer=First(0), accept=seated)
    given = iter([AIMessage("Seat 1."), find(), AIMessage("No idea."), AIMessage("Seat 4.")])
    app = guard.langgraph(graph_of(lambda messages: next(given), guard.langgraph_tools(Seats().tools)))
    app.invoke(ask("Hi."), on("1"))
    out = app.invoke(ask(), on("1"))
    assert [m.text for m in out["messages"] if not told([m])] == ["Hi.", "Seat 1.", "Book seat 4.", "Seat 4."]
    assert out["turns"] == 2


def test_threads_run_concurrently() -> None:
    guard, seats = rolling(localizer=First(1), accept=seated), Seats()

    def model(messages: list[AnyMessage]) -> AIMessage:
        seat = int(messages[0].text)
        if isinstance(messages[-1], HumanMessage):
            return calls(("book", {"seat": seat}))
        return AIMessage(f"Seat {seat}." if told(messages) else "No idea.")

    app = guard.langgraph(graph_of(model, guard.langgraph_tools(seats.tools)))
    outs: dict[int, Any] = {}

    def one(seat: int) -> None:
        outs[seat] = app.invoke(ask(str(seat)), on(str(seat)))

    threads = [threading.Thread(target=one, args=(seat,)) for seat in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seats.booked == dict.fromkeys(range(6), 1)
    assert {seat: out["messages"][-1].text for seat, out in outs.items()} == {
        seat: f"Seat {seat}." for seat in range(6)
    }


def test_guard_within_another_graph_is_rejected() -> None:
    guard = make()
    app = guard.langgraph(graph_of(looping, guard.langgraph_tools(Seats().tools)))

    def inner(state: State) -> dict[str, Any]:
        return dict(app.invoke({"messages": state["messages"]}, on("2")))

    outer = StateGraph(State)
    outer.add_node("inner", inner)
    outer.add_edge(START, "inner")
    with pytest.raises(ConfigError, match="must be the root graph"):
        outer.compile(checkpointer=InMemorySaver()).invoke(ask(), on("1"))


def test_unsupported_graph_is_rejected() -> None:
    guard, seats = make(), Seats()
    with pytest.raises(ConfigError, match="no checkpointer of its own"):
        guard.langgraph(create_agent(Scripted(answer=looping), seats.tools))
    with pytest.raises(ConfigError, match="compiled state graph"):
        guard.langgraph(StateGraph(State))
    with pytest.raises(ConfigError, match="no thread"):
        guard.langgraph(graph_of(looping, ToolNode(seats.tools))).invoke(ask())
    with pytest.raises(ConfigError, match="unknown nodes"):
        guard.langgraph(graph_of(looping, ToolNode(seats.tools)), turn_nodes="brain")
    with pytest.raises(ConfigError, match="turn_nodes="):
        guard.langgraph(graph_of(looping, lambda state: {"turns": 0}))
    with pytest.raises(ConfigError, match="the guard wraps the calls"):
        guard.langgraph_tools(seats.tools, wrap_tool_call=print)


def test_methods_that_bypass_the_guard_are_rejected() -> None:
    app = make().langgraph(graph_of(looping, ToolNode(Seats().tools)))
    for name in ("batch", "abatch", "astream_events", "with_config", "pipe", "transform", "copy"):
        assert hasattr(app.graph, name)
        with pytest.raises(AttributeError, match="without its guard"):
            getattr(app, name)
    assert app.get_graph().nodes


def test_checkpointer_on_disk_is_supported(tmp_path: Any) -> None:
    sqlite = pytest.importorskip("langgraph.checkpoint.sqlite", reason="needs langgraph-checkpoint-sqlite")
    guard, seats = rolling(localizer=First(1), accept=seated), Seats()
    with sqlite.SqliteSaver.from_conn_string(str(tmp_path / "saved.db")) as saver:
        app = guard.langgraph(graph_of(booking(), guard.langgraph_tools(seats.tools), checkpointer=saver))
        out = app.invoke(ask(), on("1"))
        assert (seats.booked, out["turns"]) == ({4: 1}, 2)


def test_todos_of_agent_are_restored_with_messages() -> None:
    seats, guard = Seats(), rolling(localizer=First(1), accept=seated)
    todo = [{"content": "fly", "status": "in_progress"}]
    given = iter([calls(("write_todos", {"todos": todo})), AIMessage("No idea."), AIMessage("Seat 4.")])
    agent = create_agent(
        Scripted(answer=lambda messages: next(given)),
        seats.tools,
        middleware=[TodoListMiddleware()],
        checkpointer=InMemorySaver(),
    )
    out = guard.langgraph(agent).invoke(ask(), on("1"))
    assert not out.get("todos")
    assert any(state.values.get("todos") for state in agent.get_state_history(on("1")))


def test_asynchronous_agent_with_middleware_is_guarded() -> None:
    seats = Seats()
    given = iter([calls(("book", {"seat": 4})), AIMessage("No idea."), calls(("book", {"seat": 4}))])
    guard = rolling(localizer=First(1), accept=seated)
    agent = create_agent(
        Scripted(answer=lambda messages: next(given, AIMessage("Seat 4."))),
        seats.tools,
        middleware=[guard.langchain()],
        checkpointer=InMemorySaver(),
    )
    app = guard.langgraph(agent)
    out = asyncio.run(app.ainvoke(ask(), on("1")))
    assert (seats.booked, out["messages"][-1].text) == ({4: 1}, "Seat 4.")
    assert [recovery.plan.tier.name for recovery in app.get_session(on("1")).recoveries] == ["FORK"]


def test_approval_by_a_person_continues_as_before() -> None:
    seats, guard = Seats(), rolling(localizer=First(1), accept=seated)
    model = booking()
    agent = create_agent(
        Scripted(answer=lambda messages: model(messages)),
        seats.tools,
        middleware=[guard.langchain(), HumanInTheLoopMiddleware(interrupt_on={"book": True})],
        checkpointer=InMemorySaver(),
    )
    app = guard.langgraph(agent)
    yes = Command(resume={"decisions": [{"type": "approve"}]})
    out = app.invoke(ask(), on("1"))
    assert out["__interrupt__"]
    out = app.invoke(yes, on("1"))
    assert seats.booked == {4: 1}
    assert out["__interrupt__"], "the call after the fork is asked about again"
    out = app.invoke(yes, on("1"))
    assert (seats.booked, out["messages"][-1].text) == ({4: 1}, "Seat 4.")
    assert whole(out["messages"])


def test_tools_of_a_sub_graph_are_in_the_ledger_of_the_run() -> None:
    seats, guard = Seats(), rolling(localizer=First(1), accept=seated)
    given = iter([AIMessage("No idea."), AIMessage("Seat 4.")])
    deep = iter(
        [calls(("book", {"seat": 4})), AIMessage("booked"), calls(("book", {"seat": 4})), AIMessage("ok")]
    )
    inner = graph_of(lambda messages: next(deep), guard.langgraph_tools(seats.tools), checkpointer=False)

    def think(state: State) -> dict[str, Any]:
        return {"messages": [next(given)], "turns": 1}

    def work(state: State) -> dict[str, Any]:
        inner.invoke({"messages": [HumanMessage("Book it.")]})
        return {"turns": 1}

    outer = StateGraph(State)
    outer.add_node("think", think)
    outer.add_node("work", work)
    outer.add_edge(START, "think")
    outer.add_edge("think", "work")
    app = guard.langgraph(outer.compile(checkpointer=InMemorySaver()), turn_nodes="think")
    out = app.invoke(ask(), on("1"))
    assert (seats.booked, out["turns"]) == ({4: 1}, 2)


def test_run_killed_in_its_tools_resumes_in_another_process(tmp_path: Any) -> None:
    """The guard and the graph are created again, as in a new process; only saver and store remain."""
    seats, saver = Seats(), InMemorySaver()
    died = iter([True])
    url = f"sqlite:///{tmp_path / 'runs.db'}"
    said: list[str] = []

    @tool
    def book(seat: int) -> str:
        """Book a seat."""
        seats.booked[seat] += 1
        if next(died, False):
            raise KeyboardInterrupt
        return "yours"

    def model(messages: list[AnyMessage]) -> AIMessage:
        said.append(messages[-1].text)
        return (find(), calls(("book", {"seat": 4})), AIMessage("Seat 4."))[len(messages) // 2]

    def process(store: Store, given: Any) -> Any:
        guard = make(store=store)
        tools = guard.langgraph_tools([book, seats.tools[1]])
        app = guard.langgraph(graph_of(model, tools, checkpointer=saver))
        return app, app.invoke(given, on("1"))

    with Store.open(url) as store:
        with pytest.raises(KeyboardInterrupt):
            process(store, ask())
        store.flush()
    with Store.open(url) as store:
        app, out = process(store, None)
        session = app.get_session(on("1"))
        store.flush()
    assert seats.booked == {4: 1}
    assert "was not repeated" in said[-1]
    assert out["messages"][-1].text == "Seat 4."
    assert [step.source.value for step in session.run.steps] == ["user", "agent", "agent", "agent"]
    assert session.ledger.effects()[0].tool == "book"


def test_typed_results_are_supported() -> None:
    guard = make(recover=RecoveryPolicy(on_fail="escalate"))
    app = guard.langgraph(graph_of(looping, guard.langgraph_tools(Seats().tools)))
    out = app.invoke(ask(), on("1"), version="v2")
    assert out.interrupts[0].value
    app = rolling().langgraph(graph_of(looping, guard.langgraph_tools(Seats().tools)))
    parts = list(app.stream(ask(), on("2"), version="v2", stream_mode=["values", "updates"]))
    assert {part["type"] for part in parts} == {"values", "updates"}
    assert not any("__interrupt__" in part["data"] for part in parts)


def test_example_runs() -> None:
    script = Path(__file__).parents[3] / "examples" / "guard_langgraph.py"
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(
        "Seat 4 is booked.\nbooked: [4], turns on the line that was kept: 2\nrestart (confirmed)"
    )
