from __future__ import annotations

from typing import Any

import pytest

from agentguard.trajectory.formats.base import formats
from agentguard.trajectory.formats.reader import load_trajectory
from agentguard.trajectory.model import Source, Usage
from tests.unit.trajectory.formats.samples import sample


def test_name_decides_and_not_the_role() -> None:
    run = load_trajectory(sample("autogen.json"))
    assert [(step.source, step.agent) for step in run.steps] == [
        (Source.USER, "user_proxy"),
        (Source.AGENT, "hydrologist"),
        (Source.AGENT, "hydrologist"),
        (Source.ENVIRONMENT, "user_proxy"),
        (Source.AGENT, "critic"),
    ]
    assert [seen.content for seen in run.steps[1].observations] == ["two"]


def test_events_are_turns_with_results_reasoning_and_usage() -> None:
    run = load_trajectory(sample("autogen.events.json"))
    user, search, answer = run.steps
    assert (user.source, search.agent, answer.agent) == (Source.USER, "searcher", "writer")
    assert search.reasoning == "The park may have it."
    assert search.usage == Usage(prompt_tokens=12, completion_tokens=3)
    assert [(seen.content, seen.is_error) for seen in search.observations] == [("no such place", True)]
    assert run.exit_status == "Text 'DONE' mentioned"


def test_unknown_event_is_counted() -> None:
    run = load_trajectory([{"source": "a", "type": "MemoryQueryEvent", "content": []}])
    assert run.unknown_parts == {"MemoryQueryEvent": 1}


@pytest.mark.parametrize(
    "value",
    [
        [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}],
        [{"role": "user", "name": "x", "content": "a"}, {"role": "assistant", "name": "y", "content": "b"}],
        [{"role": "user", "name": "x", "content": "a"}, {"role": "assistant", "content": "b"}],
    ],
)
def test_score_leaves_chats_without_names(value: Any) -> None:
    assert formats().get("autogen").score_match(value) == 0


def test_older_function_call_is_a_call() -> None:
    messages = [
        {"role": "assistant", "name": "owner", "content": "Find the gauge."},
        {"role": "user", "name": "hydrologist", "function_call": {"name": "find", "arguments": "{}"}},
        {"role": "function", "name": "find", "content": "gauge 7"},
    ]
    run = load_trajectory(messages, format="autogen")
    assert [call.name for call in run.steps[1].tool_calls] == ["find"]
    assert [seen.content for seen in run.steps[1].observations] == ["gauge 7"]


def test_thoughts_without_an_answer_are_a_turn() -> None:
    thoughts = [
        {"source": "a", "type": "ThoughtEvent", "content": text} for text in ("The gauge?", "Or the park?")
    ]
    run = load_trajectory([{"source": "user", "type": "TextMessage", "content": "Go."}, *thoughts])
    assert (run.steps[-1].agent, run.steps[-1].reasoning) == ("a", "The gauge?\nOr the park?")
