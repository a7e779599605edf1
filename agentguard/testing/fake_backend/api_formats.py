"""Encoding of a response in the format of its API: one JSON object or a stream of server-sent events."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from agentguard.testing.fake_backend.expected_response import ApiName, FakeResponse

CREATED_AT = 1_767_225_600
"""Creation time of every response, in seconds since 1970; equal requests get byte-identical responses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamEvents:
    """Events of a stream, divided where faults begin.

    Attributes:
        before: events that carry no token.
        tokens: one event per token.
        after: events at the end of the response, except the last one.
        last: final event of the protocol; empty if the protocol has none.
    """

    before: tuple[bytes, ...]
    tokens: tuple[bytes, ...]
    after: tuple[bytes, ...]
    last: bytes


def format_body(api: ApiName, reply: FakeResponse, request: Mapping[str, Any]) -> bytes:
    """Return the response as one JSON object."""
    return json.dumps(_BODY_BUILDERS.get(api, _build_other)(reply, request)).encode()


def format_stream(api: ApiName, reply: FakeResponse, request: Mapping[str, Any]) -> StreamEvents:
    """Return the response as events."""
    build = {"responses": _build_responses_events, "messages": _build_messages_events}.get(api)
    return build(reply) if build else _build_chunk_events(api, reply, request)


def format_error_body(
    api: ApiName, status: int, message: str = "the backend was configured to fail"
) -> bytes:
    """Return the body of an error status in the format of the API."""
    if api == "messages":
        return json.dumps({"type": "error", "error": {"type": "api_error", "message": message}}).encode()
    return json.dumps({"error": {"message": message, "type": "server_error", "code": status}}).encode()


def format_error_event(api: ApiName, message: str = "the backend was configured to fail") -> bytes:
    """Return an error event of a stream."""
    if api == "messages":
        return format_event({"type": "error", "error": {"type": "overloaded_error", "message": message}})
    if api == "responses":
        return format_event(
            {"type": "error", "code": "server_error", "message": message, "sequence_number": 99}
        )
    return format_event({"error": {"message": message, "type": "server_error", "code": 500}})


def format_heartbeat_event(api: ApiName, reply: FakeResponse) -> bytes:
    """Return an event of the API without content."""
    if api == "messages":
        return format_event({"type": "ping"})
    if api == "responses":
        return format_event(
            {"type": "response.in_progress", "sequence_number": 1, "response": _build_response(reply, [])}
        )
    return format_event(_build_chunk(api, reply, {"delta": {}} if api == "chat" else {"text": ""}))


def format_empty_body(api: ApiName, reply: FakeResponse, request: Mapping[str, Any]) -> bytes:
    """Return a complete response of the API without content."""
    value: dict[str, Any] = json.loads(format_body(api, reply, request))
    value |= {key: [] for key in ("choices", "output", "content", "data") if key in value}
    return json.dumps(value).encode()


def format_empty_stream(api: ApiName, reply: FakeResponse) -> list[bytes]:
    """Return a complete stream of the API without content."""
    events = format_stream(api, reply, {})
    if api == "responses":
        response = _build_response(reply, [], status="completed")
        return [
            events.before[0],
            format_event({"type": "response.completed", "sequence_number": 1, "response": response}),
        ]
    if api == "messages":
        return [events.before[0], events.after[-1], events.last]
    return [format_event(_build_envelope(api, reply, chunk=True) | {"choices": []}), events.last]


def format_event(value: Mapping[str, Any]) -> bytes:
    """Return an event for an object, with the object's type as event name."""
    name = f"event: {value['type']}\n" if "type" in value else ""
    return f"{name}data: {json.dumps(value)}\n\n".encode()


def _build_chat(reply: FakeResponse, _request: Mapping[str, Any]) -> dict[str, Any]:
    message: dict[str, Any] = {"role": "assistant", "content": reply.text or None}
    if reply.tool:
        function = {"name": reply.tool, "arguments": reply.arguments}
        message["tool_calls"] = [{"id": f"call_{reply.id}", "type": "function", "function": function}]
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": _get_finish_reason(reply)}
    return _build_envelope("chat", reply) | {"choices": [choice], "usage": _build_usage(reply)}


def _build_completion(reply: FakeResponse, _request: Mapping[str, Any]) -> dict[str, Any]:
    choice = {"index": 0, "text": reply.text, "logprobs": None, "finish_reason": "stop"}
    return _build_envelope("completions", reply) | {"choices": [choice], "usage": _build_usage(reply)}


