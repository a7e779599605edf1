"""Requests are parsed once: a judged answer is not parsed again when the client resends it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from agentguard import _sync_async
from agentguard.guard import Guard
from agentguard.intercept.guarded_apis import GUARDED_APIS
from agentguard.intercept.guarded_request import CandidateRequest, GuardedRequest
from agentguard.intercept.interceptor import Interceptor
from agentguard.trajectory.model import Source, Step, Usage

CHAT = GUARDED_APIS["chat"].adapter
TASK = {"role": "user", "content": "Find a train to Genoa."}
RESULT = {"role": "tool", "tool_call_id": "c1", "content": "09:12"}
USED = {"prompt_tokens": 40, "completion_tokens": 4}
WIRE = CandidateRequest(build_request=lambda body: body, parse_response=lambda given: given)


def opened(engine: Interceptor, *history: dict[str, Any]) -> GuardedRequest:
    body = {"model": "m", "messages": list(history)}
    return engine.open_request(CHAT, body, run_name="", is_retry=False)


def said(arguments: str = '{"to": "Genoa"}', **more: Any) -> dict[str, Any]:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call], **more}


def committed(answer: dict[str, Any], *resent: dict[str, Any]) -> Step:
    """Return the step of a turn after the client has resent it."""
    engine = Interceptor(Guard())
    exchange = opened(engine, TASK)
    payload = {"model": "big", "usage": USED, "choices": [{"message": answer, "finish_reason": "tool_calls"}]}
    assert _sync_async.run_sync(exchange.judge_answer(payload, WIRE), lambda _: None) == "deliver"
    exchange.settle()
    again = opened(engine, TASK, *resent)
    assert again.session is exchange.session
    assert [one.source for one in again.session.run.steps] == [Source.USER, Source.AGENT]
    return again.session.run.steps[1]


def test_resent_answer_keeps_its_usage() -> None:
    step = committed(said(refusal=None), said(), RESULT)
    assert step.usage is not None
    assert (step.usage.prompt_tokens, step.model) == (40, "big")
    assert [(one.call_id, one.tool, one.content) for one in step.observations] == [("c1", "find", "09:12")]


@pytest.mark.parametrize(
    "resent",
    [said('{"to":"Genoa"}'), said(content=""), said(name="planner")],
    ids=["other spaces", "other content", "another field"],
)
def test_changed_resent_answer_is_parsed_again_and_keeps_its_usage(resent: dict[str, Any]) -> None:
    step = committed(said(), resent, RESULT)
    expected = CHAT.build_step([resent, RESULT], "assistant")
    assert replace(step, index=0, started_at=None, ended_at=None, usage=None, model=None) == expected
    assert step.usage is not None
    assert (step.usage.prompt_tokens, step.model) == (40, "big")


def test_stray_tool_result_is_ignored() -> None:
    stray = {"role": "tool", "tool_call_id": "c9", "content": "?"}
    step = committed(said(), said(), RESULT, stray)
    assert [one.content for one in step.observations] == ["09:12"]


ITEMS: dict[str, list[list[dict[str, Any]]]] = {
    "chat": [
        *([{"role": role, "content": "x"}] for role in ("user", "system", "developer", "human")),
        *([{"role": role, "content": "x"}] for role in ("tool", "critic", "environment")),
        [said(), RESULT],
        [{"role": "function", "name": "f", "content": "x"}],
    ],
    "messages": [
        [{"role": "user", "content": "x"}],
        [{"role": "user", "content": [{"type": "text", "text": "x"}]}],
        [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": "x"}]}],
        [{"role": "assistant", "content": "x"}],
    ],
    "responses": [
        [{"role": "user", "content": "x"}],
        [{"content": "x"}],
        [{"type": "message", "role": "developer", "content": "x"}],
        [{"type": "message", "role": "assistant", "content": "x"}],
        [{"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"}],
        [{"type": "function_call_output", "call_id": "c1", "output": "x"}],
        [{"type": "reasoning", "summary": []}],
    ],
}  # fmt: skip


@pytest.mark.parametrize(("api", "items"), [(api, items) for api, all_ in ITEMS.items() for items in all_])
def test_source_of_turn_is_known_without_parsing(api: str, items: list[dict[str, Any]]) -> None:
    dialect = GUARDED_APIS[api].adapter
    step = dialect.build_step(json.loads(json.dumps(items)), "assistant")
    assert dialect.is_prompt(items) == (step.source in (Source.USER, Source.SYSTEM))


@pytest.mark.parametrize(
    ("api", "reported", "usage"),
    [
        (
            "chat",
            {"prompt_tokens": 9, "completion_tokens": 2, "prompt_tokens_details": {"cached_tokens": 4}},
            Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4),
        ),
        (
            "responses",
            {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 4}},
            Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4),
        ),
        (
            "messages",
            {"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 4},
            Usage(prompt_tokens=9, completion_tokens=2, cached_tokens=4),
        ),
        ("messages", "unknown", None),
    ],
)
def test_usage_of_an_answer_has_its_cached_tokens(api: str, reported: Any, usage: Usage | None) -> None:
    assert GUARDED_APIS[api].adapter.extract_usage({"usage": reported}) == usage
