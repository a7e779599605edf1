"""Splitting of byte streams into server-sent events (WHATWG HTML, 9.2).

Events stay bytes, each with the blank line that ends it; joined again, they equal the input. Lines may end
in LF, CRLF or CR. `agentguard.model_api` interprets the events.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import orjson

EVENT_END = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
"""End of an event: two consecutive line ends."""
LINE_END = re.compile(rb"\r\n|\n|\r")


class EventSplitter:
    """Splitter that returns the complete events as one piece of bytes; it scans each input byte only once."""

    __slots__ = ("_pieces", "_tail", "remainder_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._tail = b""
        self.remainder_size = 0

    @property
    def remainder(self) -> bytes:
        """Input that is not a complete event yet; `remainder_size` is its length."""
        return b"".join(self._pieces)

    def feed(self, data: bytes) -> bytes:
        """Add bytes; return the events that are complete now, possibly none."""
        if not self._pieces and data.endswith(b"\n\n"):
            return data  # the common case: complete events
        window = self._tail + data
        end = _find_last_event_end(window)
        if end == 0:
            self._pieces.append(data)
            self._tail = window[-3:]  # the longest incomplete event end is \r\n\r
            self.remainder_size += len(data)
            return b""
        buffered_data = b"".join([*self._pieces, data])
        split_at = len(buffered_data) - len(window) + end
        rest = buffered_data[split_at:]
        self._pieces, self._tail, self.remainder_size = [rest] if rest else [], rest[-3:], len(rest)
        return buffered_data[:split_at]


def _find_last_event_end(data: bytes) -> int:
    """Return the end of the last complete event, or 0."""
    if b"\r" not in data:
        end = data.rfind(b"\n\n")
        return end + 2 if end >= 0 else 0
    last_end = 0
    for match in EVENT_END.finditer(data):
        last_end = match.end()
    return last_end


def split_events(chunk: bytes) -> Iterator[bytes]:
    """Yield the events of a chunk, each with its blank line; an incomplete event comes last."""
    if b"\r" not in chunk:  # many times faster than the regular expression
        *events, rest = chunk.split(b"\n\n")
        for event in events:
            yield event + b"\n\n"
    else:
        begin = 0
        for match in EVENT_END.finditer(chunk):
            yield chunk[begin : match.end()]
            begin = match.end()
        rest = chunk[begin:]
    if rest:
        yield rest


def extract_data(event: bytes) -> bytes | None:
    """Return the data of an event; None if it has no data, such as a comment."""
    if event.startswith(b"data:") and event.find(b"\n") == len(event) - 2 and b"\r" not in event:
        return event[6:-2] if event.startswith(b"data: ") else event[5:-2]
    lines = [line[5:].removeprefix(b" ") for line in LINE_END.split(event) if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


class EventReader:
    """`EventSplitter` that returns the complete events one by one, each with its blank line."""

    def __init__(self) -> None:
        self._splitter = EventSplitter()

    @property
    def remainder(self) -> bytes:
        """Input that is not a complete event yet."""
        return self._splitter.remainder

    def feed(self, data: bytes) -> Iterable[bytes]:
        """Return the events that are complete now; with `remainder`, they equal the input."""
        events = self._splitter.feed(data)
        if events.find(b"\n\n") == len(events) - 2 and b"\r" not in events:
            return (events,)  # the common case: one event
        return split_events(events)


def parse_event(event: bytes) -> dict[str, Any] | None:
    """Return the data of an event as an object, or None if it is not an object; numbers keep all digits."""
    try:
        value = json.loads(extract_data(event) or b"null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def parse_event_fast(event: bytes) -> dict[str, Any] | None:
    """Like `parse_event`, but several times faster; integers beyond 64 bits lose digits.

    Use it only for events that are inspected. Use `parse_event` for events that are written again.
    """
    try:
        value = orjson.loads(extract_data(event) or b"null")
    except ValueError:  # NaN, half of a surrogate pair: some servers write invalid JSON
        return parse_event(event)
    return value if isinstance(value, dict) else None


def parse_payloads(chunks: bytes) -> list[Any]:
    """Return the JSON of each event with data. Raises ValueError if the data of an event is not JSON."""
    payloads = (extract_data(event) for event in split_events(chunks))
    return [orjson.loads(data) for data in payloads if data is not None and data != b"[DONE]"]


def encode_event(value: Mapping[str, Any], *, include_name: bool = False) -> bytes:
    """Return an event for an object; ``include_name`` adds its type as event name."""
    name = b"event: " + str(value["type"]).encode() + b"\n" if include_name else b""
    return name + b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
