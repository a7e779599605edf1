from __future__ import annotations

import time

import pytest

from agentguard.detect.error_patterns import ToolErrorKind, match_error

ERRORS = [
    ("Error: payment method pm_3 not found", ToolErrorKind.ERROR_TEXT),
    ("  [ERROR] - the disk is full", ToolErrorKind.ERROR_TEXT),
    ("Internal error occurred while reading", ToolErrorKind.ERROR_TEXT),
    ('{"error": "no such order"}', ToolErrorKind.ERROR_OBJECT),
    ("{'success': False, 'reason': 'closed'}", ToolErrorKind.ERROR_OBJECT),
    ('{"status": "failed", "id": 3}', ToolErrorKind.ERROR_OBJECT),
    ("exitcode: 1 (execution failed)\nCode output: nothing", ToolErrorKind.EXIT_CODE),
    ("Process exited with code 127", ToolErrorKind.EXIT_CODE),
    ("HTTP 503 Service Unavailable", ToolErrorKind.HTTP),
    ("404 Not Found", ToolErrorKind.HTTP),
    ("Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 'x'", ToolErrorKind.EXCEPTION),
    ("loading...\nValueError: bad shape", ToolErrorKind.EXCEPTION),
    ("Request timed out", ToolErrorKind.TIMEOUT),
    ("You can't go that way.", ToolErrorKind.REJECTED),
    ("That's not a verb I recognise.", ToolErrorKind.REJECTED),
    ("You don't see any such thing.", ToolErrorKind.REJECTED),
    ("You have to unlock the chest with the key first.", ToolErrorKind.REJECTED),
    ("(first taking the lamp)\nYou can't reach it.", ToolErrorKind.REJECTED),
    ("The cabinet is closed.", ToolErrorKind.REJECTED),
    ("Nothing happens.", ToolErrorKind.REJECTED),
    ("Invalid action: fly", ToolErrorKind.REJECTED),
    ("bash: frob: command not found", ToolErrorKind.REJECTED),
    ("There was no code block found to execute", ToolErrorKind.NO_ACTION),
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
def test_errors_are_recognised_by_their_format(text: str, kind: ToolErrorKind) -> None:
    seen = match_error(text.lower())
    assert seen is not None
    assert seen.kind is kind
    assert 0 <= seen.start < seen.end <= len(text)


@pytest.mark.parametrize("text", FINE)
def test_other_results_are_not_errors(text: str) -> None:
    assert match_error(text.lower()) is None


def test_error_flag_overrides_text() -> None:
    assert match_error("error: x", flag=False) is None
    flagged = match_error("all is well", flag=True)
    assert flagged is not None
    assert flagged.kind is ToolErrorKind.FLAGGED
    shaped = match_error("error: x", flag=True)
    assert shaped is not None
    assert shaped.kind is ToolErrorKind.ERROR_TEXT


@pytest.mark.parametrize(
    "hostile", [" " * 300_000, "\n" * 300_000, "{" * 300_000, "error" * 60_000, "[(" * 99_999]
)
def test_hostile_text_takes_linear_time(hostile: str) -> None:
    start = time.process_time()
    match_error(hostile)
    assert time.process_time() - start < 2  # includes garbage collection; quadratic time takes minutes
