"""Whole items of a response as the events that build them, and items of the guard's own."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from agentguard.intercept.conversation import Item
from agentguard.model_api.sse import event_bytes


def guard_item(text: str, *, refusal: bool) -> Item:
    """A message of the guard as an output item."""
    part: Item = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    if refusal:
        part = {"type": "refusal", "refusal": text}
    id = f"msg_agentguard_{uuid.uuid4().hex[:12]}"
    return {"type": "message", "id": id, "status": "completed", "role": "assistant", "content": [part]}


def item_events(item: Item, index: int) -> list[dict[str, Any]]:
    """A whole item as the events that build it; one of an unknown kind begins and ends as a whole."""
    empty, between = dict(item), list[dict[str, Any]]()
    if item.get("type", "message") == "message":
        empty = {**item, "status": "in_progress", "content": []}
        for place, part in enumerate(item.get("content") or ()):
            at = {"output_index": index, "item_id": item.get("id"), "content_index": place}
            between += _part_events(part, at)
    elif item.get("type") == "function_call":
        empty = {**item, "arguments": "", "status": "in_progress"}
        at = {"output_index": index, "item_id": item.get("id")}
        kind, text = "response.function_call_arguments", item.get("arguments") or ""
        between = [
            {"type": f"{kind}.delta", **at, "delta": text},
            {"type": f"{kind}.done", **at, "arguments": text, "name": item.get("name")},
        ]
    return [
        {"type": "response.output_item.added", "output_index": index, "item": empty},
        *between,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def response_stream(payload: Mapping[str, Any]) -> bytes:
    """A whole response as a stream of events."""
    events: list[dict[str, Any]] = [{"type": "response.created", "response": begun(payload)}]
    for index, item in enumerate(payload["output"]):
        events += item_events(item, index)
    events.append({"type": "response.completed", "response": dict(payload)})
    return b"".join(event_bytes({**e, "sequence_number": n}, named=True) for n, e in enumerate(events))


def begun(payload: Mapping[str, Any]) -> dict[str, Any]:
    """A response as it is when it begins."""
    return {**payload, "status": "in_progress", "output": []}


def _part_events(part: Item, at: Mapping[str, Any]) -> list[dict[str, Any]]:
    name = "refusal" if part.get("type") == "refusal" else "output_text"
    field = "refusal" if name == "refusal" else "text"
    more: dict[str, Any] = {} if name == "refusal" else {"logprobs": []}
    text = part.get(field) or ""
    return [
        {"type": "response.content_part.added", **at, "part": {**part, field: ""}},
        {"type": f"response.{name}.delta", **at, "delta": text, **more},
        {"type": f"response.{name}.done", **at, field: text, **more},
        {"type": "response.content_part.done", **at, "part": part},
    ]
