"""Stream buffer of the Chat Completions API.

Chunks that follow a rejected answer continue the same completion.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentguard.intercept.adapters.openai_chat import CHUNK_HEAD_FIELDS, CHUNK_META_FIELDS, requires_json
from agentguard.intercept.conversation import Item
from agentguard.intercept.guarded_request import AnswerSource, CandidateRequest, GuardedRequest
from agentguard.intercept.stream_buffer import EventStreamBuffer
from agentguard.model_api.sse import encode_event, extract_data, parse_event

_EXTRA_TEXT_FIELDS = frozenset({"refusal", "reasoning_content", "reasoning"})
"""Text fields of an answer other than its content."""


@dataclass(slots=True)
class _PartialCall:
    """Tool call assembled from the deltas received so far."""

    id: str = ""
    function: dict[str, list[str]] = field(default_factory=lambda: {"name": [], "arguments": []})

    def build(self) -> dict[str, Any]:
        function = {name: "".join(pieces) for name, pieces in self.function.items()}
        return {"id": self.id, "type": "function", "function": function}


class ChatStreamBuffer(EventStreamBuffer):
    """Stream buffer for chunks of a chat completion."""

    def __init__(
        self, request: GuardedRequest, candidate_request: CandidateRequest, *, buffer_all: bool = False
    ) -> None:
        self._role_sent = False
        self._earlier_text = ""
        super().__init__(request, candidate_request, buffer_all=buffer_all)

    def build_error_event(self, message: str) -> bytes:
        """Build the event that reports that a retry of the model call failed."""
        return encode_event({"error": {"message": message, "type": "agentguard_error", "code": "ask_again"}})

    def _reset(self) -> None:
        super()._reset()
        self._is_done = False
        self._content_parts: list[str] = []
        self._forwarded_count = 0 if self._buffer_all else None
        self._extra_text_parts: dict[str, list[str]] = {}
        self._calls: dict[int, _PartialCall] = {}
        self._meta: dict[str, Any] = {}
        self._finish_reason: str | None = None

    @property
    def _visible_text(self) -> str:
        """Return the text of all answers that the client has received."""
        return self._earlier_text + "".join(self._content_parts[: self._forwarded_count])

    @property
    def _buffered_text(self) -> str:
        """Return the text of the current answer that the client has not received."""
        return "" if self._forwarded_count is None else "".join(self._content_parts[self._forwarded_count :])

    def _handle_other_event(self, event: bytes) -> None:
        if (extract_data(event) or b"").startswith(b"[DONE]"):
            self._is_done = self._finish_reason is not None

    def _build_visible_answer(
        self, answer: list[Item], source: AnswerSource
    ) -> tuple[list[Item] | None, str]:
        message = answer[0] if answer else {}
        if source == "other" and self._visible_text:
            return [{**message, "content": self._build_separated_text() + (message.get("content") or "")}], ""
        if source != "other" and self._follows_rejected and self._visible_text:
            return [{**message, "content": self._visible_text + self._buffered_text}], ""
        return None, ""

    def _encode_replacement(self, payload: dict[str, Any], source: AnswerSource) -> bytes:
        data = b""
        if source == "other":
            data = self._begin_retry()
        else:  # the client has part of the text; send only the buffered rest
            choice = payload["choices"][0]
            message = {**choice["message"], "content": self._buffered_text or None}
            payload = {**payload, "choices": [{**choice, "message": message}]}
            self._start_next_answer()
        usage = (self._request.request_body.get("stream_options") or {}).get("include_usage")
        return (
            data
            + self.feed(self._request.adapter.encode_stream(payload, include_usage=bool(usage)))
            + self.flush()
        )

    def _build_separated_text(self) -> str:
        return self._visible_text if self._visible_text.endswith("\n\n") else f"{self._visible_text}\n\n"

    def _handle_event(self, event: bytes, value: dict[str, Any]) -> None:
        del event
        self._has_error_event = self._has_error_event or bool(value.get("error"))
        meta = self._meta
        for name, field_value in value.items():
            if field_value is not None and name in CHUNK_META_FIELDS:
                meta[name] = field_value
        if not self._answer_head:
            self._answer_head = {k: v for k, v in value.items() if k in CHUNK_HEAD_FIELDS}
        for choice in value.get("choices") or ():
            delta, finish = choice.get("delta") or {}, choice.get("finish_reason")
            if finish or delta.get("tool_calls") or delta.get("function_call"):
                self._finish_reason, self._is_buffering = finish or self._finish_reason, True
                if self._forwarded_count is None:
                    self._forwarded_count = len(self._content_parts)
            self._add_delta(delta)

    def _add_delta(self, delta: Mapping[str, Any]) -> None:
        for name, field_value in delta.items():
            if name == "content":
                if isinstance(field_value, str):
                    self._content_parts.append(field_value)
            elif name in _EXTRA_TEXT_FIELDS and isinstance(field_value, str):
                self._extra_text_parts.setdefault(name, []).append(field_value)
            elif name == "tool_calls":
                for call in field_value or ():
                    self._add_call(call)

    def _add_call(self, call: Mapping[str, Any]) -> None:
        index = call.get("index", 0)
        if (partial_call := self._calls.get(index)) is None:
            partial_call = self._calls[index] = _PartialCall()
        partial_call.id = call.get("id") or partial_call.id
        for name, text in (call.get("function") or {}).items():
            if isinstance(text, str):
                partial_call.function.setdefault(name, []).append(text)

    def _build_message(self) -> dict[str, Any]:
        fields: dict[str, Any] = {"content": "".join(self._content_parts) if self._content_parts else None}
        fields |= {name: "".join(pieces) for name, pieces in self._extra_text_parts.items()}
        if self._calls:
            fields["tool_calls"] = [self._calls[index].build() for index in sorted(self._calls)]
        return {"role": "assistant", **fields}

    def _build_payload(self) -> dict[str, Any]:
        if not self._is_done:
            raise EOFError("the stream ended before [DONE]")
        choice = {"index": 0, "message": self._build_message(), "finish_reason": self._finish_reason}
        return {**self._meta, "choices": [choice]}

    def _rewrite_event(self, event: bytes, value: dict[str, Any]) -> bytes:
        if not self._follows_rejected:
            if not self._role_sent:
                choices = value.get("choices") or ()
                self._role_sent = any("role" in (choice.get("delta") or {}) for choice in choices)
            return event
        return self._rewrite_chunk(parse_event(event) or value)

    def _rewrite_chunk(self, chunk: dict[str, Any]) -> bytes:
        """Rewrite a chunk of another answer as a chunk of the first answer of the stream."""
        choices = chunk.get("choices") or []
        for choice in choices:
            delta = choice.get("delta") or {}
            if self._role_sent:
                delta.pop("role", None)
            self._role_sent = self._role_sent or "role" in delta
        chunk |= {key: value for key, value in self._answer_head.items() if key in chunk}
        empty = choices and not any(
            any((c.get("delta") or {}).values()) or c.get("finish_reason") for c in choices
        )
        return b"" if empty and not chunk.get("usage") else encode_event(chunk)

    def _encode_chunk(self, delta: dict[str, Any], finish: str | None = None) -> bytes:
        if not self._role_sent:
            delta, self._role_sent = {"role": "assistant", **delta}, True
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return encode_event({**self._answer_head, "choices": [choice]})

    def _start_next_answer(self) -> None:
        """Reset the state for another answer."""
        self._follows_rejected, self._earlier_text = True, self._visible_text
        self._reset()

    def _begin_retry(self) -> bytes:
        self._start_next_answer()
        if not self._visible_text or self._visible_text == self._build_separated_text():
            return b""
        self._earlier_text = self._build_separated_text()
        return self._encode_chunk({"content": "\n\n"})

    def _encode_final_answer(self) -> bytes:
        text = self._request.final_text or ""
        if requires_json(self._request.request_body):
            part = {"refusal": text}
        else:
            part = {"content": f"\n\n{text}" if self._visible_text.strip() else text}
        visible_fields = {
            "content": self._visible_text + part.get("content", ""),
            "refusal": part.get("refusal"),
        }
        self._request.settle([{"role": "assistant", **visible_fields}])
        return self._encode_chunk(part) + self._encode_chunk({}, "stop") + b"data: [DONE]\n\n"
