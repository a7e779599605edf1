"""The hold on a stream of the Messages API.

Text and thinking flow on at once. From the first block that the client has to carry out, or the stop reason,
on, events are held until the verdict. The blocks of an answer that is asked for again follow as those of the
same message: it began once, its id stays, and blocks are numbered on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentguard.intercept.adapters.anthropic_events import added, block_events, ended, started, whole
from agentguard.intercept.conversation import Item
from agentguard.intercept.guarded_request import GuardedRequest
from agentguard.intercept.stream_buffer import HeldStream
from agentguard.intercept.types import CandidateRequest, How
from agentguard.model_api.sse import event_bytes, parsed

Event = dict[str, Any]


class MessagesHold(HeldStream):
    """The hold on events of a message."""

    def __init__(self, exchange: GuardedRequest, wire: CandidateRequest, *, everything: bool = False) -> None:
        self._shown_blocks: list[Event] = []
        self._before: list[Event] = []
        super().__init__(exchange, wire, everything=everything)

    def failed(self, message: str) -> bytes:
        """As `Hold.failed`."""
        said = {"type": "api_error", "message": message}
        return event_bytes({"type": "error", "error": said}, named=True)

    def _next(self) -> None:
        super()._next()
        self._message: Event = {}
        self._blocks: dict[int, Event] = {}
        self._done = False

    def _read(self, event: bytes, value: Event) -> None:
        if value.get("type") == "content_block_start":
            value = parsed(event) or value  # the arguments of a call may be in it
        self._take(value)

    def _payload(self) -> dict[str, Any]:
        if not self._done:
            raise EOFError("the stream ended before message_stop")
        content = [whole(self._blocks[index]) for index in sorted(self._blocks)]
        return {**self._message, "content": content}

    def _seen(self, answer: list[Item], how: How) -> tuple[list[Item] | None, str]:
        before = self._shown_blocks if how == "other" else self._before
        if not before or not answer:
            return None, ""
        return [{**answer[0], "content": [*before, *answer[0]["content"]]}], ""

    def _instead(self, payload: dict[str, Any], how: How) -> bytes:
        shown = len(self._shown_blocks) - len(self._before)
        self._once_more()
        if how != "other":  # these blocks of it have been shown
            payload = {**payload, "content": payload["content"][shown:]}
        return self.feed(self._exchange.dialect.stream(payload, usage=True)) + self.release()

    def _once_more(self) -> bytes:
        self._later, self._before = True, list(self._shown_blocks)
        self._next()
        return b""

    def _take(self, value: Mapping[str, Any]) -> None:
        match value.get("type"):
            case "message_start":
                self._message = dict(value["message"])
            case "content_block_start":
                block = dict(value["content_block"])
                self._blocks[value["index"]] = block
                self._holding = self._holding or block.get("type") == "tool_use"
            case "content_block_delta":
                added(self._blocks[value["index"]], value["delta"])
            case "message_delta":
                self._holding = True
                self._message |= value.get("delta") or {}
                used = self._message.get("usage") or {}
                self._message["usage"] = {**used, **(value.get("usage") or {})}
            case "message_stop":
                self._done = True
            case "error":
                self._error = True

    def _shown(self, event: bytes, value: Event) -> bytes:
        kind = value.get("type")
        if kind == "message_start":
            if self._later and self._head:
                return b""
            self._head = self._head or dict(value["message"])
        if kind == "content_block_stop":
            self._shown_blocks.append(whole(dict(self._blocks[value["index"]])))
        if not self._later or not isinstance(value.get("index"), int):
            return event
        value = parsed(event) or value
        return event_bytes({**value, "index": value["index"] + len(self._before)}, named=True)

    def _final(self) -> bytes:
        """The guard's word as one more block of the message, which ends with it."""
        text = self._exchange.final or ""
        made = self._exchange.dialect.final(self._exchange.request, self._message or None, text)
        seen, events = list(self._shown_blocks), list[Event]()
        if not self._head:
            events.append(started(made))
        events += block_events(made["content"][0], len(seen))
        events += ended(made)
        self._exchange.settle([{"role": "assistant", "content": [*seen, *made["content"]]}])
        return b"".join(event_bytes(event, named=True) for event in events)
