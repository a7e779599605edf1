"""Anthropic's messages API; its streams end with ``message_stop``."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from agentguard.model_api.decoding import AnyObject, StructDecoder, find_error, iterate_payloads
from agentguard.model_api.typed_events import TypedEventsFormat

_TEXT_PATTERN: Final = re.compile(rb'"(?:text|partial_json|thinking|signature|stop_reason)"\s*:\s*"[^"]')
_EVENT_PREFIXES: Final = ("message_", "content_block_", "ping")


class _Block(msgspec.Struct):
    type: str = ""


class _Event(msgspec.Struct):
    type: str
    content_block: _Block | None = None
    delta: _Block | None = None


class _Message(msgspec.Struct):
    type: str
    content: list[AnyObject]


_decode_event, _decode_body = StructDecoder(_Event), StructDecoder(_Message)


class AnthropicMessagesFormat(TypedEventsFormat):
    """Format of Anthropic's messages; see `agentguard.model_api.ApiFormat`."""

    def __init__(self) -> None:
        super().__init__("messages", prefix=_EVENT_PREFIXES, last_types=frozenset({"message_stop"}))

    def has_content(self, chunk: bytes) -> bool:
        """Return whether there is text, a tool use or its input, a stop reason, or the end."""
        return _TEXT_PATTERN.search(chunk) is not None or any(
            _has_content(data) for data in iterate_payloads(chunk)
        )

    def find_body_error(self, body: bytes, request_body: bytes = b"") -> str | None:
        """Return an error, or None for a valid message, which may be empty."""
        del request_body
        message = _decode_body(body)
        if not isinstance(message, str) and message.type == "message":
            return None
        reason = message if isinstance(message, str) else "its type is wrong"
        return find_error(body) or f"it is not a response of the messages API: {reason}"


def _has_content(data: bytes) -> bool:
    event = _decode_event(data)
    if isinstance(event, str):
        return False
    if event.type == "content_block_start":
        return event.content_block is not None and event.content_block.type not in ("", "text", "thinking")
    if event.type == "content_block_delta":  # non-empty texts and inputs were found in the bytes
        return event.delta is not None and event.delta.type == "citations_delta"
    return event.type == "message_stop"


MESSAGES: Final = AnthropicMessagesFormat()
