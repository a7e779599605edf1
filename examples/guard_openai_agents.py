"""Agents of the OpenAI Agents SDK under the guard; the model is scripted, so it runs without a network.

The clerk hands over to the booker. The booker books a seat and gives a wrong answer. The acceptance test
rejects it, and the run restarts at the clerk. The booker books again. The seat is booked once: the second
call gets the result of the first.

    python examples/guard_openai_agents.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, RunConfig, function_tool
from agents.testing import ScriptedModel, assistant_message, function_call

from agentguard import Guard
from agentguard.recover import RecoveryPolicy

BOOKED: list[int] = []


def accept(run: Any) -> bool | str:
    """Accept the output if it names the seat."""
    return "seat 4" in run.steps[-1].content.lower() or "the answer does not say which seat was booked"


guard = Guard(recover=RecoveryPolicy(on_fail="restart"), accept=accept)


@function_tool
@guard.tool(effect="write", idempotency_key="seat")
def book(seat: int) -> str:
    """Book a seat."""
    BOOKED.append(seat)
    return f"seat {seat} is yours"


MODEL = ScriptedModel(
    [
        [function_call("transfer_to_booker", {}, call_id="call-1")],
        [function_call("book", {"seat": 4}, call_id="call-2")],
        [assistant_message("Have a nice trip!", item_id="message-1")],
        [function_call("transfer_to_booker", {}, call_id="call-3")],
        [function_call("book", {"seat": 4}, call_id="call-4")],
        [assistant_message("Seat 4 is booked.", item_id="message-2")],
    ]
)


async def main() -> None:
    """Run the agents and print the guard's actions."""
    booker: Agent[Any] = Agent(name="booker", model=MODEL, tools=[book])
    clerk: Agent[Any] = Agent(name="clerk", model=MODEL, handoffs=[booker])
    result = await guard.openai_agents.run(clerk, "Book seat 4.", run_config=RunConfig(tracing_disabled=True))
    print(result.final_output)
    print(f"booked: {BOOKED}")
    print("steps:", ", ".join(step.agent for step in result.session.run.steps))
    for recovery in result.session.recoveries:
        print(f"{recovery.plan.strategy} ({recovery.outcome}): {recovery.plan.reason}")


if __name__ == "__main__":
    asyncio.run(main())
