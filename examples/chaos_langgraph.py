"""Chaos test of a LangGraph agent with three tools; the model is scripted, so no network is needed.

pytest examples/chaos_langgraph.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.memory import InMemorySaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import tools_condition

from agentguard import Guard
from agentguard.bundles import RunBinding
from agentguard.chaos import CampaignReport

Bookings = dict[str, str]


def build_tools(bookings: Bookings) -> list[Callable[..., str]]:
    """Return the tools of a new world."""

    def find_flight(city: str) -> str:
        """Find the next flight to a city."""
        return json.dumps({"flight": f"{city}-7", "price": 120})

    def book_flight(flight: str) -> str:
        """Book a flight."""
        bookings[flight] = f"{flight} is booked"
        return bookings[flight]

    def send_receipt(flight: str) -> str:
        """Send the receipt of a booking by mail."""
        return f"receipt of {flight} is sent"

    return [find_flight, book_flight, send_receipt]


def answer(request: httpx2.Request) -> httpx2.Response:
    """Answer a request in place of a model: find, book, send the receipt, and report."""
    messages = json.loads(request.content)["messages"]
    results = [str(message["content"]) for message in messages if message["role"] == "tool"]
    done = " ".join(results)
    steps = [
        ("find_flight", {"city": "Rome"}, "Rome-7"),
        ("book_flight", {"flight": "Rome-7"}, "is booked"),
        ("send_receipt", {"flight": "Rome-7"}, "is sent"),
    ]
    missing = next(((name, arguments) for name, arguments, sign in steps if sign not in done), None)
    message: dict[str, Any] = {"role": "assistant", "content": None}
    if missing is None:
        message["content"] = "Your flight to Rome is booked."
    elif len(results) >= 8:
        message["content"] = "The booking is not possible now."
    else:
        function = {"name": missing[0], "arguments": json.dumps(missing[1])}
        message["tool_calls"] = [{"id": f"call-{len(results)}", "type": "function", "function": function}]
    head = {"id": "chat", "object": "chat.completion", "created": 0, "model": "scripted"}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    usage = {"prompt_tokens": 20 * len(messages), "completion_tokens": 9, "total_tokens": 0}
    return httpx2.Response(200, json={**head, "choices": [choice], "usage": usage})


def build_graph(guard: Guard, model: ChatOpenAI, tools: list[Callable[..., str]]) -> Any:
    """Return the guarded graph of a model and its tools."""

    def think(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.bind_tools(tools).invoke(state["messages"])]}

    graph = StateGraph(MessagesState)
    graph.add_node("think", think)
    graph.add_node("tools", guard.langgraph_tools(tools, handle_tool_errors=True))
    graph.add_edge(START, "think")
    graph.add_conditional_edges("think", tools_condition)
    graph.add_edge("tools", "think")
    return graph.compile(checkpointer=InMemorySaver())


# A program with a real model leaves this argument of the binding out.
SERVER = httpx2.MockTransport(answer)


def book_trip(binding: RunBinding) -> None:
    """Run the graph in a new world, with the client and the tools of the binding."""
    bookings: Bookings = {}
    guard, (find, book, send) = Guard(), build_tools(bookings)
    guard.tool(effect="write", idempotency_key="flight", reconcile=lambda flight: bookings.get(flight))(book)
    guard.tool(effect="write", idempotency_key="flight")(send)
    client = httpx2.Client(transport=binding.bind_transport(SERVER))
    model = ChatOpenAI(base_url="https://model.example/v1", api_key=lambda: "no-key", http_client=client)
    graph = build_graph(guard, model, binding.bind_tools([find, book, send]))
    app = guard.langgraph(graph, on_run=binding.add_session)
    app.invoke({"messages": [("user", "Book a flight to Rome.")]}, {"configurable": {"thread_id": "1"}})


@pytest.mark.chaos(effects=["book_flight", "send_receipt"])
def test_trip_with_faults_is_safe(chaos: Callable[..., CampaignReport]) -> None:
    """Fail if a fault leads to a second booking, a second receipt or a false claim."""
    assert chaos(book_trip).outcomes["survived"] > 0
