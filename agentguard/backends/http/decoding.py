"""What a whole body is once its coding is off, and whether one without a length can be told to be whole."""

from __future__ import annotations

import zlib

import msgspec

from agentguard.backends.base import Headers

_WINDOW = {b"gzip": 31, b"x-gzip": 31, b"deflate": 15}


def decoded(body: bytes, coding: bytes, *, most: int) -> bytes | None:
    """Take off a coding that was not asked for; None if it is another, broken, or hides more than ``most``.

    The bound is on what comes out, and it holds while decoding (CVE-2025-48956 and its like).
    """
    window = _WINDOW.get(coding)
    if window is None:
        return None
    decoder = zlib.decompressobj(window)
    try:
        data = decoder.decompress(body, most + 1)
    except zlib.error:
        return None
    return data if decoder.eof and len(data) <= most and not decoder.unused_data else None


def without(headers: Headers, name: bytes) -> Headers:
    """Headers without those of a name."""
    return tuple(field for field in headers if field[0] != name)


def self_contained(body: bytes) -> bool:
    """Whether a body shows by itself that nothing is missing: it is one JSON object or array."""
    if body.lstrip()[:1] not in (b"{", b"["):
        return False
    try:
        msgspec.json.decode(body, type=msgspec.Raw)
    except (msgspec.MsgspecError, RecursionError):
        return False
    return True
