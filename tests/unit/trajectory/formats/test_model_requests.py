from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agentguard.trajectory.formats.base import UnreadableRecord
from agentguard.trajectory.formats.reader import load_records, load_trajectory, read
from agentguard.trajectory.model import Source, Trajectory, Usage
from tests.unit.trajectory.formats.samples import lines, sample


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def pair(*messages: dict[str, Any], reply: str | None = None, **fields: Any) -> dict[str, Any]:
    response = {"choices": [{"message": answer(reply)}]} if reply else {"error": {"message": "overloaded"}}
    return {"request": {"messages": list(messages)}, "response": response, **fields}


def runs(*pairs: dict[str, Any]) -> list[Trajectory]:
    return [record.trajectory for record in load_records(list(pairs), format="model_requests")]


def contents(run: Trajectory) -> list[str]:
    return [step.content for step in run.steps]


def test_requests_with_a_common_history_are_one_run() -> None:
    (run,) = runs(pair(user("a"), reply="b"), pair(user("a"), answer("b"), user("c"), reply="d"))
    assert (contents(run), run.branches) == (["a", "b", "c", "d"], ())


def test_second_answer_to_a_history_is_a_branch() -> None:
    run = load_records(lines("model_requests.jsonl"))[0].trajectory
    assert contents(run)[3:] == ["In depot north.", "Thanks.", "You are welcome."]
    assert [(one.fork_step, one.steps[0].content) for one in run.branches] == [
        (3, "In depot south."),
        (5, "rate limit"),
    ]


def test_usage_of_each_response_counts_once() -> None:
    run = load_records(lines("model_requests.jsonl"))[0].trajectory
    usages = [step.usage.completion_tokens for step in run.steps if step.usage]
    assert usages == [9, 5, 4]


def test_equal_tasks_with_answers_are_separate_runs() -> None:
    first, second = runs(
        pair(user("a"), reply="b"),
        pair(user("a"), reply="x"),
        pair(user("a"), answer("b"), user("c"), reply="d"),
        pair(user("a"), answer("x"), user("y"), reply="z"),
    )
    assert (contents(first), contents(second)) == (["a", "b", "c", "d"], ["a", "x", "y", "z"])


def test_retry_of_a_failed_first_request_continues_the_run() -> None:
    (run,) = runs(pair(user("a")), pair(user("a"), reply="b"))
    assert contents(run) == ["a", "b"]
    assert run.branches[0].steps[0].source is Source.ENVIRONMENT


def test_session_id_separates_runs() -> None:
    first, second = runs(
        pair(user("a"), reply="b", session_id="s1"),
        pair(user("a"), reply="b", session_id="s2"),
        pair(user("a"), answer("b"), user("c"), reply="d", session_id="s1"),
    )
    assert [(run.id, len(run.steps)) for run in (first, second)] == [("s1", 4), ("s2", 2)]


def test_copy_of_a_response_may_differ_in_form() -> None:
    blocks = [{"type": "text", "text": "b", "citations": None}]
    first = {
        "request": {"messages": [user("a")]},
        "response": {"role": "assistant", "type": "message", "content": blocks},
    }
    marked = [{"type": "text", "text": "a", "cache_control": {"type": "ephemeral"}}]
    (run,) = runs(first, pair({"role": "user", "content": marked}, answer("b"), user("c"), reply="d"))
    assert contents(run) == ["a", "b", "c", "d"]


def test_stream_events_of_bedrock_are_one_message() -> None:
    step = load_trajectory(sample("model_requests.bedrock.json")).steps[1]
    assert (step.content, step.tool_calls[0].arguments) == ("I feed tank 2.", {"tank": 2})
    assert (step.usage, step.stop_reason) == (Usage(prompt_tokens=14, completion_tokens=17), "tool_use")


def test_bodies_as_text_are_parsed() -> None:
    data = pair(user("a"), reply="b")
    (run,) = runs({key: json.dumps(value) for key, value in data.items()})
    assert contents(run) == ["a", "b"]


