"""A LangChain agent under the guard; the model is scripted, so it runs without a network.

The agent repeats the same search. The guard removes the loop from the agent's history and adds a hint. Then
the agent books a seat.

    python examples/guard_langchain.py
"""

from __future__ import annotations

from typing import Any

from langchain.agents import create_agent
from langchain_core.language_models.chat_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatResult

from agentguard import Guard
from agentguard.recover import RecoveryPolicy
from agentguard.runtime import Session

BOOKED: list[int] = []
SESSIONS: list[Session] = []

guard = Guard(recover=RecoveryPolicy(on_fail="rollback"))


@guard.tool(effect="write", idempotency_key="seat")
def book(seat: int) -> str:
    """Book a seat."""
    BOOKED.append(seat)
    return f"seat {seat} is yours"


@guard.tool(effect="read")
def find(where: str) -> str:
    """Find a free seat."""
    return f"nothing free near the {where}"


class Scripted(BaseChatModel):
    """Scripted chat model that repeats its search until it receives a hint."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        del tools, more
        return self

    def _generate(self, messages: list[BaseMessage], *args: Any, **more: Any) -> ChatResult:
        del args, more
        return ChatResult(generations=[ChatGeneration(message=answer(messages))])


def answer(messages: list[BaseMessage]) -> AIMessage:
    """Return the next message of the model."""
    if "seat 4 is yours" in messages[-1].text:
        return AIMessage("Seat 4 is booked.")
    told = any(message.text.startswith("[guard]") for message in messages)
    name, args = ("book", {"seat": 4}) if told else ("find", {"where": "aisle"})
    return AIMessage("", tool_calls=[{"id": f"call-{len(messages)}", "name": name, "args": args}])


def main() -> None:
    """Run the agent and print the guard's actions."""
    agent = create_agent(Scripted(), [book, find], middleware=[guard.langchain(on_run=SESSIONS.append)])
    out = agent.invoke({"messages": [HumanMessage("Book a seat at the aisle, or else seat 4.")]})
    print(out["messages"][-1].text)
    print(f"booked: {BOOKED}, messages in the history: {len(out['messages'])}")
    for recovery in SESSIONS[0].recoveries:
        print(f"{recovery.plan.strategy} ({recovery.outcome}): {recovery.plan.reason}")


if __name__ == "__main__":
    main()
