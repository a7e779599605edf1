"""Stream buffer of the Responses API.

The buffer forwards text and reasoning at once. It buffers events from the first call of a client tool, or
from the terminal event, until the verdict. The events of a further answer continue the same response: its ID
stays, and items and events are numbered consecutively.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from agentguard.intercept.adapters.openai_chat import requires_json
from agentguard.intercept.conversation import Item
from agentguard.intercept.guarded_request import AnswerSource, CandidateRequest, GuardedRequest
from agentguard.intercept.stream_buffer import EventStreamBuffer
from agentguard.model_api.sse import encode_event, parse_event


def build_guard_message(text: str, *, refusal: bool) -> Item:
    """Build a message of the guard as an output item."""
    part: Item = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
    if refusal:
        part = {"type": "refusal", "refusal": text}
    id = f"msg_agentguard_{uuid.uuid4().hex[:12]}"
    return {"type": "message", "id": id, "status": "completed", "role": "assistant", "content": [part]}


def build_item_events(item: Item, index: int) -> list[dict[str, Any]]:
    """Return the events of an item; an item of an unknown type has no partial events."""
    empty_item, inner_events = dict(item), list[dict[str, Any]]()
    if item.get("type", "message") == "message":
        empty_item = {**item, "status": "in_progress", "content": []}
        for place, part in enumerate(item.get("content") or ()):
            location = {"output_index": index, "item_id": item.get("id"), "content_index": place}
            inner_events += _build_part_events(part, location)
    elif item.get("type") == "function_call":
        empty_item = {**item, "arguments": "", "status": "in_progress"}
        location = {"output_index": index, "item_id": item.get("id")}
        kind, text = "response.function_call_arguments", item.get("arguments") or ""
        inner_events = [
            {"type": f"{kind}.delta", **location, "delta": text},
            {"type": f"{kind}.done", **location, "arguments": text, "name": item.get("name")},
        ]
    return [
        {"type": "response.output_item.added", "output_index": index, "item": empty_item},
        *inner_events,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def encode_response_stream(payload: Mapping[str, Any]) -> bytes:
    """Encode a response as a stream of events."""
    events: list[dict[str, Any]] = [
        {"type": "response.created", "response": build_in_progress_response(payload)}
    ]
    for index, item in enumerate(payload["output"]):
        events += build_item_events(item, index)
    events.append({"type": "response.completed", "response": dict(payload)})
    return b"".join(
        encode_event({**e, "sequence_number": n}, include_name=True) for n, e in enumerate(events)
    )


def build_in_progress_response(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Return the response in its initial state."""
    return {**payload, "status": "in_progress", "output": []}


def _build_part_events(part: Item, location: Mapping[str, Any]) -> list[dict[str, Any]]:
    name = "refusal" if part.get("type") == "refusal" else "output_text"
    field = "refusal" if name == "refusal" else "text"
    extra_fields: dict[str, Any] = {} if name == "refusal" else {"logprobs": []}
    text = part.get(field) or ""
    return [
        {"type": "response.content_part.added", **location, "part": {**part, field: ""}},
        {"type": f"response.{name}.delta", **location, "delta": text, **extra_fields},
        {"type": f"response.{name}.done", **location, field: text, **extra_fields},
        {"type": "response.content_part.done", **location, "part": part},
    ]


_START_EVENT_TYPES = ("response.created", "response.queued", "response.in_progress")
_TERMINAL_EVENT_TYPES = ("response.completed", "response.incomplete", "response.failed")
_UNBUFFERED_ITEM_TYPES = ("message", "reasoning")


