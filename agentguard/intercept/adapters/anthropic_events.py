"""Whole messages of the Messages API as the events that build them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentguard.model_api.sse import event_bytes

Event = dict[str, Any]


def message_stream(payload: Mapping[str, Any]) -> bytes:
    """A whole message as a stream of events."""
    events = [started(payload)]
    for index, block in enumerate(payload["content"]):
        events += block_events(block, index)
    events += ended(payload)
    return b"".join(event_bytes(event, named=True) for event in events)


def started(payload: Mapping[str, Any]) -> Event:
    """The event that begins a message."""
    message = {**payload, "content": [], "stop_reason": None, "stop_sequence": None}
    return {"type": "message_start", "message": message}


def block_events(block: Mapping[str, Any], index: int) -> list[Event]:
    """A whole block as the events that build it; one of an unknown kind begins as a whole."""
    empty, deltas = _opened(block)
    return [
        {"type": "content_block_start", "index": index, "content_block": empty},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def ended(payload: Mapping[str, Any]) -> list[Event]:
    """The events that end a message."""
    used = (payload.get("usage") or {}).get("output_tokens") or 0
    delta = {"stop_reason": payload.get("stop_reason"), "stop_sequence": payload.get("stop_sequence")}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": used}},
        {"type": "message_stop"},
    ]


def added(block: Event, delta: Mapping[str, Any]) -> None:
    """Put a delta into the block that it belongs to; the text of an input is gathered under ``partial``."""
    match delta.get("type"):
        case "text_delta":
            block["text"] = block.get("text", "") + str(delta.get("text") or "")
        case "thinking_delta":
            block["thinking"] = block.get("thinking", "") + str(delta.get("thinking") or "")
        case "signature_delta":
            block["signature"] = delta.get("signature")
        case "input_json_delta":
            block["partial"] = block.get("partial", "") + str(delta.get("partial_json") or "")
        case "citations_delta":
            block["citations"] = [*(block.get("citations") or ()), delta.get("citation")]


def whole(block: Event) -> Event:
    """A block whose deltas are all there; an input that is no JSON stays the text that it is."""
    text = block.pop("partial", "")
    if text:
        try:
            block["input"] = json.loads(text)
        except ValueError:
            block["input"] = text
    return block


def _opened(block: Mapping[str, Any]) -> tuple[Event, list[Event]]:
    """A block as it is when it begins, and the deltas that it grows by."""
    match block.get("type"):
        case "text":
            made: list[Event] = [{"type": "text_delta", "text": block.get("text") or ""}]
            made += ({"type": "citations_delta", "citation": one} for one in block.get("citations") or ())
            return {**block, "text": "", **({"citations": []} if block.get("citations") else {})}, made
        case "thinking":
            return {**block, "thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": block.get("thinking") or ""},
                {"type": "signature_delta", "signature": block.get("signature") or ""},
            ]
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            text = json.dumps(block.get("input") or {}, separators=(",", ":"))
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
    return dict(block), []
