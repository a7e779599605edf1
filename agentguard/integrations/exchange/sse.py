"""Server-sent events: cut out of a stream of bytes, read, and written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BLANK = re.compile(rb"(?:\r\n|\n|\r(?!\n)){2}")
_LINES = re.compile(rb"\r\n|\n|\r")


class Events:
    """Cuts a stream of bytes into events, each with the blank line that ends it (WHATWG HTML, 9.2)."""

    def __init__(self) -> None:
        self.rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the events that are whole now; joined with `rest` they are the bytes that were fed."""
        begin = max(0, len(self.rest) - 3)
        self.rest += data
        while (found := _BLANK.search(self.rest, begin)) is not None:
            event, self.rest, begin = self.rest[: found.end()], self.rest[found.end() :], 0
            yield event


def data_of(event: bytes) -> bytes | None:
    """The data of an event; None if it has none, such as a comment."""
    lines = [line[5:].removeprefix(b" ") for line in _LINES.split(event) if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def parsed(event: bytes) -> dict[str, Any] | None:
    """The data of an event as an object; None if it is none."""
    try:
        value = json.loads(data_of(event) or b"null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def event_bytes(value: Mapping[str, Any], *, named: bool = False) -> bytes:
    """An event of an object; ``named`` puts its type in the event's name."""
    name = b"event: " + str(value["type"]).encode() + b"\n" if named else b""
    return name + b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"
