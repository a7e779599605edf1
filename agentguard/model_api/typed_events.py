"""Base class of the formats with typed events: OpenAI's responses and Anthropic's messages."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agentguard.model_api.decoding import (
    DONE,
    StructDecoder,
    find_last_payload,
    format_error,
    has_invalid_line,
)
from agentguard.model_api.sse import extract_data, split_events


class EventHead(msgspec.Struct):
    """Fields of an event that the formats read."""

    type: str = ""
    code: Any = None
    error: Any = None
    response: msgspec.Raw = msgspec.Raw(b"{}")


decode_event_head: Final = StructDecoder(EventHead)


class TypedEventsFormat:
    """Base class of formats with typed events.

    Args:
        name: name of the API.
        prefix: prefixes of its event types.
        last_types: event types that end a stream.
    """

    def __init__(self, name: str, *, prefix: tuple[str, ...], last_types: frozenset[str]) -> None:
        self.name = name
        self._prefix, self._last_types = prefix, last_types
        self._last_type_marks = tuple(f'"{kind}"'.encode() for kind in sorted(last_types))

    def is_last(self, chunk: bytes) -> bool:
        """Return whether the last event with data is a final one; ignore the ``[DONE]`` of some servers."""
        if not any(mark in chunk for mark in self._last_type_marks):
            return False
        data = find_last_payload(chunk, skip=DONE)
        event = decode_event_head(data) if data is not None else ""
        return not isinstance(event, str) and event.type in self._last_types

    def find_chunk_error(self, chunk: bytes) -> str | None:
        """Return a reason for the first event that is an error or not of this API, or None."""
        for event in split_events(chunk):
            if has_invalid_line(event):
                return "a line in the stream is not a server-sent event"
            data = extract_data(event)
            if data is not None and data != DONE and (reason := self._find_event_error(data)) is not None:
                return reason
        return None

    def _find_event_error(self, data: bytes) -> str | None:
        event = decode_event_head(data)
        if isinstance(event, str):
            return f"an event is not valid in the {self.name} API: {event}"
        if event.type == "error" or (not event.type and event.error is not None):
            return format_error(event.error if event.error is not None else {"code": event.code})
        if not event.type.startswith(self._prefix):
            return f"an event has a type that the {self.name} API does not have"
        return self.find_failure(event)

    def find_failure(self, event: EventHead) -> str | None:
        """Return an API-specific failure of an event; None by default."""
        del event
        return None
