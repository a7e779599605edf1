"""Record a run into a bundle and replay it without the model and the tools: no network is needed.

python examples/bundle_replay.py
agentguard replay booking.agb --agent examples.bundle_replay:book_seat
"""

from __future__ import annotations

import json
from typing import Any

from agentguard import Guard
from agentguard.bundles import RunBinding, record_run, replay_bundle
from agentguard.trajectory import Trajectory

guard = Guard()


@guard.tool(effect="write", idempotency_key="seat")
def book(seat: int) -> str:
    """Book a seat."""
    return f"seat {seat} is yours"


def call_llm(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
    """Call the model; here it books, then answers."""
    del tools
    if messages[-1]["role"] == "tool":
        return "Seat 4 is booked."
    function = {"name": "book", "arguments": json.dumps({"seat": 4})}
    return {"role": "assistant", "tool_calls": [{"id": "1", "type": "function", "function": function}]}


def book_seat(binding: RunBinding) -> Trajectory:
    """Run the agent with the model and the tools of the binding."""
    model, tools = binding.bind_model(call_llm), binding.bind_tools([book])
    with guard.run("Book seat 4.", tools=tools, id=binding.run_id) as run:
        binding.add_session(run.session)
        while not run.done:
            run.tools(run.model(model))
    return run.trajectory


def main() -> None:
    """Record the run, replay it and print whether both are equal."""
    bundle = record_run(book_seat, "booking.agb", guard=guard)
    result = replay_bundle(bundle, book_seat)
    print(f"steps: {len(result.trajectory.steps)}, equal: {result.is_equal}")


if __name__ == "__main__":
    main()
