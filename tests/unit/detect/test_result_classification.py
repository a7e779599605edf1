from __future__ import annotations

import time

import pytest
from hypothesis import given, strategies as st

from agentguard.detect._text import to_lower
from agentguard.detect.result_classification import (
    ResultClassification,
    ResultReason,
    ResultStatus,
    classify_result,
)

ERRORS = [
    ("Error: payment method pm_3 not found", ResultReason.ERROR_TEXT),
    ("  [ERROR] - the disk is full", ResultReason.ERROR_TEXT),
    ("Internal error occurred while reading", ResultReason.ERROR_TEXT),
    ("Command write_page returned: Error: 'NoneType' object is not iterable", ResultReason.ERROR_TEXT),
    ("<tool_use_error>String to replace not found in file.</tool_use_error>", ResultReason.ERROR_TEXT),
    ("DNS resolution error", ResultReason.ERROR_TEXT),
    ("/bin/sh: line 1: 24 Segmentation fault (core dumped) ./a.out", ResultReason.ERROR_TEXT),
    ("find: missing argument to `-exec'", ResultReason.ERROR_TEXT),
    ("compiling ...\n" * 40 + "src/a.c:12:5: error: unknown type", ResultReason.ERROR_TEXT),
    ('{"error": "no such order"}', ResultReason.ERROR_OBJECT),
    ("{'success': False, 'reason': 'closed'}", ResultReason.ERROR_OBJECT),
    ('{"status": "failed", "id": 3}', ResultReason.ERROR_OBJECT),
    ('{"response_status": "Error", "body": {}}', ResultReason.ERROR_OBJECT),
    ('[{"error": "no such key"}]', ResultReason.ERROR_OBJECT),
    ('{"content": [{"type": "text", "text": "Error: 7 is not a colour"}]}', ResultReason.ERROR_TEXT),
    ('{"status": 404}', ResultReason.HTTP),
    ('{"result": {"status_code": "403", "body": "stay out"}}', ResultReason.HTTP),
    ('{"output": "a\\nb", "metadata": {"exit_code": 1, "duration": 2}}', ResultReason.EXIT_CODE),
    ("<returncode>1</returncode>\n<output>\nls: x\n</output>", ResultReason.EXIT_CODE),
    ("exitcode: 1 (execution failed)\nCode output: nothing", ResultReason.EXIT_CODE),
    ("Process exited with code 127", ResultReason.EXIT_CODE),
    ("a long log\n" * 80 + "Exit code: 139", ResultReason.EXIT_CODE),
    ("HTTP 503 Service Unavailable", ResultReason.HTTP),
    ("404 Not Found", ResultReason.HTTP),
    ("Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 'x'", ResultReason.EXCEPTION),
    ("loading...\nValueError: bad shape", ResultReason.EXCEPTION),
    ("1 failed, 3 passed", ResultReason.TEST_FAILURE),
    ("Lines written.\nBUILD FAILED\nsee the log", ResultReason.TEST_FAILURE),
    ("There are 2 failing test cases", ResultReason.TEST_FAILURE),
    ("Request timed out", ResultReason.TIMEOUT),
    ("The user doesn't want to proceed with this tool use. It was stopped.", ResultReason.DENIED),
    ("You can't go that way.", ResultReason.REJECTED),
    ("That's not a verb I recognise.", ResultReason.REJECTED),
    ("You don't see any such thing.", ResultReason.REJECTED),
    ("You have to unlock the chest with the key first.", ResultReason.REJECTED),
    ("(first taking the lamp)\nYou can't reach it.", ResultReason.REJECTED),
    ("Your patch did not change the file. " + "The template is this. " * 40, ResultReason.REJECTED),
    ("The file a.txt does not exist. Your directory is /home.", ResultReason.REJECTED),
    ("The cabinet is closed.", ResultReason.REJECTED),
    ("Nothing happens.", ResultReason.REJECTED),
    ("Invalid action: fly", ResultReason.REJECTED),
    ("bash: frob: command not found", ResultReason.REJECTED),
    ("spawn /usr/bin/rg EACCES", ResultReason.REJECTED),
]
EMPTY = [
    ("", ResultReason.NO_OUTPUT),
    ("[]", ResultReason.NO_OUTPUT),
    (" {} \n", ResultReason.NO_OUTPUT),
    ("null", ResultReason.NO_OUTPUT),
    ("(Bash completed with no output)\n\n[metadata] {}", ResultReason.NO_OUTPUT),
    ("Your command ran successfully and did not produce any output.", ResultReason.NO_OUTPUT),
    ("<output>\n</output>", ResultReason.NO_OUTPUT),
    ("No results found", ResultReason.NO_MATCH),
    ("Command find_callers returned: No callers of the function were found.", ResultReason.NO_MATCH),
    ('{"results": [], "query": "tin boxes"}', ResultReason.NO_MATCH),
    ("There was no code block found to execute", ResultReason.NO_ACTION),
]
UNUSABLE = [
    ("%PDF-1.4 \x00\x01 stream", ResultReason.BINARY),
    ("\ufffd\ufffdPK\ufffd" * 20, ResultReason.BINARY),
    ("Please enable JavaScript to view this page.", ResultReason.BLOCKED_PAGE),
    ("Checking your browser before you enter the shop", ResultReason.BLOCKED_PAGE),
    ('{"title": "Just a moment...", "content": "Verify you are human"}', ResultReason.BLOCKED_PAGE),
]
PARTIAL = [
    ("line\n" * 900 + "... [46700 lines truncated] ...", ResultReason.TRUNCATED),
    ("<response clipped>\n" + "a file\n" * 90, ResultReason.TRUNCATED),
    ("The response was truncated to the first 4000 characters: x", ResultReason.TRUNCATED),
    ('[{"id": 1, "price": 3}, {"error": "no such item"}]', ResultReason.SOME_ERRORS),
]
USABLE = [
    "375.0",
    '{"errors": [], "status": "ok"}',
    '{"error": null, "total": 3}',
    '{"title": "The error of our ways", "price": 3}',
    '{"orders": [{"id": 1, "status": "failed"}, {"id": 2, "status": "sent"}]}',
    '{"name": "Ada", "cards": {}}',
    "exitcode: 0 (execution succeeded)\nCode output: 4.2",
    "The report names three errors of 2019: " + "a long paragraph about failure. " * 30,
    "You open the door.",
    "-= Hall =-\nA hall.\n\nYou don't like doors? Why not go north.",
    "You open the box. The box is closed again by the wind, which makes a sound.",
    "-= Kitchen =-\nYou are in the kitchen. You see a table. There is an exit to the east.",
    "You are carrying nothing.",
    "Room 404 is on the fourth floor",
    "Transfer successful",
    "     1→import sys\n     2→def stop():\n     3→    sys.exit('exit code 1')\n     4→raise ValueError('x')",
    '```java\nthrow new IllegalArgumentException("404 not found");\n```',
    "12 passed in 0.1s, 0 failed",
    "Compilation finished with 0 errors",
]