def test_litellm_payload_is_a_pair() -> None:
    payload = {"id": "x", "call_type": "acompletion", "startTime": 1_770_000_000.5, "messages": [user("a")]}
    payload |= {"response": {"choices": [{"message": answer("b"), "finish_reason": "stop"}], "model": "m"}}
    run = load_trajectory(payload)
    assert (run.format, contents(run), run.steps[1].started_at) == (
        "model_requests",
        ["a", "b"],
        1_770_000_000.5,
    )


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [
        ({"prompt_tokens": 8}, Usage(prompt_tokens=8, cost_usd=0.5)),
        ({"prompt_tokens": 8, "cost_usd": 0.25}, Usage(prompt_tokens=8, cost_usd=0.25)),
        (None, Usage(prompt_tokens=7, completion_tokens=2, cost_usd=0.5)),
    ],
)
def test_cost_of_the_log_completes_the_usage_of_the_response(recorded: Any, expected: Usage) -> None:
    logged = {"response_cost": 0.5, "prompt_tokens": 7, "completion_tokens": 2}
    data = pair(user("a"), reply="b", **logged)
    data["response"] |= {"usage": recorded}
    assert runs(data)[0].steps[1].usage == expected


def test_failed_call_of_litellm_is_an_error() -> None:
    failure = {"messages": [user("a")], "response": {}, "status": "failure", "error_str": "rate limit"}
    step = load_trajectory(failure).steps[1]
    assert (step.source, step.content) == (Source.ENVIRONMENT, "rate limit")


def test_pair_without_messages_is_unreadable_and_named() -> None:
    found = list(read([pair(user("a"), reply="b"), {"request": {}, "response": {}}], format="model_requests"))
    (error,) = [one.error for one in found if isinstance(one, UnreadableRecord)]
    assert (error.record, error.reason) == (1, "a request without messages")
    assert len(found) == 2


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(0, 30), min_size=1, max_size=12))
def test_any_order_of_answers_keeps_every_answer_once(choices: list[int]) -> None:
    histories: list[list[dict[str, Any]]] = []
    pairs = []
    for number, choice in enumerate(choices):
        history = copy.deepcopy(histories[choice % len(histories)]) if histories else []
        history = [*history, user(f"u{number}")] if history else [user("start")]
        pairs.append(pair(*history, reply=f"r{number}"))
        histories.append([*history, answer(f"r{number}")])
    steps = [
        step
        for run in runs(*pairs)
        for step in (*run.steps, *(step for branch in run.branches for step in branch.steps))
    ]
    replies = sorted(step.content for step in steps if step.source is Source.AGENT)
    assert replies == sorted(f"r{number}" for number in range(len(choices)))


STREAM = [
    {"type": "message_start", "message": {"role": "assistant", "content": []}},
    {"type": "content_block_start", "content_block": {"type": "text", "text": "b"}},
    {"type": "content_block_delta", "delta": {"type": "citations_delta"}},
    {"type": "message_pause"},
]


@pytest.mark.parametrize(
    ("response", "parts"),
    [
        ({"choices": [{"message": answer("b")}, {"message": answer("c")}]}, ["choice"]),
        ({"completion": "b"}, ["response"]),
        (STREAM, ["stream event citations_delta", "stream event message_pause"]),
    ],
    ids=["choices", "another API", "stream"],
)
def test_unread_parts_of_a_response_are_counted(response: Any, parts: list[str]) -> None:
    (run,) = runs({"request": {"messages": [user("a")]}, "response": response})
    assert run.unknown_parts == dict.fromkeys(parts, 1)


def test_unknown_parts_of_branches_are_counted_once() -> None:
    image = {"role": "user", "content": [{"type": "hologram"}]}
    (run,) = runs(
        pair(image, reply="b"), pair(image, answer("b"), image), pair(image, answer("b"), user("c"))
    )
    assert len(run.branches) == 1
    assert run.unknown_parts == {"hologram": 2}
