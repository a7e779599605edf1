"""A hand-written agent loop under the guard, with a scripted model: no network is needed.

The agent repeats the same search. The guard rolls the run back and adds a hint. Then the agent books a seat
and gives a wrong answer. The acceptance test rejects it, and the guard rolls back to before the booking. The
booking remains: the guard does not execute the second booking and returns the result of the first.

    python examples/guard_loop.py
"""

from __future__ import annotations

import json
from typing import Any

from agentguard import Guard
from agentguard.recover import RecoveryPolicy

BOOKED: list[int] = []


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Return a message of the model with a tool call."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


ANSWERS = iter(
    [
        *(call("find", where="aisle") for _ in range(3)),
        call("book", seat=4),
        "Have a nice trip!",
        call("book", seat=4),
        "Seat 4 is booked.",
    ]
)


def call_llm(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
    """Call the model; here it follows the script."""
    del messages, tools
    return next(ANSWERS)


def accept(run: Any) -> bool | str:
    """Accept the output if it names the seat."""
    return "seat 4" in run.steps[-1].content.lower() or "the answer does not say which seat was booked"


guard = Guard(
    recover=RecoveryPolicy(on_fail="rollback", escalations={"acceptance": "restart"}), accept=accept
)


@guard.tool(effect="read")
def find(where: str) -> str:
    """Find a seat."""
    return f"no seat is free at the {where}"


@guard.tool(effect="write", idempotency_key="seat")
def book(seat: int) -> str:
    """Book a seat."""
    BOOKED.append(seat)
    return f"seat {seat} is yours"


def main() -> None:
    """Run the loop and print the guard's actions."""
    with guard.run("Book seat 4.", tools=[find, book]) as run:
        while not run.done:
            run.tools(run.model(call_llm))
    print(run.answer)
    print(f"booked: {BOOKED}")
    for recovery in run.recoveries:
        print(f"{recovery.plan.strategy}: {recovery.plan.reason} ({recovery.outcome})")


if __name__ == "__main__":
    main()
