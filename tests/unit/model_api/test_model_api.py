"""Interpretation of each API's answers: content, end, faults and errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

from agentguard.model_api import API_FORMATS
from agentguard.model_api.sse import EVENT_END, EventSplitter, extract_data, split_events


def event(data: Any, name: str = "", end: str = "\n") -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    head = f"event: {name}{end}" if name else ""
    return f"{head}data: {text}{end}{end}".encode()


def delta(**parts: Any) -> bytes:
    finish = parts.pop("finish", None)
    choice = {"index": 0, "delta": parts, "logprobs": None, "finish_reason": finish}
    return event({"id": "c", "object": "chat.completion.chunk", "choices": [choice]})


def typed(kind: str, **more: Any) -> bytes:
    return event({"type": kind, **more}, name=kind)


DONE = event("[DONE]")
TOOL = {"index": 0, "id": "t", "type": "function", "function": {"name": "f", "arguments": ""}}

CARRIES = {
    "chat": {
        "text": delta(content="Hi"),
        "role and text": delta(role="assistant", content="Hi"),
        "reasoning": delta(reasoning_content="So"),
        "refusal": delta(refusal="No"),
        "a tool call": delta(tool_calls=[TOOL]),
        "arguments": delta(tool_calls=[{"index": 0, "function": {"arguments": '{"a'}}]),
        "parts": delta(content=[{"type": "text", "text": "Hi"}]),
        "an end": delta(finish="stop"),
        "usage": event({"choices": [], "usage": {"total_tokens": 3}}),
        "role, then text": delta(role="assistant", content="") + delta(content="Hi"),
        "after a comment": b": ping\n\n" + delta(content="Hi"),
        "with CRLF": event({"choices": [{"delta": {"content": "Hi"}}]}, end="\r\n"),
    },
    "completions": {
        "text": event({"choices": [{"index": 0, "text": "Hi", "finish_reason": None}]}),
    },
    "responses": {
        "text": typed("response.output_text.delta", delta="Hi"),
        "an item": typed("response.output_item.done", item={}),
        "a search": typed("response.web_search_call.searching"),
        "an end": typed("response.completed", response={}),
    },
    "messages": {
        "text": typed("content_block_delta", delta={"type": "text_delta", "text": "Hi"}),
        "a tool": typed("content_block_start", content_block={"type": "tool_use", "name": "f", "input": {}}),
        "input": typed("content_block_delta", delta={"type": "input_json_delta", "partial_json": "{"}),
        "stop": typed("message_delta", delta={"stop_reason": "end_turn"}),
        "an end": typed("message_stop"),
    },
}
SILENT = {
    "chat": {
        "comment": b": keepalive\n\n",
        "ping": b"event: ping\n\n",
        "role": delta(role="assistant"),
        "role and nothing": delta(role="assistant", content=""),
        "nothing": delta(),
        "null": delta(content=None),
        "no tools": delta(role="assistant", content="", tool_calls=[]),
        "empty arguments": delta(tool_calls=[{"index": 0, "function": {"arguments": ""}}]),
        "no choices": event({"choices": [], "usage": None}),
        "text that looks like a field": delta(role='"content":"x"'),
        "an error": event({"error": {"message": "m"}}),
        "nonsense": event("<html>"),
    },
    "completions": {"nothing": event({"choices": [{"index": 0, "text": "", "finish_reason": None}]})},
    "responses": {
        "created": typed("response.created", response={"status": "in_progress"}),
        "empty": typed("response.output_text.delta", delta=""),
        "opened": typed("response.content_part.added", part={"text": ""}),
        "keepalive": typed("keepalive"),
        "done": DONE,
    },
    "messages": {
        "ping": typed("ping"),
        "start": typed("message_start", message={"content": [], "stop_reason": None}),
        "opened": typed("content_block_start", content_block={"type": "text", "text": ""}),
        "empty": typed("content_block_delta", delta={"type": "text_delta", "text": ""}),
        "closed": typed("content_block_stop"),
    },
}


def named(cases: dict[str, dict[str, bytes]]) -> list[Any]:
    return [
        pytest.param(api, chunk, id=f"{api}-{name}") for api in cases for name, chunk in cases[api].items()
    ]


@pytest.mark.parametrize(("api", "chunk"), named(CARRIES))
def test_chunk_with_content_is_recognised(api: str, chunk: bytes) -> None:
    assert API_FORMATS[api].has_content(chunk)
    assert API_FORMATS[api].find_chunk_error(chunk) is None


@pytest.mark.parametrize(("api", "chunk"), named(SILENT))
def test_chunk_without_content_is_recognised(api: str, chunk: bytes) -> None:
    assert not API_FORMATS[api].has_content(chunk)
    assert not API_FORMATS[api].is_last(chunk)


@pytest.mark.parametrize(
    ("api", "chunk", "ends"),
    [
        ("chat", DONE, True),
        ("chat", delta(finish="stop") + DONE, True),
        ("chat", b"data: [DONE]\r\n\r\n", True),
        ("chat", b"data:[DONE]\n\n", True),
        ("chat", DONE + b": bye\n\n", True),
        ("chat", DONE + delta(content="more"), False),
        ("chat", delta(content="data: [DONE]\n\n"), False),
        ("chat", delta(content="[DONE]"), False),
        ("chat", delta(finish="stop"), False),
        ("completions", DONE, True),
        ("responses", typed("response.completed", response={}), True),
        ("responses", typed("response.incomplete", response={}), True),
        ("responses", typed("response.failed", response={}), True),
        ("responses", typed("response.completed", response={}) + DONE, True),
        ("responses", typed("response.output_text.delta", delta='"response.completed"'), False),
        ("responses", DONE, False),
        ("messages", typed("message_stop"), True),
        ("messages", typed("message_delta", delta={"stop_reason": "end_turn"}), False),
        ("messages", typed("message_stop") + typed("ping"), False),
    ],
)
def test_last_event_is_recognised(api: str, chunk: bytes, ends: bool) -> None:
    assert API_FORMATS[api].is_last(chunk) is ends


def test_end_without_content_is_not_an_answer() -> None:
    """The end counts only after content: a stream of only its end has no answer."""
    assert not API_FORMATS["chat"].has_content(DONE)
    assert not API_FORMATS["completions"].has_content(DONE)
    assert API_FORMATS["messages"].has_content(
        typed("message_stop")
    )  # an empty message is a valid answer of this API


SECRET = "sk-canary"
ERROR = {"message": SECRET, "type": "InternalServerError", "code": 500}


@pytest.mark.parametrize(
    ("api", "chunk", "part"),
    [
        ("chat", event({"error": ERROR}) + DONE, "(500)"),
        ("chat", event({"object": "error", "error": {"message": SECRET, "type": "Bad"}}), "(Bad)"),
        ("chat", event({"error": SECRET}), "with an error"),
        ("chat", event({"error": {"code": SECRET + " and more"}}), "with an error"),
        ("chat", event("<html>" + SECRET), "not JSON"),
        ("chat", event('{"choices": [' + SECRET), "not JSON"),
        ("chat", event({"id": SECRET}), "no choices"),
        ("chat", event({"choices": SECRET}), "choices"),
        ("chat", event("[1]"), "object"),
        ("chat", f"{SECRET}\n\n".encode(), "not a server-sent event"),
        ("chat", f"event: x\n{SECRET}\ndata: [DONE]\n\n".encode(), "not a server-sent event"),
        ("chat", delta(content="ok") + event({"error": ERROR}), "(500)"),
        ("chat", event('{"choices":[],"x":' + "[" * 5000 + "]" * 5000 + "}"), "nested"),
        ("chat", b'data: {"choices":[],"id":"\xff"}\n\n', "not UTF-8"),
        ("responses", typed("error", message=SECRET, code="server_error"), "(server_error)"),
        ("responses", typed("response.failed", response={"error": {"code": "server_error"}}), "server_error"),
        ("responses", delta(content=SECRET), "does not have"),
        ("responses", event({"error": ERROR}), "(500)"),
        ("messages", typed("error", error={"type": "overloaded_error"}), "(overloaded_error)"),
        ("messages", typed("response.created"), "does not have"),
        ("embeddings", DONE, "stream"),
    ],
)
def test_fault_in_a_stream_is_recognised(api: str, chunk: bytes, part: str) -> None:
    reason = API_FORMATS[api].find_chunk_error(chunk)
    assert reason is not None
    assert part in reason
    assert SECRET not in reason


@pytest.mark.parametrize(
    ("api", "chunk"),
    [
        ("chat", b": hi\n\nid: 1\nretry: 5\nevent: x\ndata: [DONE]\n\n"),
        ("chat", event({"choices": [], "error": None})),
        ("chat", b'data: {"choices":\ndata: []}\n\n'),
        ("responses", typed("response.failed", response={"error": {"code": "invalid_prompt"}})),
        ("messages", typed("ping") + typed("message_stop")),
    ],
)
def test_ordinary_chunk_is_not_a_fault(api: str, chunk: bytes) -> None:
    assert API_FORMATS[api].find_chunk_error(chunk) is None


CHAT = {"choices": [{"index": 0, "message": {"role": "assistant", "content": None}, "finish_reason": "stop"}]}
GOOD: dict[str, Any] = {
    "chat": CHAT,
    "completions": {"choices": [{"text": ""}]},
    "embeddings": {"data": [{"embedding": [0.5, 1]}, {"embedding": "AAAA"}]},
    "responses": {"output": [{"type": "message"}], "status": "completed", "error": None},
    "messages": {"type": "message", "role": "assistant", "content": []},
}


@pytest.mark.parametrize("api", GOOD)
def test_whole_answer_with_unknown_fields_is_valid(api: str) -> None:
    body = json.dumps({**GOOD[api], "unknown": {"field": [1, None]}}).encode()
    assert API_FORMATS[api].find_body_error(body) is None
    assert API_FORMATS[api].find_body_error(body[:-1]) is not None


@pytest.mark.parametrize("api", GOOD)
@pytest.mark.parametrize(
    "body", [b"", b"<html>sk-canary</html>", b"null", b"[]", b'"sk-canary"', b"{}", b'{"detail":"sk-canary"}']
)
def test_invalid_answer_is_rejected(api: str, body: bytes) -> None:
    reason = API_FORMATS[api].find_body_error(body)
    assert reason is not None
    assert SECRET not in reason


@pytest.mark.parametrize(
    ("api", "value", "part"),
    [
        ("chat", {"choices": []}, "length"),
        ("chat", {"choices": None}, "array"),
        ("chat", {"choices": [{"index": 0}]}, "message"),
        ("chat", {"choices": [{"message": SECRET}]}, "object"),
        ("chat", {**CHAT, "error": ERROR}, "(500)"),
        ("chat", {"error": ERROR}, "(500)"),
        ("completions", CHAT, "text"),
        ("embeddings", {"data": []}, "no vectors"),
        ("embeddings", {"data": [{"embedding": None}]}, "vector"),
        ("responses", {"output": [], "status": "completed"}, "empty"),
        ("responses", {"output": [], "status": "failed", "error": {"code": "server_error"}}, "server_error"),
        ("messages", {"type": "error", "error": {"type": "api_error"}}, "api_error"),
        ("messages", {"type": "completion", "content": []}, "type is wrong"),
    ],
)
def test_error_with_status_200_is_rejected(api: str, value: Any, part: str) -> None:
    reason = API_FORMATS[api].find_body_error(json.dumps(value).encode())
    assert reason is not None
    assert part in reason
    assert SECRET not in reason


@pytest.mark.parametrize(
    ("asked", "right"),
    [
        (b'{"input":[]}', True),
        (b'{"input":[""]}', False),
        (b'{"input":"a"}', False),
        (b"{}", False),
        (b"", False),
    ],
)
def test_empty_embeddings_are_valid_for_empty_input(asked: bytes, right: bool) -> None:
    assert (API_FORMATS["embeddings"].find_body_error(b'{"data":[]}', asked) is None) is right


def test_queued_response_is_valid() -> None:
    assert API_FORMATS["responses"].find_body_error(b'{"output":[],"status":"queued"}') is None


def test_deep_nesting_is_rejected_without_a_crash() -> None:
    deep = b'{"choices":' + b"[" * 100_000
    for api in API_FORMATS.values():
        assert api.find_body_error(deep) is not None


CORPUS = [chunk for cases in (CARRIES, SILENT) for api in cases.values() for chunk in api.values()]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(CORPUS), max_size=6), st.data())
def test_events_are_complete_for_any_split(chunks: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(chunks) + data.draw(st.sampled_from([b"", b"data: [DO", b"\r", b": x\n"]))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    cutter, given_out = EventSplitter(), []
    for begin, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        given_out.append(cutter.feed(stream[begin:end]))
    assert b"".join(given_out) + cutter.remainder == stream
    assert cutter.remainder_size == len(cutter.remainder)
    assert EVENT_END.search(cutter.remainder.rstrip(b"\r")) is None
    want = [extract_data(one) for one in split_events(stream) if EVENT_END.search(one)]
    got = [extract_data(one) for out in given_out for one in split_events(out)]
    assert [one for one in got if one is not None] == [one for one in want if one is not None]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from(CORPUS), st.integers(0, 400), st.binary(max_size=3))
def test_mutated_events_never_raise(chunk: bytes, at: int, junk: bytes) -> None:
    mutated = chunk[:at] + junk + chunk[at + 1 :]
    for api in API_FORMATS.values():
        assert api.find_chunk_error(mutated) is None or isinstance(api.find_chunk_error(mutated), str)
        assert api.has_content(mutated) in (True, False)
        assert api.is_last(mutated) in (True, False)
        assert api.find_body_error(mutated) is not None
