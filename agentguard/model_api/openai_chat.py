"""OpenAI's chat completions and completions: answers with choices, streams that end with ``[DONE]``."""

from __future__ import annotations

import re
from typing import Annotated, Any, Final

import msgspec

from agentguard.model_api.decoding import (
    DONE,
    AnyObject,
    StructDecoder,
    find_error,
    find_last_payload,
    format_error,
    has_invalid_line,
    iterate_payloads,
)
from agentguard.model_api.sse import extract_data, split_events

# An unescaped quote cannot occur inside a JSON string, so a match in the bytes is reliable.
_TEXT_PATTERN: Final = re.compile(
    rb'"(?:content|reasoning_content|reasoning|refusal|arguments|name|text|finish_reason)"\s*:\s*"[^"]'
)
_METADATA_KEYS: Final = frozenset({"role", "type", "id", "index"})


class _Chunk(msgspec.Struct, gc=False):
    choices: list[AnyObject] | None = None
    error: Any = None


class _OpenChunk(msgspec.Struct):
    choices: list[dict[str, Any]] | None = None
    usage: Any = None


class _Message(msgspec.Struct):
    message: AnyObject


class _Text(msgspec.Struct):
    text: str


class _Chat(msgspec.Struct):
    choices: Annotated[list[_Message], msgspec.Meta(min_length=1)]
    error: Any = None


class _Completion(msgspec.Struct):
    choices: Annotated[list[_Text], msgspec.Meta(min_length=1)]
    error: Any = None


_decode_chunk, _decode_open_chunk = StructDecoder(_Chunk), StructDecoder(_OpenChunk)
_decode_fast: Final = msgspec.json.Decoder(_Chunk).decode


class ChoicesFormat:
    """Format of an API whose answers have choices; see `agentguard.model_api.ApiFormat`."""

    def __init__(self, name: str, kind: type[_Chat] | type[_Completion]) -> None:
        self.name = name
        self._decode_body: StructDecoder[Any] = StructDecoder(kind)
        self._decode_fast = msgspec.json.Decoder(kind).decode

    def has_content(self, chunk: bytes) -> bool:
        """Return whether the events contain text, a part of a tool call, a finish reason or usage."""
        return _TEXT_PATTERN.search(chunk) is not None or any(
            _has_content(data) for data in iterate_payloads(chunk)
        )

    def is_last(self, chunk: bytes) -> bool:
        """Return whether the last event other than a comment is ``[DONE]``."""
        return chunk.endswith(b"data: [DONE]\n\n") or (DONE in chunk and find_last_payload(chunk) == DONE)

    def find_chunk_error(self, chunk: bytes) -> str | None:
        """Return a reason for the first event that is an error or not a chunk of this API, or None."""
        if _is_plain(chunk):
            return None
        for event in split_events(chunk):
            data = extract_data(event)
            if data is None or not event.startswith(b"data:"):
                if has_invalid_line(event):
                    return "a line in the stream is not a server-sent event"
                if data is None:
                    continue
            if data != DONE and (reason := self._find_event_error(data)) is not None:
                return reason
        return None

    def _find_event_error(self, data: bytes) -> str | None:
        chunk = _decode_chunk(data)
        if isinstance(chunk, str):
            return f"an event is not a {self.name} chunk: {chunk}"
        if chunk.error is not None:
            return format_error(chunk.error)
        return f"an event is not a {self.name} chunk: it has no choices" if chunk.choices is None else None

    def find_body_error(self, body: bytes, request_body: bytes = b"") -> str | None:
        """Return an error, also for an answer without choices, or None for a valid answer."""
        del request_body
        try:
            if body.isascii() and self._decode_fast(body).error is None:
                return None  # nearly all answers
        except (msgspec.MsgspecError, RecursionError):
            pass
        answer = self._decode_body(body)
        if not isinstance(answer, str):
            return format_error(answer.error) if answer.error is not None else None
        return find_error(body) or f"it is not a response of the {self.name} API: {answer}"


def _is_plain(chunk: bytes) -> bool:
    """Return whether all events have the usual form, so that a closer check is unnecessary."""
    if b"\r" in chunk:
        return False
    try:
        if not chunk.isascii():
            chunk.decode()
        if chunk.startswith(b"data: {") and chunk.find(b"\n") == len(chunk) - 2:  # one event
            payload = _decode_fast(chunk[6:])  # only white space follows it
            return payload.error is None and payload.choices is not None
        for event in chunk.split(b"\n\n"):
            data = event[6:]
            if event[:6] != b"data: " or b"\n" in data:
                if event:
                    return False
            elif data != DONE:
                payload = _decode_fast(data)
                if payload.error is not None or payload.choices is None:
                    return False
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return True


def _has_content(data: bytes) -> bool:
    if data == DONE:  # the end marker alone is not content
        return False
    chunk = _decode_open_chunk(data)
    if isinstance(chunk, str) or chunk.choices is None:
        return False
    if not chunk.choices:
        return bool(chunk.usage)
    return any(
        bool(choice.get("finish_reason")) or _has_text(choice.get("delta")) or bool(choice.get("text"))
        for choice in chunk.choices
    )


def _has_text(value: Any) -> bool:
    """Return whether a delta contains text, ignoring the role and the names of parts."""
    if isinstance(value, dict):
        return any(_has_text(part) for key, part in value.items() if key not in _METADATA_KEYS)
    return any(map(_has_text, value)) if isinstance(value, list) else isinstance(value, str) and bool(value)


CHAT: Final = ChoicesFormat("chat", _Chat)
COMPLETIONS: Final = ChoicesFormat("completions", _Completion)
