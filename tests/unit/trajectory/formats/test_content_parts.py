from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, strategies as st

from agentguard.errors import FormatError
from agentguard.trajectory.formats.sdk import parse_chat, parse_content, parse_usage
from agentguard.trajectory.model import Observation, Source, Usage


def chat(*messages: dict[str, Any]) -> Any:
    return parse_chat(list(messages))


TURN: dict[str, Any] = {
    "role": "assistant",
    "content": [
        {"type": "thinking", "thinking": "I need the weather.", "signature": "s"},
        {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "weather", "input": {"city": "Oslo"}},
        {"type": "tool_use", "id": "t2", "name": "weather", "input": {"city": "Rome"}},
    ],
    "stop_reason": "tool_use",
    "usage": {"input_tokens": 10, "cache_read_input_tokens": 5, "output_tokens": 3},
}
ANSWER: dict[str, Any] = {
    "role": "user",
    "content": [
        {"type": "tool_result", "tool_use_id": "t2", "content": [{"type": "text", "text": "sun"}]},
        {"type": "tool_result", "tool_use_id": "t1", "content": "no such city", "is_error": True},
        {"type": "text", "text": "And Paris?"},
    ],
}


class TestAnthropicBlocks:
    def test_tool_use_becomes_call_and_thinking_becomes_reasoning(self) -> None:
        step = chat(TURN).steps[0]
        assert [(call.id, call.name, call.arguments) for call in step.tool_calls] == [
            ("t1", "weather", {"city": "Oslo"}),
            ("t2", "weather", {"city": "Rome"}),
        ]
        assert (step.content, step.reasoning, step.stop_reason) == (
            "I look.",
            "I need the weather.",
            "tool_use",
        )
        assert step.usage == Usage(prompt_tokens=15, completion_tokens=3, cached_tokens=5)

    def test_results_in_a_user_message_answer_calls_before_the_text(self) -> None:
        turn, user = chat(TURN, ANSWER).steps
        assert turn.observations == (
            Observation(content="sun", call_id="t2", tool="weather"),
            Observation(content="no such city", call_id="t1", tool="weather", is_error=True),
        )
        assert (user.source, user.content) == (Source.USER, "And Paris?")

    def test_result_without_its_call_becomes_environment_step(self) -> None:
        (step,) = chat(ANSWER | {"content": ANSWER["content"][:1]}).steps
        assert (step.source, step.content, step.extra) == (
            Source.ENVIRONMENT,
            "sun",
            {"tool_call_id": "t2"},
        )

    def test_result_of_server_tool_stays_in_its_turn(self) -> None:
        content = [
            {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}},
            {
                "type": "web_search_tool_result",
                "tool_use_id": "s1",
                "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
            },
            {"type": "text", "text": "No luck."},
        ]
        (step,) = chat({"role": "assistant", "content": content}).steps
        assert step.observations[0].is_error
        assert "max_uses_exceeded" in step.observations[0].content
        assert step.content == "No luck."


class TestOtherSpellings:
    @pytest.mark.parametrize(
        "part",
        [
            {"functionCall": {"id": "c", "name": "f", "args": {"a": 1}}},
            {"toolUse": {"toolUseId": "c", "name": "f", "input": {"a": 1}}},
            {"type": "tool-call", "toolCallId": "c", "toolName": "f", "input": {"a": 1}},
            {"type": "tool_call", "id": "c", "name": "f", "args": {"a": 1}},
            {"type": "function_call", "call_id": "c", "name": "f", "arguments": '{"a": 1}'},
        ],
    )
    def test_call_is_read(self, part: dict[str, Any]) -> None:
        (call,) = parse_content([part], "content").calls
        assert (call.id, call.name, call.arguments) == ("c", "f", {"a": 1})

    @pytest.mark.parametrize(
        ("part", "is_error"),
        [
            ({"functionResponse": {"id": "c", "name": "f", "response": {"a": 1}}}, None),
            ({"toolResult": {"toolUseId": "c", "content": [{"json": {"a": 1}}], "status": "error"}}, True),
            (
                {"type": "tool-result", "toolCallId": "c", "output": {"type": "json", "value": {"a": 1}}},
                None,
            ),
        ],
    )
    def test_result_is_read(self, part: dict[str, Any], is_error: bool | None) -> None:
        (result,) = parse_content([part], "content").results
        assert (result.content, result.call_id, result.is_error) == ('{"a":1}', "c", is_error)

    def test_gemini_thought_is_reasoning(self) -> None:
        content = parse_content([{"text": "hm", "thought": True}, {"text": "yes"}], "parts")
        assert (content.reasoning, content.text) == (["hm"], "yes")


