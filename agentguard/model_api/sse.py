"""Server-sent events, cut out of a stream of bytes as they came (WHATWG HTML, 9.2).

Events stay bytes, each with the blank line that ends it: joined again they are what was fed. Lines may end
in LF, CRLF or CR. What events say is read in `agentguard.model_api`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
"""The end of an event: two ends of lines, one after the other."""
LINE_END = re.compile(rb"\r\n|\n|\r")


class EventSplitter:
    """Cuts whole events off, as many at once as there are; what is fed is looked at once."""

    __slots__ = ("_pieces", "_tail", "remainder_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._tail = b""
        self.remainder_size = 0

    @property
    def remainder(self) -> bytes:
        """What was fed and is no whole event yet; `size` is its length."""
        return b"".join(self._pieces)

    def feed(self, data: bytes) -> bytes:
        """Take bytes in; returns the events that are whole now, which may be none."""
        if not self._pieces and data.endswith(b"\n\n"):
            return data  # nearly all reads: whole events
        window = self._tail + data
        end = _find_last_event_end(window)
        if end == 0:
            self._pieces.append(data)
            self._tail = window[-3:]  # the longest beginning of a blank line is \r\n\r
            self.remainder_size += len(data)
            return b""
        whole = b"".join([*self._pieces, data])
        cut = len(whole) - len(window) + end
        rest = whole[cut:]
        self._pieces, self._tail, self.remainder_size = [rest] if rest else [], rest[-3:], len(rest)
        return whole[:cut]


def _find_last_event_end(data: bytes) -> int:
    """Where the last whole event ends; 0 if there is none."""
    if b"\r" not in data:
        end = data.rfind(b"\n\n")
        return end + 2 if end >= 0 else 0
    last = 0
    for found in EVENT_END.finditer(data):
        last = found.end()
    return last


def split_events(chunk: bytes) -> Iterator[bytes]:
    """The events of a chunk of whole ones, each with its blank line; what is left over comes last."""
    if b"\r" not in chunk:  # many times as fast as the expression
        *whole, rest = chunk.split(b"\n\n")
        for event in whole:
            yield event + b"\n\n"
    else:
        begin = 0
        for found in EVENT_END.finditer(chunk):
            yield chunk[begin : found.end()]
            begin = found.end()
        rest = chunk[begin:]
    if rest:
        yield rest


def extract_data(event: bytes) -> bytes | None:
    """The data of an event; None if it has none, such as a comment."""
    if event.startswith(b"data:") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2] if event.startswith(b"data: ") else event[5:-2]
    lines = [line[5:].removeprefix(b" ") for line in LINE_END.split(event) if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


class EventReader:
    """Cuts a stream of bytes into events, each with the blank line that ends it (WHATWG HTML, 9.2)."""

    def __init__(self) -> None:
        self._splitter = EventSplitter()

    @property
    def remainder(self) -> bytes:
        """What was fed and is no whole event yet."""
        return self._splitter.remainder

    def feed(self, data: bytes) -> Iterable[bytes]:
        """The events that are whole now; joined with `rest` they are the bytes that were fed."""
        whole = self._splitter.feed(data)
        if whole.find(b"\n\n") == len(whole) - 2 and b"\r" not in whole:
            return (whole,)  # nearly all reads: one event
        return split_events(whole)


def parse_event(event: bytes) -> dict[str, Any] | None:
    """The data of an event as an object, None if it is none; its numbers keep all their digits."""
    try:
        value = json.loads(extract_data(event) or b"null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def parse_event_fast(event: bytes) -> dict[str, Any] | None:
    """As `parsed`, several times as fast: whole numbers beyond 64 bits lose digits.

    For what is only looked at. What is written again is to be `parsed`.
    """
    try:
        value = orjson.loads(extract_data(event) or b"null")
    except ValueError:  # NaN, half of a surrogate pair: servers write what is no JSON
        return parse_event(event)
    return value if isinstance(value, dict) else None


def encode_event(value: Mapping[str, Any], *, include_name: bool = False) -> bytes:
    """An event of an object; ``named`` puts its type in the event's name."""
    name = b"event: " + str(value["type"]).encode() + b"\n" if include_name else b""
    return name + b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


__all__ = ["EventReader", "encode_event", "extract_data", "parse_event", "parse_event_fast"]
