"""Number of equal calls that a user has asked for."""

from __future__ import annotations

from typing import Any

import pytest

from agentguard.runtime.duplicate_calls import requests_equal_calls
from agentguard.trajectory.model import ToolCall


@pytest.mark.parametrize(
    ("text", "tool", "arguments", "count"),
    [
        ("Book two tickets for Dune.", "book_ticket", {"film": "Dune"}, 2),
        ("Please book 2 cinema tickets.", "bookTicket", {"film": "Dune"}, 2),
        ("Buy three brass bolts.", "buy", {"item": "bolt"}, 3),
        ("Reserve both seats in row 7.", "reserve", {"row": 7, "seat": "any"}, 2),
        ("Charge the card twice, 20 each.", "charge", {"amount": 20}, 2),
        ("Send the alarm three times.", "send_alarm", {}, 3),
    ],
)
def test_stated_number_of_calls_is_requested(
    text: str, tool: str, arguments: dict[str, Any], count: int
) -> None:
    assert requests_equal_calls(["Hello.", text], ToolCall(id="c", name=tool, arguments=arguments), count)


@pytest.mark.parametrize(
    ("text", "tool", "arguments", "count"),
    [
        ("Book a ticket for Dune.", "book_ticket", {"film": "Dune"}, 2),
        ("Book two tickets for Dune.", "book_ticket", {"film": "Dune"}, 3),
        ("Book a ticket within two days.", "book_ticket", {"film": "Dune"}, 2),
        ("Do not book two tickets.", "book_ticket", {"film": "Dune"}, 2),
        ("Book no more than two tickets.", "book_ticket", {"film": "Dune"}, 2),
        ("Book 2 seats.", "book", {"seat": 2}, 2),
        ("I have called twice. Charge the card.", "charge", {"amount": 20}, 2),
        ("", "charge", {}, 2),
    ],
)
def test_other_numbers_request_no_equal_calls(
    text: str, tool: str, arguments: dict[str, Any], count: int
) -> None:
    assert not requests_equal_calls([text], ToolCall(id="c", name=tool, arguments=arguments), count)
