"""Assembly of the streams of the Messages API."""

from __future__ import annotations

from agentguard.model_api.stream_assembly import assemble_message

START = {"type": "message_start", "message": {"role": "assistant", "usage": {"input_tokens": 9}}}
BLOCK = {"type": "content_block_start", "index": 0, "content_block": {"type": "tool_use", "name": "book"}}


def test_message_with_tool_call_has_arguments_usage_and_stop_reason() -> None:
    deltas = [{"type": "input_json_delta", "partial_json": part} for part in ('{"seat"', ": 4}")]
    end = {
        "type": "message_delta",
        "delta": {"stop_reason": "tool_use"},
        "usage": {"output_tokens": 3},
    }
    events = [
        START,
        BLOCK,
        *({"type": "content_block_delta", "index": 0, "delta": one} for one in deltas),
        end,
    ]
    assert assemble_message(events) == {
        "role": "assistant",
        "usage": {"input_tokens": 9, "output_tokens": 3},
        "stop_reason": "tool_use",
        "content": [{"type": "tool_use", "name": "book", "input": '{"seat": 4}'}],
    }


def test_events_of_unknown_types_are_skipped() -> None:
    unknown = {"type": "content_block_delta", "index": 0, "delta": {"type": "new_delta", "text": "x"}}
    assert assemble_message([None, "text", START, BLOCK, unknown])["content"] == [BLOCK["content_block"]]


def test_stream_without_message_is_empty() -> None:
    assert assemble_message([{"type": "ping"}]) == {}
