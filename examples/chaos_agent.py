"""Agent for a chaos campaign: it searches a seat, books it, and checks the booking. No network is needed.

agentguard chaos run examples/chaos_campaign.yaml --output chaos/
"""

from __future__ import annotations

import json
from typing import Any

from agentguard import Guard
from agentguard.bundles import RunBinding
from agentguard.trajectory import Trajectory


class SeatMap:
    """Bookings of one run."""

    def __init__(self) -> None:
        self.booked: list[int] = []

    def search(self, row: int) -> str:
        """Find a free seat in a row."""
        return json.dumps({"row": row, "seat": 4 * row})

    def book(self, seat: int) -> str:
        """Book a seat."""
        self.booked.append(seat)
        return f"seat {seat} is yours"

    def find_booking(self, seat: int) -> str | None:
        """Return the result of a booking that took effect, or None."""
        return f"seat {seat} is yours" if seat in self.booked else None


def call_llm(messages: list[dict[str, Any]], tools: list[dict[str, Any]]) -> Any:
    """Call the model; here it searches in row 1, books the seat, and answers with the result."""
    del tools
    results = [str(message["content"]) for message in messages if message["role"] == "tool"]
    seat = next((text for text in results if '"seat"' in text), None)
    booking = next((text for text in results if "is yours" in text), None)
    if booking is not None:
        return f"Done: {booking}."
    if len(results) >= 6:
        return "The booking is not possible now."
    name, arguments = ("search", {"row": 1}) if seat is None else ("book", {"seat": json.loads(seat)["seat"]})
    function = {"name": name, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "tool_calls": [{"id": f"{len(results)}", "type": "function", "function": function}],
    }


def book_trip(binding: RunBinding) -> Trajectory:
    """Run the guarded agent with the model and the tools of the binding."""
    seats, guard = SeatMap(), Guard()
    guard.tool(effect="write", reconcile=seats.find_booking)(seats.book)
    guard.tool(effect="read")(seats.search)
    model, tools = binding.bind_model(call_llm), binding.bind_tools([seats.search, seats.book])
    with guard.run("Book a seat in row 1.", tools=tools, id=binding.run_id) as run:
        binding.add_session(run.session)
        while not run.done:
            run.tools(run.model(model))
    return run.trajectory
