"""Decoding of events and bodies for the formats; it skips unused fields."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final, Generic, TypeVar

import msgspec

from agentguard.model_api.sse import LINE_END, extract_data, split_events

DONE: Final = b"[DONE]"
_SSE_FIELDS: Final = (b":", b"data:", b"event:", b"id:", b"retry:")
_SAFE_WORD: Final = re.compile(r"[A-Za-z0-9_.-]{1,64}")

T = TypeVar("T")


class AnyObject(msgspec.Struct, gc=False):
    """Any object; its fields are skipped."""


class StructDecoder(Generic[T]):
    """Decoder of JSON into a struct; it returns a clause with the reason if it fails."""

    def __init__(self, kind: type[T]) -> None:
        self._decode = msgspec.json.Decoder(kind).decode

    def __call__(self, data: bytes) -> T | str:
        """Return the struct, or the reason; a reason contains only field names and positions."""
        try:
            if not data.isascii():
                data.decode()  # the decoder does not validate the fields that it skips
            return self._decode(data)
        except RecursionError:
            return "it is nested too deeply"
        except UnicodeDecodeError:
            return "it is not UTF-8"
        except msgspec.ValidationError as error:
            return _format_clause(error)
        except msgspec.MsgspecError:
            return "it is not JSON"


class _ErrorBody(msgspec.Struct):
    error: Any = None


_decode_error = StructDecoder(_ErrorBody)


def format_error(error: Any) -> str:
    """Return a clause for an error in an answer, with its type or code but without its message."""
    for word in (error.get("code"), error.get("type")) if isinstance(error, dict) else ():
        if isinstance(word, int | str) and not isinstance(word, bool) and _SAFE_WORD.fullmatch(str(word)):
            return f"the endpoint answered with an error ({word})"
    return "the endpoint answered with an error"


def find_error(body: bytes) -> str | None:
    """Return a clause for the error that a body contains in place of an answer, or None."""
    envelope = _decode_error(body)
    return None if isinstance(envelope, str) or envelope.error is None else format_error(envelope.error)


def iterate_payloads(chunk: bytes) -> Iterator[bytes]:
    """Yield the data of each event; skip comments and events without data."""
    for event in split_events(chunk):
        data = extract_data(event)
        if data is not None:
            yield data


def find_last_payload(chunk: bytes, *, skip: bytes = b"") -> bytes | None:
    """Return the data of the last event with data other than ``skip``."""
    payload = None
    for data in iterate_payloads(chunk):
        if data != skip:
            payload = data
    return payload


def has_invalid_line(event: bytes) -> bool:
    """Return whether a line of an event is neither a field of server-sent events nor a comment."""
    return any(line and not line.startswith(_SSE_FIELDS) for line in LINE_END.split(event))


def _format_clause(error: Exception) -> str:
    text = str(error)
    return text[:1].lower() + text[1:].rstrip(".")
