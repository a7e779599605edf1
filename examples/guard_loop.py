"""A loop of one's own under the guard, with a scripted model: no network is needed.

The agent looks at the same place over and over; the run is taken back and it is told. It books a seat and
ends beside the point; the acceptance test refuses that end, and the run goes back to before the booking. What
was booked stays booked: the second booking is not carried out, the agent gets the result of the first.

    python examples/guard_loop.py
"""

from __future__ import annotations

import json
from typing import Any

from agentguard import Guard
from agentguard.recover.recovery_policy import RecoveryPolicy

BOOKED: list[int] = []


def call(name: str, **arguments: Any) -> dict[str, Any]:
    """A message of the model that calls a tool."""
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
    """Ask the model; here it answers by the script."""
    del messages, tools
    return next(ANSWERS)


def accept(run: Any) -> bool | str:
    """The last word has to name the seat."""
    return "seat 4" in run.steps[-1].content.lower() or "the answer does not say which seat was booked"


guard = Guard(
    recover=RecoveryPolicy(on_fail="rollback", escalations={"acceptance": "reexecute"}), accept=accept
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
    """Run the loop and say what the guard did."""
    with guard.run("Book seat 4.", tools=[find, book]) as run:
        while not run.done:
            run.tools(run.model(call_llm))
    print(run.answer)
    print(f"booked: {BOOKED}")
    for recovery in run.recoveries:
        print(f"{recovery.plan.strategy}: {recovery.plan.reason} ({recovery.outcome})")


if __name__ == "__main__":
    main()
