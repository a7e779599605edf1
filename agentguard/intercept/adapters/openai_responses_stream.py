"""The hold on a stream of Responses events.

Text and reasoning flow on at once. From the first item that the client has to carry out, or the terminal
event, on, events are held until the verdict. The events of an answer that is asked for again follow as those
of the same response: its id stays, items and events are numbered on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentguard.intercept.adapters.openai_chat import wants_json
from agentguard.intercept.adapters.openai_responses_events import begun, guard_item, item_events
from agentguard.intercept.conversation import Item
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.stream_buffer import HeldStream
from agentguard.intercept.types import CandidateRequest, How
from agentguard.model_api.sse import event_bytes, parsed

_BEGIN = ("response.created", "response.queued", "response.in_progress")
_TERMINAL = ("response.completed", "response.incomplete", "response.failed")
_FLOW = ("message", "reasoning")


class ResponsesHold(HeldStream):
    """The hold on events of a response."""

    def __init__(self, exchange: GuardedRequest, wire: CandidateRequest, *, everything: bool = False) -> None:
        self._items: list[Item] = []
        self._before: list[Item] = []
        self._opened = self._offset = self._number = 0
        super().__init__(exchange, wire, everything=everything)

    def failed(self, message: str) -> bytes:
        """As `Hold.failed`."""
        return self._made({"type": "error", "code": "ask_again", "message": message, "param": None})

    def _next(self) -> None:
        super()._next()
        self._response: dict[str, Any] | None = None

    def _read(self, event: bytes, value: dict[str, Any]) -> None:
        if value.get("type") in _TERMINAL:
            value = parsed(event) or value  # the whole answer is in it, and may be sent again
        self._take(value)

    def _payload(self) -> dict[str, Any]:
        if self._response is None:
            raise EOFError("the stream ended before its terminal event")
        return self._response

    def _seen(self, answer: list[Item], how: How) -> tuple[list[Item] | None, str]:
        before = self._items if how == "other" else self._before
        alias = str(self._head["id"]) if self._head and (self._later or how == "other") else ""
        return [*before, *answer] if before else None, alias

    def _instead(self, payload: dict[str, Any], how: How) -> bytes:
        shown = len(self._items) - len(self._before)
        self._once_more()
        if how != "other":  # these items of it have been shown
            payload = {**payload, "output": payload["output"][shown:]}
        return self.feed(self._exchange.dialect.stream(payload, usage=True)) + self.release()

    def _once_more(self) -> bytes:
        self._later, self._before, self._offset = True, list(self._items), self._opened
        self._next()
        return b""

    def _take(self, value: Mapping[str, Any]) -> None:
        kind, item = value.get("type"), value.get("item")
        self._error = self._error or kind == "error"
        if kind in _TERMINAL:
            self._holding = True
            response, status = value.get("response") or {}, str(kind).partition(".")[2]
            if response.get("status") == "incomplete":  # vLLM 0.32 says so in a `response.completed`
                status = "incomplete"
            self._response = {**response, "status": status}
        elif kind == "response.output_item.added" and isinstance(item, dict):
            self._holding = self._holding or item.get("type") not in _FLOW

    def _shown(self, event: bytes, value: dict[str, Any]) -> bytes:
        kind = str(value.get("type", ""))
        if kind in _BEGIN:
            if self._later and self._head:
                return b""
            self._head = self._head or dict(value.get("response") or {})
        if kind == "response.output_item.added":
            self._opened += 1
        elif kind == "response.output_item.done":
            self._items.append((parsed(event) or value).get("item") or {})
        if not self._later:
            self._number = max(self._number, int(value.get("sequence_number") or 0) + 1)
            return event
        value = parsed(event) or value
        if isinstance(value.get("output_index"), int):
            value["output_index"] += self._offset
        if kind in _TERMINAL and self._head:
            given = value.get("response") or {}
            output = [*self._before, *(given.get("output") or ())]
            value["response"] = {**given, "id": self._head.get("id"), "output": output}
        return self._made(value)

    def _made(self, value: dict[str, Any]) -> bytes:
        value["sequence_number"] = self._number
        self._number += 1
        return event_bytes(value, named=True)

    def _final(self) -> bytes:
        """The guard's word as one more item of the response, which ends with it."""
        body, text = self._exchange.request, self._exchange.final or ""
        made = self._exchange.dialect.final(body, self._response, text)
        data, seen = b"", list(self._items)
        if not self._head:
            data = self._made({"type": "response.created", "response": begun(made)})
        else:
            made["id"] = self._head.get("id")
        item = guard_item(text, refusal=wants_json(body))
        made["output"] = [*seen, item]
        data += b"".join(self._made(event) for event in item_events(item, self._opened))
        self._exchange.settle(made["output"], id=str(made["id"]))
        return data + self._made({"type": "response.completed", "response": made})
