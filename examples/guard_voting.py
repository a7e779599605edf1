"""Selective redundancy and call repair in a hand-written agent loop, with scripted models.

The agent reads a seat. The service fails once, and the guard retries the read. The agent writes the seat as a
text. The guard repairs the call, since the tool's schema leaves one way to read it. A booking has an effect,
so the guard also asks other models. Two of three agree, and the model with another seat is outvoted.

    python examples/guard_voting.py
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agentguard import Guard
from agentguard.recover import RecoveryPolicy, SelectiveRedundancy

BOOKED: list[int] = []
ANSWERED = iter(["Error: the service did not answer", "seat 4 is free"])


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """Return a message of a model with a tool call."""
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def model(*answers: Any) -> Callable[..., Any]:
    """Return a model that answers by a script."""
    given = iter(answers)

    def answer(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
        del messages, tools
        return next(given)

    return answer


own = model(call("find", where="aisle"), call("book", seat="4"), "Seat 4 is booked.")
others = {"large": model(call("book", seat=9)), "other": model(call("book", seat=4))}

guard = Guard(
    recover=RecoveryPolicy(
        on_fail=["roll_forward", "hint"], redundancy=SelectiveRedundancy(models=list(others))
    )
)


@guard.tool(effect="read")
def find(where: str) -> str:
    """Find a seat."""
    del where
    return next(ANSWERED)


@guard.tool(effect="write", idempotency_key="seat")
def book(seat: int) -> str:
    """Book a seat."""
    BOOKED.append(seat)
    return f"seat {seat} is yours"


def main() -> None:
    """Run the agent and print the guard's actions."""
    with guard.run("Book a seat by the aisle.", tools=[find, book], models=others) as run:
        while not run.done:
            run.tools(run.model(own))
    for recovery in run.recoveries:
        print(f"{recovery.plan.strategy}: {recovery.plan.reason} {dict(recovery.cost)}")
    print(f"booked {BOOKED}; {run.answer}")


if __name__ == "__main__":
    main()