class TestUnknownParts:
    def test_images_and_new_types_are_counted(self) -> None:
        chat = parse_chat(
            [
                {"role": "user", "content": [{"type": "text", "text": "See."}, {"type": "image_url"}]},
                {"role": "assistant", "content": [{"type": "hologram", "data": "…"}]},
                {"role": "user", "content": [{"type": "image", "source": {}}]},
            ]
        )
        assert chat.unknown_parts == {"hologram": 1, "image": 1, "image_url": 1}
        assert [step.unknown_parts for step in chat.steps] == [("image_url",), ("hologram",), ("image",)]

    def test_image_in_a_result_is_counted_at_the_turn(self) -> None:
        content = [{"type": "image", "source": {}}, {"type": "text", "text": "a chart"}]
        chat = parse_chat(
            [
                {"role": "assistant", "content": [{"type": "tool_use", "id": "t", "name": "plot"}]},
                {
                    "role": "user",
                    "content": [{"type": "tool_result", "tool_use_id": "t", "content": content}],
                },
            ]
        )
        assert chat.steps[0].unknown_parts == ("image",)
        assert chat.steps[0].observations[0].content == "a chart"
        assert len(chat.steps) == 1


class TestUsage:
    @pytest.mark.parametrize(
        ("data", "usage"),
        [
            ({"prompt_tokens": 1, "completion_tokens": 2}, Usage(prompt_tokens=1, completion_tokens=2)),
            ({"promptTokenCount": 1, "candidatesTokenCount": 2}, Usage(prompt_tokens=1, completion_tokens=2)),
            ({"inputTokens": 1, "cachedInputTokens": 1}, Usage(prompt_tokens=1, cached_tokens=1)),
            (
                {"input_tokens": 3, "input_tokens_details": {"cached_tokens": 2}, "cost": 0.5},
                Usage(prompt_tokens=3, cached_tokens=2, cost_usd=0.5),
            ),
            ({}, None),
            ("5", None),
        ],
    )
    def test_usage_is_read_in_each_spelling(self, data: Any, usage: Usage | None) -> None:
        assert parse_usage(data) == usage


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ["type", "text", "content", "input", "id", "toolUse", "functionResponse", "thinking"]
            )
            | st.text(max_size=2),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_content_of_any_shape_is_read_or_refused(value: Any) -> None:
    try:
        content = parse_content(value, "content")
    except FormatError:
        return
    count = len(value) if isinstance(value, list) else 1
    assert len(content.unknown_parts) <= count


def test_unread_fields_of_calls_results_and_texts_are_kept() -> None:
    call = {"type": "tool_use", "id": "t1", "name": "weather", "input": {}, "caller": {"type": "code"}}
    text = {"type": "text", "text": "Mild.", "citations": [{"url": "https://example.org"}]}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "14 C", "truncated": True}
    (step,) = chat(
        {"role": "assistant", "content": [text, call]}, {"role": "user", "content": [result], "note": "n"}
    ).steps
    assert step.extra["citations"] == text["citations"]
    assert step.tool_calls[0].extra == {"caller": {"type": "code"}}
    assert step.observations[0].extra == {"note": "n", "truncated": True}
