"""Budget of a named run whose client rewrites its history."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from agentguard.guard import Guard
from agentguard.intercept.guarded_apis import GUARDED_APIS
from agentguard.intercept.interceptor import Interceptor

TASK = {"role": "user", "content": "Book seat 4."}


def _account_of(interceptor: Interceptor, messages: list[dict[str, Any]], name: str) -> Any:
    body = {"model": "m", "messages": messages, "tools": []}
    request = interceptor.open_request(GUARDED_APIS["chat"].adapter, body, run_name=name, is_retry=False)
    call = {"id": f"c{len(messages)}", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    answer = {"role": "assistant", "content": None, "tool_calls": [call]}
    request.record_answer({"choices": [{"index": 0, "message": answer, "finish_reason": "tool_calls"}]})
    request.settle()
    return request.session.account


def _rewritten_history(number: int) -> list[dict[str, Any]]:
    call = {
        "id": f"c{number}",
        "type": "function",
        "function": {"name": "find", "arguments": json.dumps({"n": number})},
    }
    return [
        TASK,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": f"c{number}", "content": "none"},
    ]


def test_rewritten_history_with_run_name_continues_budget() -> None:
    interceptor = Interceptor(Guard())
    first = _account_of(interceptor, [TASK], "nightly")
    assert _account_of(interceptor, _rewritten_history(1), "nightly") is first
    assert _account_of(interceptor, _rewritten_history(2), "nightly") is first


def test_first_request_with_used_run_name_begins_new_budget() -> None:
    interceptor = Interceptor(Guard())
    first = _account_of(interceptor, [TASK], "nightly")
    assert _account_of(interceptor, [{**TASK, "content": "Book seat 5."}], "nightly") is not first


def test_rewritten_history_without_run_name_begins_new_budget() -> None:
    interceptor = Interceptor(Guard())
    first = _account_of(interceptor, _rewritten_history(1), "")
    assert _account_of(interceptor, _rewritten_history(2), "") is not first


def _rendered_history(turns: int) -> list[dict[str, Any]]:
    """Return a history with calls and results as text, as smolagents renders it."""
    rendered: list[dict[str, Any]] = [TASK]
    for number in range(turns):
        rendered.append({"role": "assistant", "content": f"Calling tools: find({number})"})
        rendered.append({"role": "user", "content": "Observation: none"})
    return rendered


def test_client_that_rewrites_its_history_is_reported_once(caplog: pytest.LogCaptureFixture) -> None:
    interceptor = Interceptor(Guard())
    with caplog.at_level(logging.WARNING, logger="agentguard.openai"):
        for turns in range(5):
            _account_of(interceptor, _rendered_history(turns), "")
    (record,) = caplog.records
    assert "agentguard-run" in record.getMessage()


def test_history_of_an_unknown_task_is_not_reported(caplog: pytest.LogCaptureFixture) -> None:
    interceptor = Interceptor(Guard())
    with caplog.at_level(logging.WARNING, logger="agentguard.openai"):
        _account_of(interceptor, _rendered_history(3), "")
        _account_of(interceptor, [{**TASK, "content": "Book seat 5."}], "")
    assert caplog.records == []
