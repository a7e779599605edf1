"""Streams whose events name their type: OpenAI's responses and Anthropic's messages."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from agentguard.model_api.decoding import DONE, Decoded, last_payload, stray, told
from agentguard.model_api.sse import data_of, events


class EventHead(msgspec.Struct):
    """What is read of an event."""

    type: str = ""
    code: Any = None
    error: Any = None
    response: msgspec.Raw = msgspec.Raw(b"{}")


head: Final = Decoded(EventHead)


class Typed:
    """What both have in common.

    Args:
        name: of the API.
        prefix: how the types of its events begin.
        last: the types that end a stream.
    """

    def __init__(self, name: str, *, prefix: tuple[str, ...], last: frozenset[str]) -> None:
        self.name = name
        self._prefix, self._last = prefix, last
        self._marks = tuple(f'"{kind}"'.encode() for kind in sorted(last))

    def ends(self, chunk: bytes) -> bool:
        """Whether the last event with data, but for a ``[DONE]`` that some servers add, is a last one."""
        if not any(mark in chunk for mark in self._marks):
            return False
        data = last_payload(chunk, skip=DONE)
        found = head(data) if data is not None else ""
        return not isinstance(found, str) and found.type in self._last

    def fault(self, chunk: bytes) -> str | None:
        """The first event that is none of this API, or an error in place of one."""
        for event in events(chunk):
            if stray(event):
                return "a line in the stream is no server-sent event"
            data = data_of(event)
            if data is not None and data != DONE and (reason := self._event(data)) is not None:
                return reason
        return None

    def _event(self, data: bytes) -> str | None:
        found = head(data)
        if isinstance(found, str):
            return f"an event is none of the {self.name} API: {found}"
        if found.type == "error" or (not found.type and found.error is not None):
            return told(found.error if found.error is not None else {"code": found.code})
        if not found.type.startswith(self._prefix):
            return f"an event is none of the {self.name} API: its type is unknown"
        return self.failed(found)

    def failed(self, found: EventHead) -> str | None:
        """What is wrong with an event of this API; nothing, unless an API says otherwise."""
        del found
        return None