class ResponsesStreamBuffer(EventStreamBuffer):
    """Stream buffer for events of a response."""

    def __init__(
        self, request: GuardedRequest, candidate_request: CandidateRequest, *, buffer_all: bool = False
    ) -> None:
        self._visible_items: list[Item] = []
        self._earlier_items: list[Item] = []
        self._item_count = self._item_offset = self._sequence_number = 0
        super().__init__(request, candidate_request, buffer_all=buffer_all)

    def build_error_event(self, message: str) -> bytes:
        """Build the event that reports that a retry of the model call failed."""
        return self._encode_event({"type": "error", "code": "ask_again", "message": message, "param": None})

    def _reset(self) -> None:
        super()._reset()
        self._response: dict[str, Any] | None = None

    def _handle_event(self, event: bytes, value: dict[str, Any]) -> None:
        if value.get("type") in _TERMINAL_EVENT_TYPES:
            # The event contains the whole answer, which may be sent again.
            value = parse_event(event) or value
        self._update_response(value)

    def _build_payload(self) -> dict[str, Any]:
        if self._response is None:
            raise EOFError("the stream ended before its terminal event")
        return self._response

    def _build_visible_answer(
        self, answer: list[Item], source: AnswerSource
    ) -> tuple[list[Item] | None, str]:
        before = self._visible_items if source == "other" else self._earlier_items
        alias = (
            str(self._answer_head["id"])
            if self._answer_head and (self._follows_rejected or source == "other")
            else ""
        )
        return [*before, *answer] if before else None, alias

    def _encode_replacement(self, payload: dict[str, Any], source: AnswerSource) -> bytes:
        visible_count = len(self._visible_items) - len(self._earlier_items)
        self._begin_retry()
        if source != "other":  # the client has received these items
            payload = {**payload, "output": payload["output"][visible_count:]}
        return self.feed(self._request.adapter.encode_stream(payload, include_usage=True)) + self.flush()

    def _begin_retry(self) -> bytes:
        self._follows_rejected, self._earlier_items, self._item_offset = (
            True,
            list(self._visible_items),
            self._item_count,
        )
        self._reset()
        return b""

    def _update_response(self, value: Mapping[str, Any]) -> None:
        kind, item = value.get("type"), value.get("item")
        self._has_error_event = self._has_error_event or kind == "error"
        if kind in _TERMINAL_EVENT_TYPES:
            self._is_buffering = True
            response, status = value.get("response") or {}, str(kind).partition(".")[2]
            if response.get("status") == "incomplete":  # vLLM 0.32 reports it in `response.completed`
                status = "incomplete"
            self._response = {**response, "status": status}
        elif kind == "response.output_item.added" and isinstance(item, dict):
            self._is_buffering = self._is_buffering or item.get("type") not in _UNBUFFERED_ITEM_TYPES

    def _rewrite_event(self, event: bytes, value: dict[str, Any]) -> bytes:
        kind = str(value.get("type", ""))
        if kind in _START_EVENT_TYPES:
            if self._follows_rejected and self._answer_head:
                return b""
            self._answer_head = self._answer_head or dict(value.get("response") or {})
        if kind == "response.output_item.added":
            self._item_count += 1
        elif kind == "response.output_item.done":
            self._visible_items.append((parse_event(event) or value).get("item") or {})
        if not self._follows_rejected:
            self._sequence_number = max(self._sequence_number, int(value.get("sequence_number") or 0) + 1)
            return event
        value = parse_event(event) or value
        if isinstance(value.get("output_index"), int):
            value["output_index"] += self._item_offset
        if kind in _TERMINAL_EVENT_TYPES and self._answer_head:
            response = value.get("response") or {}
            output = [*self._earlier_items, *(response.get("output") or ())]
            value["response"] = {**response, "id": self._answer_head.get("id"), "output": output}
        return self._encode_event(value)

    def _encode_event(self, value: dict[str, Any]) -> bytes:
        value["sequence_number"] = self._sequence_number
        self._sequence_number += 1
        return encode_event(value, include_name=True)

    def _encode_final_answer(self) -> bytes:
        """Encode the guard's final answer as another item of the response, and the terminal event."""
        body, text = self._request.request_body, self._request.final_text or ""
        answer = self._request.adapter.build_final_answer(body, self._response, text)
        data, visible_items = b"", list(self._visible_items)
        if not self._answer_head:
            data = self._encode_event(
                {"type": "response.created", "response": build_in_progress_response(answer)}
            )
        else:
            answer["id"] = self._answer_head.get("id")
        item = build_guard_message(text, refusal=requires_json(body))
        answer["output"] = [*visible_items, item]
        data += b"".join(self._encode_event(event) for event in build_item_events(item, self._item_count))
        self._request.settle(answer["output"], response_id=str(answer["id"]))
        return data + self._encode_event({"type": "response.completed", "response": answer})