def classify(text: str, flag: bool | None = None) -> ResultClassification:
    return classify_result(to_lower(text), flag=flag)


@pytest.mark.parametrize(("text", "reason"), ERRORS)
def test_error_formats_are_classified_as_errors(text: str, reason: ResultReason) -> None:
    seen = classify(text)
    assert (seen.status, seen.reason) == (ResultStatus.ERROR, reason)
    assert 0 <= seen.start < seen.end <= len(text)


@pytest.mark.parametrize(
    ("status", "text", "reason"),
    [
        *[(ResultStatus.EMPTY, *row) for row in EMPTY],
        *[(ResultStatus.UNUSABLE, *row) for row in UNUSABLE],
        *[(ResultStatus.PARTIAL, *row) for row in PARTIAL],
    ],
)
def test_results_without_use_are_classified(status: ResultStatus, text: str, reason: ResultReason) -> None:
    seen = classify(text)
    assert (seen.status, seen.reason) == (status, reason)
    assert 0 <= seen.start <= seen.end <= len(text)


@pytest.mark.parametrize("text", USABLE)
def test_other_results_are_usable(text: str) -> None:
    assert classify(text).status is ResultStatus.OK


def test_error_flag_overrides_text() -> None:
    assert classify("error: x", flag=False).status is ResultStatus.OK
    assert classify('{"error": "x"}', flag=False).status is ResultStatus.OK
    assert classify("No files found", flag=False).status is ResultStatus.EMPTY
    assert classify("all is well", flag=True).reason is ResultReason.FLAGGED
    assert classify("", flag=True).status is ResultStatus.ERROR
    assert classify("error: x", flag=True).reason is ResultReason.ERROR_TEXT


@given(st.text(max_size=600), st.sampled_from([None, True, False]))
def test_any_text_is_classified_with_a_span_inside_it(text: str, flag: bool | None) -> None:
    seen = classify(text, flag=flag)
    assert 0 <= seen.start <= seen.end <= len(text)
    assert (seen.reason is None) == (seen.status is ResultStatus.OK)
    assert flag is None or seen.is_error is flag or (flag is False and not seen.is_error)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["error", "status", "results", "content", "exit_code", "text", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(_JSON)
def test_any_json_is_classified_with_a_span_inside_it(value: object) -> None:
    import json

    text = json.dumps(value)
    seen = classify(text)
    assert 0 <= seen.start <= seen.end <= len(text)


@pytest.mark.parametrize(
    "hostile",
    [
        " " * 300_000,
        "\n" * 300_000,
        "{" * 300_000,
        "[" * 300_000,
        "error" * 60_000,
        "[(" * 99_999,
        "no " + "a" * 300_000,
        "truncated" * 40_000,
        "<output>" * 40_000,
        "javascript " * 30_000,
        "your " * 60_000,
    ],
)
def test_hostile_text_takes_linear_time(hostile: str) -> None:
    start = time.process_time()
    classify_result(hostile)
    assert time.process_time() - start < 2  # includes garbage collection; quadratic time takes minutes
