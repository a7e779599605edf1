"""A pydantic-ai agent under the guard; the model is scripted, so it runs without a network.

The agent books a seat, then gives a wrong answer. The acceptance test rejects it. The guard rolls the run
back to the first turn, and the agent books again. The seat is booked once: the second call gets the result of
the first.

    python examples/guard_pydantic_ai.py
"""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_ai import Agent
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from agentguard import Guard
from agentguard.recover import RecoveryPolicy
from agentguard.runtime import Session

BOOKED: list[int] = []
SESSIONS: list[Session] = []


def accept(run: Any) -> bool | str:
    """Accept the output if it names the seat."""
    return "seat 4" in run.steps[-1].content.lower() or "the answer does not say which seat was booked"


guard = Guard(recover=RecoveryPolicy(on_fail="restart"), accept=accept)


@guard.tool(effect="write", idempotency_key="seat")
def book(seat: int) -> str:
    """Book a seat."""
    BOOKED.append(seat)
    return f"seat {seat} is yours"


SCRIPT = iter(
    [
        ModelResponse([ToolCallPart("book", {"seat": 4})]),
        ModelResponse([TextPart("Have a nice trip!")]),
        ModelResponse([ToolCallPart("book", {"seat": 4})]),
        ModelResponse([TextPart("Seat 4 is booked.")]),
    ]
)


def scripted(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
    """Return the next scripted message instead of a model's."""
    del messages, info
    return next(SCRIPT)


async def main() -> None:
    """Run the agent and print the guard's actions."""
    agent = Agent(
        FunctionModel(scripted), tools=[book], capabilities=[guard.pydantic_ai(on_run=SESSIONS.append)]
    )
    result = await agent.run("Book seat 4.")
    print(result.output)
    print(f"booked: {BOOKED}")
    for recovery in SESSIONS[0].recoveries:
        print(f"{recovery.plan.strategy} ({recovery.outcome}): {recovery.plan.reason}")


if __name__ == "__main__":
    asyncio.run(main())
