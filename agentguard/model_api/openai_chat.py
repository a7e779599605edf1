"""OpenAI's chat completions and completions: answers with choices, streams that end with ``[DONE]``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec

from agentguard.model_api.decoding import (
    DONE,
    Anything,
    Decoded,
    last_payload,
    payloads,
    refusal,
    stray,
    told,
)
from agentguard.model_api.sse import data_of, events

# A name of a field with an unescaped quote never stands inside a JSON string, so bytes are enough for a yes.
_SAYS: Final = re.compile(
    rb'"(?:content|reasoning_content|reasoning|refusal|arguments|name|text|finish_reason)"\s*:\s*"[^"]'
)
_SILENT: Final = frozenset({"role", "type", "id", "index"})


class _Chunk(msgspec.Struct, gc=False):
    choices: list[Anything] | None = None
    error: Any = None


class _Open(msgspec.Struct):
    choices: list[dict[str, Any]] | None = None
    usage: Any = None


class _Message(msgspec.Struct):
    message: Anything


class _Text(msgspec.Struct):
    text: str


class _Chat(msgspec.Struct):
    choices: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    error: Any = None


class _Completion(msgspec.Struct):
    choices: Annotated[list[_Text], msgspec.Meta(min_length=1)]
    error: Any = None


_chunk, _open = Decoded(_Chunk), Decoded(_Open)
_quick: Final = msgspec.json.Decoder(_Chunk).decode


class Choices:
    """An API whose answers have choices; see `agentguard.model_api.Api`."""

    def __init__(self, name: str, kind: type[_Chat] | type[_Completion]) -> None:
        self.name = name
        self._whole: Decoded[Any] = Decoded(kind)

    def carries(self, chunk: bytes) -> bool:
        """Whether text, a part of a tool call, a reason to finish or usage is among the events."""
        return _SAYS.search(chunk) is not None or any(_carries(data) for data in payloads(chunk))

    def ends(self, chunk: bytes) -> bool:
        """Whether the last event that is no comment is ``[DONE]``."""
        return chunk.endswith(b"data: [DONE]\n\n") or (DONE in chunk and last_payload(chunk) == DONE)

    def fault(self, chunk: bytes) -> str | None:
        """The first event that is no chunk of this API, or an error in place of one."""
        if _plain(chunk):
            return None
        for event in events(chunk):
            data = data_of(event)
            if data is None or not event.startswith(b"data:"):
                if stray(event):
                    return "a line in the stream is no server-sent event"
                if data is None:
                    continue
            if data != DONE and (reason := self._event(data)) is not None:
                return reason
        return None

    def _event(self, data: bytes) -> str | None:
        found = _chunk(data)
        if isinstance(found, str):
            return f"an event is no {self.name} chunk: {found}"
        if found.error is not None:
            return told(found.error)
        return f"an event is no {self.name} chunk: it has no choices" if found.choices is None else None

    def wrong(self, body: bytes, asked: bytes = b"") -> str | None:
        """An error, no choices, or not this API's JSON."""
        del asked
        found = self._whole(body)
        if not isinstance(found, str):
            return told(found.error) if found.error is not None else None
        return refusal(body) or f"it is no answer of the {self.name} API: {found}"


def _plain(chunk: bytes) -> bool:
    """Whether all is as it nearly always is, so that nothing need be looked at more closely."""
    if b"\r" in chunk:
        return False
    try:
        if not chunk.isascii():
            chunk.decode()
        if chunk.startswith(b"data: {") and chunk.find(b"\n") == len(chunk) - 2:  # one event
            found = _quick(chunk[6:])  # what follows it is white space
            return found.error is None and found.choices is not None
        for event in chunk.split(b"\n\n"):
            data = event[6:]
            if event[:6] != b"data: " or b"\n" in data:
                if event:
                    return False
            elif data != DONE:
                found = _quick(data)
                if found.error is not None or found.choices is None:
                    return False
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _carries(data: bytes) -> bool:
    if data == DONE:  # the end of an answer is none: a stream that has nothing else says nothing
        return False
    found = _open(data)
    if isinstance(found, str) or found.choices is None:
        return False
    if not found.choices:
        return bool(found.usage)
    return any(
        bool(choice.get("finish_reason")) or _says(choice.get("delta")) or bool(choice.get("text"))
        for choice in found.choices
    )


def _says(value: Any) -> bool:
    """Whether there is any text in a delta, leaving out who speaks and what names its parts."""
    if isinstance(value, dict):
        return any(_says(part) for key, part in value.items() if key not in _SILENT)
    return any(map(_says, value)) if isinstance(value, list) else isinstance(value, str) and bool(value)


CHAT: Final = Choices("chat", _Chat)
COMPLETIONS: Final = Choices("completions", _Completion)
