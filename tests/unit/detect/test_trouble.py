from __future__ import annotations

import time

import pytest

from agentguard.detect.trouble import Kind, trouble

ERRORS = [
    ("Error: payment method pm_3 not found", Kind.ERROR_TEXT),
    ("  [ERROR] - the disk is full", Kind.ERROR_TEXT),
    ("Internal error occurred while reading", Kind.ERROR_TEXT),
    ('{"error": "no such order"}', Kind.ERROR_OBJECT),
    ("{'success': False, 'reason': 'closed'}", Kind.ERROR_OBJECT),
    ('{"status": "failed", "id": 3}', Kind.ERROR_OBJECT),
    ("exitcode: 1 (execution failed)\nCode output: nothing", Kind.EXIT_CODE),
    ("Process exited with code 127", Kind.EXIT_CODE),
    ("HTTP 503 Service Unavailable", Kind.HTTP),
    ("404 Not Found", Kind.HTTP),
    ("Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 'x'", Kind.EXCEPTION),
    ("loading...\nValueError: bad shape", Kind.EXCEPTION),
    ("Request timed out", Kind.TIMEOUT),
    ("You can't go that way.", Kind.REJECTED),
    ("That's not a verb I recognise.", Kind.REJECTED),
    ("You don't see any such thing.", Kind.REJECTED),
    ("You have to unlock the chest with the key first.", Kind.REJECTED),
    ("(first taking the lamp)\nYou can't reach it.", Kind.REJECTED),
    ("The cabinet is closed.", Kind.REJECTED),
    ("Nothing happens.", Kind.REJECTED),
    ("Invalid action: fly", Kind.REJECTED),
    ("bash: frob: command not found", Kind.REJECTED),
    ("There was no code block found to execute", Kind.NO_ACTION),
]
FINE = [
    "",
    "[]",
    "375.0",
    '{"errors": [], "status": "ok"}',
    '{"error": null, "total": 3}',
    '{"title": "The error of our ways", "price": 3}',
    "exitcode: 0 (execution succeeded)\nCode output: 4.2",
    "The report names three errors of 2019: " + "a long paragraph about failure. " * 30,
    "You open the door.",
    "-= Hall =-\nA hall.\n\nYou don't like doors? Why not go north.",
    "You open the box. The box is closed again by the wind, which makes a sound.",
    "-= Kitchen =-\nYou are in the kitchen. You see a table. There is an exit to the east.",
    "You are carrying nothing.",
    "Room 404 is on the fourth floor",
    "Transfer successful",
]


@pytest.mark.parametrize(("text", "kind"), ERRORS)
def test_errors_are_recognised_by_their_shape(text: str, kind: Kind) -> None:
    seen = trouble(text.lower())
    assert seen is not None
    assert seen.kind is kind
    assert 0 <= seen.start < seen.end <= len(text)


@pytest.mark.parametrize("text", FINE)
def test_results_that_are_no_errors_are_left_alone(text: str) -> None:
    assert trouble(text.lower()) is None


def test_what_the_recording_says_outranks_the_text() -> None:
    assert trouble("error: x", flag=False) is None
    flagged = trouble("all is well", flag=True)
    assert flagged is not None
    assert flagged.kind is Kind.FLAGGED
    shaped = trouble("error: x", flag=True)
    assert shaped is not None
    assert shaped.kind is Kind.ERROR_TEXT


@pytest.mark.parametrize(
    "hostile", [" " * 300_000, "\n" * 300_000, "{" * 300_000, "error" * 60_000, "[(" * 99_999]
)
def test_hostile_text_costs_little(hostile: str) -> None:
    start = time.process_time()
    trouble(hostile)
    assert time.process_time() - start < 2  # with a collection of garbage; the square takes minutes