def _build_responses(reply: FakeResponse, _request: Mapping[str, Any]) -> dict[str, Any]:
    return _build_response(reply, [_build_output_item(reply)], status="completed")


def _build_messages(reply: FakeResponse, _request: Mapping[str, Any]) -> dict[str, Any]:
    block: dict[str, Any] = {"type": "text", "text": reply.text}
    if reply.tool:
        block = {"type": "tool_use", "id": f"toolu_{reply.id}", "name": reply.tool}
        block["input"] = json.loads(reply.arguments)
    return _build_message(reply) | {
        "content": [block],
        "stop_reason": "tool_use" if reply.tool else "end_turn",
    }


def _build_embeddings(reply: FakeResponse, request: Mapping[str, Any]) -> dict[str, Any]:
    texts = request.get("input")
    count = len(texts) if isinstance(texts, list) else 1
    numbers = [round(int(digit, 16) / 15 - 0.5, 4) for digit in reply.id[:8]]
    data = [{"object": "embedding", "index": i, "embedding": numbers} for i in range(count)]
    usage = {"prompt_tokens": 8, "total_tokens": 8}
    return {"object": "list", "model": reply.model, "data": data, "usage": usage}


def _build_models(_reply: FakeResponse, _request: Mapping[str, Any]) -> dict[str, Any]:
    one = {"id": "a-model", "object": "model", "created": CREATED_AT, "owned_by": "agentguard"}
    return {"object": "list", "data": [one]}


