"""Delta encoding of a byte string relative to a base: copies from the base, and literals.

The state of a run changes little from turn to turn: text is appended, a few fields change. The encoder
searches equal ranges as in rdiff (Tridgell 1999). It searches forward from the last difference and uses short
anchors, since ``bytes`` compares and searches slices at the speed of memory. A rolling hash would be slow in
Python. Ranges that are not found become literals, so the delta is larger, but always correct.
"""

from __future__ import annotations

import struct

from agentguard.errors import RecoveryError

_COPY_HEADER = struct.Struct(">III")
"""Header of an operation: length of the literal, offset of the copy in the base, length of the copy."""
_DAMAGED_MESSAGE = "a saved state is damaged: its delta does not fit its base"
_BLOCK_BYTES = 1 << 16
_ANCHOR_BYTES = 24
_SKIPS = (0, 16, 64, 256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18)
"""Distances after a difference at which anchors are tried; the largest bounds the length of a difference."""
_SEARCH_WINDOW = 1 << 16
_MAX_SEARCHES = 512


def encode_delta(base: bytes, new: bytes) -> bytes:
    """Encode the delta from which `apply_delta` builds ``new`` out of ``base``."""
    made = bytearray()
    literal = at = read = searches = 0
    while at < len(new):
        equal = _count_equal_bytes(base, read, new, at)
        if equal >= _ANCHOR_BYTES or at + equal == len(new):
            _append_operation(made, new[literal:at], read, equal)
            at, read = at + equal, read + equal
            literal = at
        if at >= len(new) or searches >= _MAX_SEARCHES:
            break
        found = _find_next_match(base, read, new, at)
        searches += len(_SKIPS)
        if found is None:
            break
        at, read = found
    _append_operation(made, new[literal:], 0, 0)
    return bytes(made)


def apply_delta(base: bytes, encoded: bytes) -> bytes:
    """Decode a delta. Raises RecoveryError if it does not fit ``base``."""
    parts: list[bytes] = []
    place = 0
    while place < len(encoded):
        if place + _COPY_HEADER.size > len(encoded):
            raise RecoveryError(_DAMAGED_MESSAGE)
        literal, start, length = _COPY_HEADER.unpack_from(encoded, place)
        place += _COPY_HEADER.size + literal
        if place > len(encoded) or start + length > len(base):
            raise RecoveryError(_DAMAGED_MESSAGE)
        parts += (encoded[place - literal : place], base[start : start + length])
    return b"".join(parts)


def _find_next_match(base: bytes, read: int, new: bytes, at: int) -> tuple[int, int] | None:
    """Return the offsets at which the two are equal again after a difference at ``at`` and ``read``."""
    for skip in _SKIPS:
        anchor = new[at + skip : at + skip + _ANCHOR_BYTES]
        if len(anchor) < _ANCHOR_BYTES:
            return None
        found = base.find(anchor, read, read + _SEARCH_WINDOW + 2 * skip)
        if found >= 0:
            back = _common_suffix_length(base[read:found], new[at : at + skip])
            return at + skip - back, found - back
    return None


def _count_equal_bytes(base: bytes, read: int, new: bytes, at: int) -> int:
    """Count the equal bytes from ``read`` in ``base`` and ``at`` in ``new``."""
    begin = at
    while at < len(new) and read < len(base):
        if new[at : at + _BLOCK_BYTES] != base[read : read + _BLOCK_BYTES]:
            return (
                at
                - begin
                + _common_prefix_length(base[read : read + _BLOCK_BYTES], new[at : at + _BLOCK_BYTES])
            )
        size = min(_BLOCK_BYTES, len(new) - at)
        at, read = at + size, read + size
    return at - begin


def _common_prefix_length(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_suffix_length(one: bytes, other: bytes) -> int:
    """Return the length of the common suffix."""
    return _common_prefix_length(one[::-1], other[::-1])


def _append_operation(encoded: bytearray, literal: bytes, start: int, length: int) -> None:
    if literal or length:
        encoded += _COPY_HEADER.pack(len(literal), start, length)
        encoded += literal
