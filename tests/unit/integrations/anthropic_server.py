"""Answers of Anthropic's Messages API, whole and as the events that its documentation shows."""

from __future__ import annotations

import json
from typing import Any

Body = dict[str, Any]


def message(*content: Body, id: str = "msg_1", stop: str | None = None) -> Body:
    """Return a whole message."""
    calls = any(block["type"] == "tool_use" for block in content)
    return {
        "id": id,
        "type": "message",
        "role": "assistant",
        "model": "claude",
        "content": list(content),
        "stop_reason": stop or ("tool_use" if calls else "end_turn"),
        "stop_sequence": None,
        "usage": {"input_tokens": 9, "output_tokens": 3},
        "x_unknown": {"kept": True},
    }


def says(text: str) -> Body:
    return {"type": "text", "text": text}


def thinks(text: str) -> Body:
    return {"type": "thinking", "thinking": text, "signature": "c2lnbmVk"}


def uses(name: str, id: str, **arguments: Any) -> Body:
    return {"type": "tool_use", "id": id, "name": name, "input": arguments}


def events(made: Body) -> list[bytes]:
    """Return a message as a stream, texts and inputs in two pieces, with a ping."""
    begun = {**made, "content": [], "stop_reason": None, "usage": {"input_tokens": 9, "output_tokens": 1}}
    out = [{"type": "message_start", "message": begun}]
    for index, block in enumerate(made["content"]):
        match block["type"]:
            case "text":
                empty, name, text = {**block, "text": ""}, "text", block["text"]
            case "thinking":
                empty, name, text = {**block, "thinking": "", "signature": ""}, "thinking", block["thinking"]
            case _:
                empty, name, text = {**block, "input": {}}, "partial_json", json.dumps(block["input"])
        kind = "input_json_delta" if name == "partial_json" else f"{name}_delta"
        out.append({"type": "content_block_start", "index": index, "content_block": empty})
        out.append({"type": "ping"})
        for part in (text[: len(text) // 2], text[len(text) // 2 :]):
            delta = {"type": kind, name: part}
            out.append({"type": "content_block_delta", "index": index, "delta": delta})
        if block["type"] == "thinking":
            delta = {"type": "signature_delta", "signature": block["signature"]}
            out.append({"type": "content_block_delta", "index": index, "delta": delta})
        out.append({"type": "content_block_stop", "index": index})
    delta = {"stop_reason": made["stop_reason"], "stop_sequence": None}
    out.append({"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}})
    out.append({"type": "message_stop"})
    return [f"event: {one['type']}\ndata: {json.dumps(one)}\n\n".encode() for one in out]