def _build_other(reply: FakeResponse, request: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": reply.id, "text": reply.text, "asked": dict(request)}


_BODY_BUILDERS: dict[str, Callable[[FakeResponse, Mapping[str, Any]], dict[str, Any]]] = {
    "chat": _build_chat,
    "completions": _build_completion,
    "responses": _build_responses,
    "messages": _build_messages,
    "embeddings": _build_embeddings,
    "models": _build_models,
}


def _build_chunk_events(api: ApiName, reply: FakeResponse, request: Mapping[str, Any]) -> StreamEvents:
    """Return the events of chat completions and completions: uniform chunks and ``[DONE]``."""
    if api != "chat":
        before: tuple[bytes, ...] = ()
        tokens: list[dict[str, Any]] = [{"text": token} for token in reply.tokens()]
        end: dict[str, Any] = {"text": ""}
    else:
        before = (format_event(_build_chunk(api, reply, {"delta": {"role": "assistant", "content": ""}})),)
        tokens = [{"delta": delta} for delta in _build_deltas(reply)]
        end = {"delta": {}}
    after = [format_event(_build_chunk(api, reply, end, finish=_get_finish_reason(reply)))]
    options = request.get("stream_options")
    if isinstance(options, dict) and options.get("include_usage"):
        after.append(
            format_event(
                _build_envelope(api, reply, chunk=True) | {"choices": [], "usage": _build_usage(reply)}
            )
        )
    return StreamEvents(
        before=before,
        tokens=tuple(format_event(_build_chunk(api, reply, token)) for token in tokens),
        after=tuple(after),
        last=b"data: [DONE]\n\n",
    )


def _build_deltas(reply: FakeResponse) -> list[dict[str, Any]]:
    if not reply.tool:
        return [{"content": token} for token in reply.tokens()]
    first: dict[str, Any] = {"index": 0, "id": f"call_{reply.id}", "type": "function"}
    first["function"] = {"name": reply.tool, "arguments": ""}
    rest = [{"index": 0, "function": {"arguments": token}} for token in reply.tokens()]
    return [{"tool_calls": [call]} for call in (first, *rest)]


def _build_responses_events(reply: FakeResponse) -> StreamEvents:
    kind = "function_call_arguments" if reply.tool else "output_text"
    event_position = {"item_id": _build_output_item(reply)["id"], "output_index": 0}
    if not reply.tool:
        event_position |= {"content_index": 0}
    item = _build_output_item(reply)
    initial_item: dict[str, Any] = item | {"status": "in_progress"}
    initial_item |= {"arguments": ""} if reply.tool else {"content": list[Any]()}
    values: list[dict[str, Any]] = [
        {"type": "response.created", "response": _build_response(reply, [])},
        {"type": "response.in_progress", "response": _build_response(reply, [])},
        {"type": "response.output_item.added", "output_index": 0, "item": initial_item},
    ]
    ends: list[dict[str, Any]] = [
        {"type": f"response.{kind}.done", **event_position, **_build_done_item(reply)}
    ]
    if not reply.tool:
        part = item["content"][0]
        values.append({"type": "response.content_part.added", **event_position, "part": part | {"text": ""}})
        ends.append({"type": "response.content_part.done", **event_position, "part": part})
    ends.append({"type": "response.output_item.done", "output_index": 0, "item": item})
    last = {"type": "response.completed", "response": _build_response(reply, [item], status="completed")}
    tokens: list[dict[str, Any]] = [
        {"type": f"response.{kind}.delta", **event_position, "delta": token} for token in reply.tokens()
    ]
    encoded_events = [
        format_event(v | {"sequence_number": n}) for n, v in enumerate((*values, *tokens, *ends, last))
    ]
    first, end = len(values), len(values) + len(tokens)
    return StreamEvents(
        before=tuple(encoded_events[:first]),
        tokens=tuple(encoded_events[first:end]),
        after=tuple(encoded_events[end:-1]),
        last=encoded_events[-1],
    )


def _build_messages_events(reply: FakeResponse) -> StreamEvents:
    start: dict[str, Any] = {"type": "text", "text": ""}
    if reply.tool:
        start = {"type": "tool_use", "id": f"toolu_{reply.id}", "name": reply.tool, "input": {}}
    kind, key = ("input_json_delta", "partial_json") if reply.tool else ("text_delta", "text")
    stop = {"stop_reason": "tool_use" if reply.tool else "end_turn", "stop_sequence": None}
    return StreamEvents(
        before=(
            format_event({"type": "message_start", "message": _build_message(reply)}),
            format_event({"type": "content_block_start", "index": 0, "content_block": start}),
            format_event({"type": "ping"}),
        ),
        tokens=tuple(
            format_event({"type": "content_block_delta", "index": 0, "delta": {"type": kind, key: token}})
            for token in reply.tokens()
        ),
        after=(
            format_event({"type": "content_block_stop", "index": 0}),
            format_event({"type": "message_delta", "delta": stop, "usage": {"output_tokens": 8}}),
        ),
        last=format_event({"type": "message_stop"}),
    )


def _build_envelope(api: ApiName, reply: FakeResponse, *, chunk: bool = False) -> dict[str, Any]:
    kind = "text_completion" if api != "chat" else "chat.completion" + (".chunk" if chunk else "")
    before = "chatcmpl" if api == "chat" else "cmpl"
    return {"id": f"{before}-{reply.id}", "object": kind, "created": CREATED_AT, "model": reply.model}


def _build_chunk(
    api: ApiName, reply: FakeResponse, part: Mapping[str, Any], finish: str | None = None
) -> dict[str, Any]:
    choice = {"index": 0, **part, "logprobs": None, "finish_reason": finish}
    return _build_envelope(api, reply, chunk=True) | {"choices": [choice]}


def _get_finish_reason(reply: FakeResponse) -> str:
    return "tool_calls" if reply.tool else "stop"


def _build_usage(reply: FakeResponse) -> dict[str, Any]:
    tokens = len(reply.tokens())
    return {"prompt_tokens": 8, "completion_tokens": tokens, "total_tokens": 8 + tokens}


def _build_output_item(reply: FakeResponse) -> dict[str, Any]:
    if reply.tool:
        header = {"type": "function_call", "id": f"fc_{reply.id}", "call_id": f"call_{reply.id}"}
        return {**header, "name": reply.tool, "arguments": reply.arguments, "status": "completed"}
    part = {"type": "output_text", "text": reply.text, "annotations": []}
    header = {"type": "message", "id": f"msg_{reply.id}", "role": "assistant", "status": "completed"}
    return {**header, "content": [part]}


def _build_done_item(reply: FakeResponse) -> dict[str, Any]:
    return {"arguments": reply.arguments} if reply.tool else {"text": reply.text}


def _build_response(
    reply: FakeResponse, output: list[dict[str, Any]], *, status: str = "in_progress"
) -> dict[str, Any]:
    return {
        "id": f"resp_{reply.id}",
        "object": "response",
        "created_at": CREATED_AT,
        "status": status,
        "model": reply.model,
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
    }


def _build_message(reply: FakeResponse) -> dict[str, Any]:
    return {
        "id": f"msg_{reply.id}",
        "type": "message",
        "role": "assistant",
        "model": reply.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": {"input_tokens": 8, "output_tokens": 1},
    }
