"""Server-sent events: cut out of a stream of bytes, read, and written."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from agentguard.backends.sse import Cutter, data_of, events


class Events:
    """Cuts a stream of bytes into events, each with the blank line that ends it (WHATWG HTML, 9.2)."""

    def __init__(self) -> None:
        self._cutter = Cutter()

    @property
    def rest(self) -> bytes:
        """What was fed and is no whole event yet."""
        return self._cutter.rest

    def feed(self, data: bytes) -> Iterable[bytes]:
        """The events that are whole now; joined with `rest` they are the bytes that were fed."""
        whole = self._cutter.feed(data)
        if whole.find(b"\n\n") == len(whole) - 2 and b"\r" not in whole:
            return (whole,)  # nearly all reads: one event
        return events(whole)


def parsed(event: bytes) -> dict[str, Any] | None:
    """The data of an event as an object, None if it is none; its numbers keep all their digits."""
    try:
        value = json.loads(data_of(event) or b"null")
    except ValueError:
        return None
    return value if isinstance(value, dict) else None


def skimmed(event: bytes) -> dict[str, Any] | None:
    """As `parsed`, several times as fast: whole numbers beyond 64 bits lose digits.

    For what is only looked at. What is written again is to be `parsed`.
    """
    try:
        value = orjson.loads(data_of(event) or b"null")
    except ValueError:  # NaN, half of a surrogate pair: servers write what is no JSON
        return parsed(event)
    return value if isinstance(value, dict) else None


def event_bytes(value: Mapping[str, Any], *, named: bool = False) -> bytes:
    """An event of an object; ``named`` puts its type in the event's name."""
    name = b"event: " + str(value["type"]).encode() + b"\n" if named else b""
    return name + b"data: " + json.dumps(value, separators=(",", ":")).encode() + b"\n\n"


__all__ = ["Events", "data_of", "event_bytes", "parsed", "skimmed"]
