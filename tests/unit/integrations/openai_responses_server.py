"""Scripted Responses API: stores responses, and rejects the same histories as the real API."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

from tests.unit.integrations.openai_server import Body, Raw

Item = dict[str, Any]


def said(text: str, id: str = "msg") -> Item:
    """Return a message of the model."""
    part = {"type": "output_text", "text": text, "annotations": []}
    return {"type": "message", "id": id, "status": "completed", "role": "assistant", "content": [part]}


def called(name: str, id: str, **arguments: Any) -> Item:
    """Return a call of the model."""
    text = json.dumps(arguments)
    return {"type": "function_call", "id": f"fc_{id}", "call_id": id, "name": name, "arguments": text}


def response(id: str, output: list[Item], *, status: str = "completed") -> Body:
    """Return a whole response."""
    return {
        "id": id,
        "object": "response",
        "created_at": 1,
        "status": status,
        "model": "scripted",
        "output": output,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "usage": {"input_tokens": 9, "output_tokens": 3, "total_tokens": 12},
        "x_unknown": 1,
    }


class Model:
    """Returns the outputs in order; `seen` is the full input of each request, stored responses included."""

    def __init__(self, outputs: Iterable[list[Item]], *, stream: bool = False) -> None:
        self._outputs, self._stream = iter(outputs), stream
        self.kept: dict[str, list[Item]] = {}
        self.seen: list[list[Item]] = []

    def __call__(self, body: Body) -> Any:
        before = body.get("previous_response_id")
        if before is not None and before not in self.kept:
            return Raw(status=404, content=b'{"error":{"message":"no such response"}}')
        given = body["input"]
        items = [{"role": "user", "content": given}] if isinstance(given, str) else given
        history = [*self.kept.get(before or "", []), *items]
        self.seen.append(history)
        if not whole(history):
            return Raw(status=400, content=b'{"error":{"message":"a call without its output"}}')
        id = f"resp_{len(self.seen)}"
        output = next(self._outputs)
        self.kept[id] = [*history, *output]
        made = response(id, output)
        return events(made) if self._stream else made


def whole(items: list[Item]) -> bool:
    """Check that every call has its output before the next message, and every output its call."""
    waiting: set[str] = set()
    for item in items:
        if item.get("type") == "function_call":
            waiting.add(item["call_id"])
        elif item.get("type") == "function_call_output":
            if item["call_id"] not in waiting:
                return False
            waiting.discard(item["call_id"])
        elif waiting:
            return False
    return not waiting


def events(made: Body) -> list[bytes]:
    """Return a response as the events of a stream."""
    begun = {**made, "status": "in_progress", "output": []}
    given: list[Body] = [
        {"type": "response.created", "response": begun},
        {"type": "response.in_progress", "response": begun},
    ]
    for index, item in enumerate(made["output"]):
        given += _item_events(index, item)
    given.append({"type": f"response.{made['status']}", "response": made})
    return [
        f"event: {one['type']}\ndata: {json.dumps({**one, 'sequence_number': n})}\n\n".encode()
        for n, one in enumerate(given)
    ]


def _item_events(index: int, item: Item) -> list[Body]:
    at = {"output_index": index, "item_id": item["id"]}
    empty = {**item, "arguments": ""} if item["type"] == "function_call" else {**item, "content": []}
    made: list[Body] = [
        {
            "type": "response.output_item.added",
            "output_index": index,
            "item": {**empty, "status": "in_progress"},
        }
    ]
    if item["type"] == "function_call":
        text = item["arguments"]
        kind = "response.function_call_arguments.delta"
        made += [{"type": kind, **at, "delta": half} for half in (text[:4], text[4:])]
        made.append(
            {"type": "response.function_call_arguments.done", **at, "name": item["name"], "arguments": text}
        )
    else:
        made += _text_events({**at, "content_index": 0}, item["content"][0])
    return [*made, {"type": "response.output_item.done", "output_index": index, "item": item}]


def _text_events(at: Body, part: Item) -> list[Body]:
    text = part["text"]
    words = [
        {"type": "response.output_text.delta", **at, "delta": w, "logprobs": []} for w in text.split(" ")
    ]
    return [
        {"type": "response.content_part.added", **at, "part": {**part, "text": ""}},
        *words,
        {"type": "response.output_text.done", **at, "text": text, "logprobs": []},
        {"type": "response.content_part.done", **at, "part": part},
    ]
