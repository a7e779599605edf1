"""Codes of the fault model: each detector names the mode in which a service or an agent failed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.detect.builders import call, found, run, said, user

TOOL_ERRORS = {
    "Error: the request timed out": "timing",
    "TimeoutError: no answer": "timing",
    '{"error": "search timed out after 3 s"}': "timing",
    "ConnectionRefusedError: [Errno 111] Connection refused": "crash",
    "Error: the worker died": "crash",
    "Segmentation fault (core dumped)": "crash",
    "HTTP 503 Service Unavailable": "degraded_availability",
    "Error: 429 too many requests": "degraded_availability",
    "Error: card declined": "response",
    "HTTP 500 Internal Server Error": "response",
}


@pytest.mark.parametrize("text", TOOL_ERRORS)
def test_tool_error_names_the_fault_mode_of_the_service(text: str) -> None:
    (finding,) = found(run(call("search", {}, text, is_error=True)), "tool_error")
    modes = [code for code in finding.codes if code.startswith("fault_model:")]
    assert modes == [f"fault_model:{TOOL_ERRORS[text]}"]


def test_long_result_that_mentions_a_fault_has_no_fault_mode_of_its_own() -> None:
    text = "Error: card declined\n" + "The manual explains what a segmentation fault is. " * 20
    (finding,) = found(run(call("pay", {}, text, is_error=True)), "tool_error")
    assert "fault_model:crash" not in finding.codes


CLAIMS: dict[str, tuple[str, list[Any]]] = {
    "silent_corruption": (
        "refuted_claim",
        [
            call("list_offers", {}, '{"offers": [{"id": "a", "price": 8}, {"id": "b", "price": 9}]}'),
            said("I found 5 offers for you."),
        ],
    ),
    "fail_silence_violation": (
        "success_without_call",
        [call("get_flight", {"id": 3}, "{}"), said("Your flight has been booked. Have a nice trip.")],
    ),
    "omission": ("empty_output", [user("Book flight 3, please."), said("")]),
}


@pytest.mark.parametrize("mode", CLAIMS)
def test_wrong_output_without_an_error_has_its_fault_mode(mode: str) -> None:
    detector, steps = CLAIMS[mode]
    findings = found(run(*steps), detector)
    assert [f"fault_model:{mode}" in finding.codes for finding in findings] == [True]
