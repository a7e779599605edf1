"""One byte string as what differs from another: copies from the base, and literals.

States of a run change little from turn to turn: text is appended, a few fields change. Equal runs are looked
for as in rdiff (Tridgell 1999), but from the last difference onwards and by short anchors, in slices that
``bytes`` compares and searches at the speed of memory; a rolling hash would be slow in Python. What is not
found is a literal: the delta is larger then, never wrong.
"""

from __future__ import annotations

import struct

from agentguard.errors import RecoveryError

_COPY_HEADER = struct.Struct(">III")
"""Before each literal: its length, then where the copy behind it begins in the base, and its length."""
_DAMAGED_MESSAGE = "a saved state is damaged: its delta does not fit its base"
_BLOCK_BYTES = 1 << 16
_ANCHOR_BYTES = 24
_SKIPS = (0, 16, 64, 256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18)
"""How far behind a difference an anchor is taken: a difference is at most that long, and less is wasted."""
_SEARCH_WINDOW = 1 << 16
_MAX_SEARCHES = 512


def encode_delta(base: bytes, new: bytes) -> bytes:
    """What turns ``base`` into ``new``, by `patched`."""
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
    """The bytes that a `delta` was made for. Raises RecoveryError on one that does not belong to ``base``."""
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
    """Where the two are equal again, looked for behind a difference at ``at`` and ``read``."""
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
    """How many bytes are equal from there on."""
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
    """Length of the common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_suffix_length(one: bytes, other: bytes) -> int:
    """Length of the common end."""
    return _common_prefix_length(one[::-1], other[::-1])


def _append_operation(encoded: bytearray, literal: bytes, start: int, length: int) -> None:
    if literal or length:
        encoded += _COPY_HEADER.pack(len(literal), start, length)
        encoded += literal
