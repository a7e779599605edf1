"""Anthropic's messages: streams end with ``message_stop``."""

from __future__ import annotations

import re
from typing import Final

import msgspec

from agentguard.model_api.decoding import Anything, Decoded, payloads, refusal
from agentguard.model_api.typed_events import Typed

_SAYS: Final = re.compile(rb'"(?:text|partial_json|thinking|signature|stop_reason)"\s*:\s*"[^"]')
_PREFIX: Final = ("message_", "content_block_", "ping")


class _Block(msgspec.Struct):
    type: str = ""


class _Event(msgspec.Struct):
    type: str
    content_block: _Block | None = None
    delta: _Block | None = None


class _Message(msgspec.Struct):
    type: str
    content: list[Anything]


_event, _whole = Decoded(_Event), Decoded(_Message)


class AnthropicMessagesFormat(Typed):
    """See `agentguard.model_api.Api`."""

    def __init__(self) -> None:
        super().__init__("messages", prefix=_PREFIX, last=frozenset({"message_stop"}))

    def carries(self, chunk: bytes) -> bool:
        """Whether there is text, a tool's use or its input, a reason to stop, or the end."""
        return _SAYS.search(chunk) is not None or any(_carries(data) for data in payloads(chunk))

    def wrong(self, body: bytes, asked: bytes = b"") -> str | None:
        """An error, no content, or not this API's JSON. Content may be empty."""
        del asked
        found = _whole(body)
        if not isinstance(found, str) and found.type == "message":
            return None
        reason = found if isinstance(found, str) else "its type is another"
        return refusal(body) or f"it is no answer of the messages API: {reason}"


def _carries(data: bytes) -> bool:
    found = _event(data)
    if isinstance(found, str):
        return False
    if found.type == "content_block_start":
        return found.content_block is not None and found.content_block.type not in ("", "text", "thinking")
    if found.type == "content_block_delta":  # texts and inputs with anything in them were seen as bytes
        return found.delta is not None and found.delta.type == "citations_delta"
    return found.type == "message_stop"


MESSAGES: Final = AnthropicMessagesFormat()
