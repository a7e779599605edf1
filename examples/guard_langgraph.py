"""A LangGraph graph under the guard; the model is scripted, so it runs without a network.

The agent books a seat, then gives a wrong answer. The acceptance test rejects it. The guard forks the
checkpoint before the first turn, and the agent books again. The counter in the state is restored as well. The
seat is booked once, since the second call gets the result of the first.

    python examples/guard_langgraph.py
"""

from __future__ import annotations

import operator
from typing import Annotated, Any

from langchain_core.messages import AIMessage, HumanMessage
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition

from agentguard import Guard
from agentguard.recover import RecoveryPolicy

BOOKED: list[int] = []


def accept(run: Any) -> bool | str:
    """Accept the output if it names the seat."""
    return "seat 4" in run.steps[-1].content.lower() or "the answer does not say which seat was booked"


guard = Guard(recover=RecoveryPolicy(on_fail="restart"), accept=accept)


@guard.tool(effect="write", idempotency_key="seat")
def book(seat: int) -> str:
    """Book a seat."""
    BOOKED.append(seat)
    return f"seat {seat} is yours"


class State(MessagesState):
    """The messages, and the number of turns."""

    turns: Annotated[int, operator.add]


def call(id: str) -> AIMessage:
    """Return a tool call."""
    return AIMessage("", tool_calls=[{"id": id, "name": "book", "args": {"seat": 4}}])


SCRIPT = iter([call("1"), AIMessage("Have a nice trip!"), call("2"), AIMessage("Seat 4 is booked.")])


def think(state: State) -> dict[str, Any]:
    """Return the next scripted message instead of a model's."""
    del state
    return {"messages": [next(SCRIPT)], "turns": 1}


def main() -> None:
    """Run the graph and print the guard's actions."""
    built = StateGraph(State)
    built.add_node("think", think)
    built.add_node("tools", guard.langgraph_tools([book]))
    built.add_edge(START, "think")
    built.add_conditional_edges("think", tools_condition)
    built.add_edge("tools", "think")
    app = guard.langgraph(built.compile(checkpointer=InMemorySaver()))

    thread: Any = {"configurable": {"thread_id": "trip"}}
    out = app.invoke({"messages": [HumanMessage("Book seat 4.")]}, thread)
    print(out["messages"][-1].text)
    print(f"booked: {BOOKED}, turns on the line that was kept: {out['turns']}")
    for recovery in app.get_session(thread).recoveries:
        print(f"{recovery.plan.strategy} ({recovery.outcome}): {recovery.plan.reason}")


if __name__ == "__main__":
    main()
