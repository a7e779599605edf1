"""Guarded LangChain and LangGraph agents whose process died: budgets and recoveries are restored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("langgraph")

from langchain.agents import create_agent
from langchain_core.messages import AIMessage, AnyMessage, HumanMessage
from langchain_core.tools import tool
from langgraph.checkpoint.memory import InMemorySaver

from agentguard.guard import Guard
from agentguard.localize.baselines.last_error import LastErrorLocalizer
from agentguard.recover.budget import RecoveryBudget
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.runtime.resumption import INTERRUPTION_REASON
from agentguard.runtime.session import Session
from agentguard.store import Store
from agentguard.store.db.rows import StepRow
from tests.unit.integrations.test_langchain import Scripted, calls
from tests.unit.integrations.test_langgraph import graph_of, on

ASK = {"messages": [HumanMessage("Book seat 4.")]}


def guard_of(store: Store, **recover: Any) -> Guard:
    guard = Guard(localizer=LastErrorLocalizer(), recover=RecoveryPolicy(**recover), store=store)
    guard.tool(effect="read", name="find")(len)
    guard.tool(effect="read", name="look")(len)
    return guard


class Life:
    """Agents that ignore hints and loop; the process dies in the n-th call of ``find``."""

    def __init__(self, dies_at: int) -> None:
        self.left = dies_at
        self.offered: list[Any] = []
        life = self

        @tool
        def find(where: str) -> str:
            """Find a seat."""
            life.left -= 1
            if life.left == 0:
                raise KeyboardInterrupt
            return "nothing found"

        @tool
        def look(where: str) -> str:
            """Look at a seat."""
            return "a seat"

        self.tools = [find, look]

    def model(self, messages: list[AnyMessage], offered: Any = None) -> AIMessage:
        self.offered.append(offered)
        found = sum(message.text == "nothing found" for message in messages)
        if found >= 6 or (offered is not None and "find" not in offered):
            return AIMessage("There is none.")
        return calls(("find", {"where": "aisle"}))


def graph(store: Store, life: Life, saver: Any, given: Any, **recover: Any) -> Session:
    guard = guard_of(store, **recover)
    tools = guard.langgraph_tools(life.tools)
    app = guard.langgraph(graph_of(lambda messages: life.model(messages), tools, checkpointer=saver))
    try:
        app.invoke(given, on("1"))
    finally:
        store.flush(10)
    return app.get_session(on("1"))


def chain(store: Store, life: Life, saver: Any, given: Any, **recover: Any) -> Session:
    sessions: list[Session] = []
    agent = create_agent(
        Scripted(answer=life.model),
        life.tools,
        middleware=[guard_of(store, **recover).langchain(on_run=sessions.append)],
        checkpointer=saver,
    )
    config: Any = {"configurable": {"thread_id": "1"}, "recursion_limit": 100}
    try:
        agent.invoke(given, config, durability="sync")
    finally:
        store.flush(10)
    return sessions[-1]


@pytest.mark.parametrize("run", [graph, chain])
def test_spent_budget_persists_across_processes(run: Any, tmp_path: Path) -> None:
    saver, recover = (
        InMemorySaver(),
        {"on_fail": "rollback", "budget": RecoveryBudget(rollbacks=1, rollbacks_per_step=1)},
    )
    with Store.open(tmp_path / "s.db") as store:
        with pytest.raises(KeyboardInterrupt):
            run(store, Life(5), saver, ASK, **recover)
        kept = store.list_recoveries(_only(store))
        assert len(kept) == 1, "it was taken back before it died"
        session = run(store, Life(0), saver, None, **recover)
        assert session.account.usage.rollbacks == 1
        assert len(session.recoveries) == 1, "the budget is spent, whichever process spent it"
        left = [branch for branch in session.run.branches if branch.reason != INTERRUPTION_REASON]
        assert len(left) == 1, "and the run was not taken back once more"
        assert len(store.list_recoveries(session.id)) == 1
        assert session.recoveries[0].plan.strategy == "rollback"


def test_disabled_tool_stays_disabled_after_resume(tmp_path: Path) -> None:
    saver, life = InMemorySaver(), Life(0)
    recover = {"on_fail": "disable_tool"}
    with Store.open(tmp_path / "s.db") as store:
        first = Life(0)
        first.model = _dies_when_it_is_gone(first)  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            chain(store, first, saver, ASK, **recover)
        chain(store, life, saver, None, **recover)
    assert life.offered
    assert all("find" not in names for names in life.offered)


def _dies_when_it_is_gone(life: Life) -> Any:
    def model(messages: list[AnyMessage], offered: Any) -> AIMessage:
        if "find" not in offered:
            raise KeyboardInterrupt
        return calls(("find", {"where": "aisle"}))

    return model


@pytest.mark.parametrize("run", [graph, chain])
def test_steps_beyond_the_last_checkpoint_are_executed_again(run: Any, tmp_path: Path) -> None:
    """The store was ahead of the framework's own saver when the process died."""
    saver, recover = InMemorySaver(), {"on_fail": "hint"}
    with Store.open(tmp_path / "s.db") as store:
        with pytest.raises(KeyboardInterrupt):
            run(store, Life(3), saver, ASK, **recover)
        id = _only(store)
        before = store.get_trajectory(id)
        assert before is not None
        last = before.steps[-1]
        data = {**store_step(store, id, last.index), "index": last.index + 1, "content": "never checkpointed"}
        store.write(StepRow(run_id=id, index=last.index + 1, data=data)).wait(10)
        session = run(store, Life(0), saver, None, **recover)
    left = [branch for branch in session.run.branches if branch.reason == INTERRUPTION_REASON]
    assert [[step.content for step in branch.steps] for branch in left] == [["never checkpointed"]]
    assert session.run.steps[-1].content == "There is none."


def store_step(store: Store, id: str, index: int) -> dict[str, Any]:
    """Return a step as the store has it."""
    from agentguard.trajectory.serialization import encode_step

    run = store.get_trajectory(id)
    assert run is not None
    return encode_step(run.steps[index])


def _only(store: Store) -> str:
    (row,) = store.list_runs().rows
    return row.id
