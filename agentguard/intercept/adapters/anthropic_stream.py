"""Stream buffer of the Messages API.

The buffer forwards text and thinking at once. It buffers events from the first call of a client tool, or from
the stop reason, until the verdict. The blocks of a further answer continue the same message: its ID stays,
and blocks are numbered consecutively.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from agentguard.intercept.conversation import Item
from agentguard.intercept.guarded_request import AnswerSource, CandidateRequest, GuardedRequest
from agentguard.intercept.stream_buffer import EventStreamBuffer
from agentguard.model_api.sse import encode_event, parse_event

JsonObject = dict[str, Any]


def encode_message_stream(payload: Mapping[str, Any]) -> bytes:
    """Encode a message as a stream of events."""
    events = [build_start_event(payload)]
    for index, block in enumerate(payload["content"]):
        events += build_block_events(block, index)
    events += build_end_events(payload)
    return b"".join(encode_event(event, include_name=True) for event in events)


def build_start_event(payload: Mapping[str, Any]) -> JsonObject:
    """Build the event that starts a message."""
    message = {**payload, "content": [], "stop_reason": None, "stop_sequence": None}
    return {"type": "message_start", "message": message}


def build_block_events(block: Mapping[str, Any], index: int) -> list[JsonObject]:
    """Return the events of a block; a block of an unknown type starts with its whole content."""
    empty, deltas = _split_block(block)
    return [
        {"type": "content_block_start", "index": index, "content_block": empty},
        *({"type": "content_block_delta", "index": index, "delta": delta} for delta in deltas),
        {"type": "content_block_stop", "index": index},
    ]


def build_end_events(payload: Mapping[str, Any]) -> list[JsonObject]:
    """Return the events that end a message."""
    output_tokens = (payload.get("usage") or {}).get("output_tokens") or 0
    delta = {"stop_reason": payload.get("stop_reason"), "stop_sequence": payload.get("stop_sequence")}
    return [
        {"type": "message_delta", "delta": delta, "usage": {"output_tokens": output_tokens}},
        {"type": "message_stop"},
    ]


def apply_delta(block: JsonObject, delta: Mapping[str, Any]) -> None:
    """Apply a delta to its block; the JSON text of a tool input accumulates under ``partial``."""
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


def finish_block(block: JsonObject) -> JsonObject:
    """Return a block after its last delta; an input that is not valid JSON stays text."""
    text = block.pop("partial", "")
    if text:
        try:
            block["input"] = json.loads(text)
        except ValueError:
            block["input"] = text
    return block


def _split_block(block: Mapping[str, Any]) -> tuple[JsonObject, list[JsonObject]]:
    """Split a block into its initial state and its deltas."""
    match block.get("type"):
        case "text":
            deltas: list[JsonObject] = [{"type": "text_delta", "text": block.get("text") or ""}]
            deltas += (
                {"type": "citations_delta", "citation": citation} for citation in block.get("citations") or ()
            )
            return {**block, "text": "", **({"citations": []} if block.get("citations") else {})}, deltas
        case "thinking":
            return {**block, "thinking": "", "signature": ""}, [
                {"type": "thinking_delta", "thinking": block.get("thinking") or ""},
                {"type": "signature_delta", "signature": block.get("signature") or ""},
            ]
        case "tool_use" | "server_tool_use" | "mcp_tool_use":
            text = json.dumps(block.get("input") or {}, separators=(",", ":"))
            return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": text}]
    return dict(block), []


class AnthropicStreamBuffer(EventStreamBuffer):
    """Stream buffer for events of a message."""

    def __init__(
        self, request: GuardedRequest, candidate_request: CandidateRequest, *, buffer_all: bool = False
    ) -> None:
        self._visible_blocks: list[JsonObject] = []
        self._earlier_blocks: list[JsonObject] = []
        super().__init__(request, candidate_request, buffer_all=buffer_all)

    def build_error_event(self, message: str) -> bytes:
        """Build the event that reports that a retry of the model call failed."""
        error = {"type": "api_error", "message": message}
        return encode_event({"type": "error", "error": error}, include_name=True)

    def _reset(self) -> None:
        super()._reset()
        self._message: JsonObject = {}
        self._blocks: dict[int, JsonObject] = {}
        self._is_done = False

    def _handle_event(self, event: bytes, value: JsonObject) -> None:
        if value.get("type") == "content_block_start":
            value = parse_event(event) or value  # the event may contain the arguments of a call
        self._update_message(value)

    def _build_payload(self) -> dict[str, Any]:
        if not self._is_done:
            raise EOFError("the stream ended before message_stop")
        content = [finish_block(self._blocks[index]) for index in sorted(self._blocks)]
        return {**self._message, "content": content}

    def _build_visible_answer(
        self, answer: list[Item], source: AnswerSource
    ) -> tuple[list[Item] | None, str]:
        before = self._visible_blocks if source == "other" else self._earlier_blocks
        if not before or not answer:
            return None, ""
        return [{**answer[0], "content": [*before, *answer[0]["content"]]}], ""

    def _encode_replacement(self, payload: dict[str, Any], source: AnswerSource) -> bytes:
        visible_count = len(self._visible_blocks) - len(self._earlier_blocks)
        self._begin_retry()
        if source != "other":  # the client has received these blocks
            payload = {**payload, "content": payload["content"][visible_count:]}
        return self.feed(self._request.adapter.encode_stream(payload, include_usage=True)) + self.flush()

    def _begin_retry(self) -> bytes:
        self._follows_rejected, self._earlier_blocks = True, list(self._visible_blocks)
        self._reset()
        return b""

    def _update_message(self, value: Mapping[str, Any]) -> None:
        match value.get("type"):
            case "message_start":
                self._message = dict(value["message"])
            case "content_block_start":
                block = dict(value["content_block"])
                self._blocks[value["index"]] = block
                self._is_buffering = self._is_buffering or block.get("type") == "tool_use"
            case "content_block_delta":
                apply_delta(self._blocks[value["index"]], value["delta"])
            case "message_delta":
                self._is_buffering = True
                self._message |= value.get("delta") or {}
                usage = self._message.get("usage") or {}
                self._message["usage"] = {**usage, **(value.get("usage") or {})}
            case "message_stop":
                self._is_done = True
            case "error":
                self._has_error_event = True

    def _rewrite_event(self, event: bytes, value: JsonObject) -> bytes:
        kind = value.get("type")
        if kind == "message_start":
            if self._follows_rejected and self._answer_head:
                return b""
            self._answer_head = self._answer_head or dict(value["message"])
        if kind == "content_block_stop":
            self._visible_blocks.append(finish_block(dict(self._blocks[value["index"]])))
        if not self._follows_rejected or not isinstance(value.get("index"), int):
            return event
        value = parse_event(event) or value
        return encode_event({**value, "index": value["index"] + len(self._earlier_blocks)}, include_name=True)

    def _encode_final_answer(self) -> bytes:
        """Encode the guard's final answer as another block of the message, and the end of the message."""
        text = self._request.final_text or ""
        answer = self._request.adapter.build_final_answer(
            self._request.request_body, self._message or None, text
        )
        visible_blocks, events = list(self._visible_blocks), list[JsonObject]()
        if not self._answer_head:
            events.append(build_start_event(answer))
        events += build_block_events(answer["content"][0], len(visible_blocks))
        events += build_end_events(answer)
        self._request.settle([{"role": "assistant", "content": [*visible_blocks, *answer["content"]]}])
        return b"".join(encode_event(event, include_name=True) for event in events)
