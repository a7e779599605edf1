"""OpenAI's responses API; its streams end with ``response.completed``, ``.incomplete`` or ``.failed``."""

from __future__ import annotations

import re
from typing import Any, Final

import msgspec

from agentguard.model_api.decoding import DONE, StructDecoder, find_error, format_error, iterate_payloads
from agentguard.model_api.typed_events import EventHead, TypedEventsFormat, decode_event_head

_DELTA_PATTERN: Final = re.compile(rb'"delta"\s*:\s*"[^"]')
_CONTENTLESS_EVENTS: Final = frozenset(
    {
        "response.created",
        "response.in_progress",
        "response.queued",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_summary_part.added",
    }
)
_SERVER_ERROR_CODES: Final = frozenset({"server_error", "rate_limit_exceeded"})


class _Error(msgspec.Struct):
    code: str = ""


class _InnerResponse(msgspec.Struct):
    error: _Error | None = None
    output: list[msgspec.Raw] | None = None


class _Response(msgspec.Struct):
    output: list[msgspec.Raw]
    status: str = "completed"
    error: Any = None


_decode_body, _decode_inner = StructDecoder(_Response), StructDecoder(_InnerResponse)


class ResponsesFormat(TypedEventsFormat):
    """Format of OpenAI's responses; see `agentguard.model_api.ApiFormat`."""

    def __init__(self) -> None:
        ends = frozenset({"response.completed", "response.incomplete", "response.failed"})
        super().__init__("responses", prefix=("response.", "keepalive"), last_types=ends)

    def has_content(self, chunk: bytes) -> bool:
        """Return whether there is part of the output, or its end; opening a part is not content."""
        return _DELTA_PATTERN.search(chunk) is not None or any(
            _has_content(data) for data in iterate_payloads(chunk)
        )

    def find_failure(self, event: EventHead) -> str | None:
        """Return a server-side failure of a response; a refused request is for the caller to handle."""
        if event.type != "response.failed":
            return None
        inner = _decode_inner(bytes(event.response))
        if isinstance(inner, str) or inner.error is None or inner.error.code not in _SERVER_ERROR_CODES:
            return None
        return f"the endpoint answered with an error ({inner.error.code})"

    def find_body_error(self, body: bytes, request_body: bytes = b"") -> str | None:
        """Return an error, or None for a valid response. A queued response may still lack output."""
        del request_body
        answer = _decode_body(body)
        if isinstance(answer, str):
            return find_error(body) or f"it is not a response of the responses API: {answer}"
        if answer.status == "failed" and answer.error is not None:
            code = answer.error.get("code") if isinstance(answer.error, dict) else None
            if isinstance(code, str) and code in _SERVER_ERROR_CODES:
                return format_error(answer.error)
        is_empty = answer.status == "completed" and not answer.output
        return "it is not a response of the responses API: its output is empty" if is_empty else None


def _has_content(data: bytes) -> bool:
    if data == DONE:
        return False
    event = decode_event_head(data)
    if isinstance(event, str) or not event.type.startswith("response."):
        return False
    if event.type == "response.completed":  # a completed response without output is not an answer
        response = _decode_inner(bytes(event.response))
        return isinstance(response, str) or response.output != []
    return event.type not in _CONTENTLESS_EVENTS and not event.type.endswith(".delta")


RESPONSES: Final = ResponsesFormat()
