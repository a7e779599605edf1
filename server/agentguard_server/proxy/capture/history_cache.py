"""Cache of decoded histories: if a request extends a known history, only the new part is decoded.

A client sends its whole history in each request. The cache compares the bytes of a request with an earlier
request of the same client, up to the end of its last message. If they are equal, it decodes only the bytes
after them. The result equals that of a complete decoding.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from agentguard_server.proxy.guard.inline_guarded_request import decode_body

Scope = tuple[str, ...]
"""Tenant, API and run ID of a request; histories of different scopes are not compared."""

_MAX_TOTAL_BYTES: Final = 6 * 1024 * 1024
_MESSAGE_BYTES: Final = 700
"""Memory of a decoded message and its key, without the text."""

_MIN_BYTES: Final = 2048
"""Size of the smallest body for which the cache takes less time than a complete decoding."""

_SAMPLE_BYTES: Final = 4096
"""Bytes at both ends of a history that are part of its key; messages differ near one of them."""

_MAX_TRIED_ENDS: Final = 64
_HISTORY_FIELD: Final = b'"messages"'
_ANSWER_MARK: Final = b'"assistant"'
_SYNTHETIC_HEAD: Final = b'{"messages":[0'
"""Replacement for the known bytes: the decoder is then in the same state as after the last known message."""


class _Envelope(msgspec.Struct):
    messages: msgspec.Raw


_decode_envelope: Final = msgspec.json.Decoder(_Envelope).decode
_decode: Final = msgspec.json.Decoder().decode


@dataclass(frozen=True, slots=True)
class DecodedRequest:
    """Decoded body of a request.

    Attributes:
        body: the body.
        known_keys: keys of the known history's prefixes (`agentguard.intercept.conversation`); empty if the
            history is not known.
        end: number of bytes up to the end of the last message; 0 if the history cannot be cached.
        head: fields before the messages.
    """

    body: dict[str, Any]
    known_keys: Sequence[bytes]
    end: int
    head: dict[str, Any]


@dataclass(frozen=True, slots=True)
class _History:
    """Bytes of a request up to the end of its last message, and their decoded form."""

    prefix: bytes
    head: dict[str, Any]
    messages: list[Any]
    keys: Sequence[bytes]
    size_bytes: int


_Key = tuple[Scope, int, int, int]


class HistoryCache:
    """LRU cache of histories, bounded by their estimated memory. Short requests are not cached."""

    def __init__(self, max_total_bytes: int = _MAX_TOTAL_BYTES, *, min_bytes: int = _MIN_BYTES) -> None:
        self._max_total_bytes, self._min_bytes, self._total_bytes = max_total_bytes, min_bytes, 0
        self._histories: OrderedDict[_Key, _History] = OrderedDict()
        self._known_ends: Counter[int] = Counter()

    def decode(self, scope: Scope, raw: bytes) -> DecodedRequest | None:
        """Decode a body; return None if it is not a JSON object. A history is used at most once."""
        is_short = len(raw) < self._min_bytes
        history = None if is_short else self._pop_prefix(scope, raw)
        if history is not None and (request := _decode_extension(history, raw)) is not None:
            return request
        body = decode_body(raw)
        if body is None:
            return None
        return DecodedRequest(body, (), *((0, {}) if is_short else _locate_history(raw)))

    def store(self, scope: Scope, raw: bytes, request: DecodedRequest, keys: Sequence[bytes]) -> None:
        """Store the history of a decoded body with the keys of its prefixes."""
        if not request.end:
            return
        messages = request.body["messages"]
        size_bytes = 2 * request.end + _MESSAGE_BYTES * len(messages)  # the bytes, and what they decode to
        history = _History(raw[: request.end], request.head, messages, keys, size_bytes)
        key = _build_key(scope, history.prefix, request.end)
        self._remove(key)
        self._histories[key] = history
        self._total_bytes += history.size_bytes
        self._known_ends[request.end] += 1
        while self._total_bytes > self._max_total_bytes:
            self._remove(next(iter(self._histories)))

    def _pop_prefix(self, scope: Scope, raw: bytes) -> _History | None:
        """Remove and return the longest known history that the body extends, searching backwards."""
        place = raw.rfind(_ANSWER_MARK)
        for _ in range(_MAX_TRIED_ENDS):
            place = raw.rfind(b"}", 0, max(0, place))
            if place < 0:
                return None
            if place + 1 in self._known_ends:
                key = _build_key(scope, raw, place + 1)
                history = self._histories.get(key)
                if history is not None and raw.startswith(history.prefix):
                    self._remove(key)
                    return history
        return None

    def _remove(self, key: _Key) -> None:
        history = self._histories.pop(key, None)
        if history is None:
            return
        end = len(history.prefix)
        self._total_bytes -= history.size_bytes
        self._known_ends[end] -= 1
        if not self._known_ends[end]:
            del self._known_ends[end]


def _build_key(scope: Scope, raw: bytes, end: int) -> _Key:
    first, last = raw[: min(end, _SAMPLE_BYTES)], raw[max(0, end - _SAMPLE_BYTES) : end]
    return scope, end, hash(first), hash(last)


def _decode_extension(history: _History, raw: bytes) -> DecodedRequest | None:
    """Decode the bytes after a known history; return None if the body needs a complete decoding."""
    end = len(history.prefix)
    text = _SYNTHETIC_HEAD + raw[end:]
    try:
        fields, messages = _decode(text), bytes(_decode_envelope(text).messages)
    except (ValueError, RecursionError):
        return None
    # A second field of the same name would replace the history.
    if text.count(_HISTORY_FIELD) != 1 or not text.startswith(messages, len(_HISTORY_FIELD) + 2):
        return None
    body = {**history.head, **fields, "messages": [*history.messages, *fields["messages"][1:]]}
    new_end = end + len(messages[:-1].rstrip()) - len("[0")
    return DecodedRequest(body, history.keys, new_end, history.head)


def _locate_history(raw: bytes) -> tuple[int, dict[str, Any]]:
    """Return the end of the last message and the fields before the messages; 0 if they are not unique."""
    if raw.count(_HISTORY_FIELD) != 1:
        return 0, {}
    try:
        messages = bytes(_decode_envelope(raw).messages)
        place = raw.find(messages)
        head = _decode(raw[:place] + b"0}")
    except (ValueError, RecursionError):
        return 0, {}
    if (
        head.pop("messages", None) != 0
        or not messages.startswith(b"[")
        or messages.strip(b"[ ]\n\t\r") == b""
    ):
        return 0, {}
    return place + len(messages[:-1].rstrip()), head
