"""One byte string as what differs from another: copies from the base, and literals.

States of a run change little from turn to turn: text is appended, a few fields change. Equal runs are looked
for as in rdiff (Tridgell 1999), but from the last difference onwards and by short anchors, in slices that
``bytes`` compares and searches at the speed of memory; a rolling hash would be slow in Python. What is not
found is a literal: the delta is larger then, never wrong.
"""

from __future__ import annotations

import struct

from agentguard.errors import RecoveryError

_HEAD = struct.Struct(">III")
"""Before each literal: its length, then where the copy behind it begins in the base, and its length."""
_DAMAGED = "a saved state is damaged: its delta does not fit its base"
_BLOCK = 1 << 16
_ANCHOR = 24
_SKIPS = (0, 16, 64, 256, 1 << 10, 1 << 12, 1 << 14, 1 << 16, 1 << 18)
"""How far behind a difference an anchor is taken: a difference is at most that long, and less is wasted."""
_REACH = 1 << 16
_MOST_SEARCHES = 512


def delta(base: bytes, new: bytes) -> bytes:
    """What turns ``base`` into ``new``, by `patched`."""
    made = bytearray()
    literal = at = read = searches = 0
    while at < len(new):
        equal = _equal_from(base, read, new, at)
        if equal >= _ANCHOR or at + equal == len(new):
            _put(made, new[literal:at], read, equal)
            at, read = at + equal, read + equal
            literal = at
        if at >= len(new) or searches >= _MOST_SEARCHES:
            break
        found = _next_equal(base, read, new, at)
        searches += len(_SKIPS)
        if found is None:
            break
        at, read = found
    _put(made, new[literal:], 0, 0)
    return bytes(made)


def patched(base: bytes, made: bytes) -> bytes:
    """The bytes that a `delta` was made for. Raises RecoveryError on one that does not belong to ``base``."""
    parts: list[bytes] = []
    place = 0
    while place < len(made):
        if place + _HEAD.size > len(made):
            raise RecoveryError(_DAMAGED)
        literal, start, length = _HEAD.unpack_from(made, place)
        place += _HEAD.size + literal
        if place > len(made) or start + length > len(base):
            raise RecoveryError(_DAMAGED)
        parts += (made[place - literal : place], base[start : start + length])
    return b"".join(parts)


def _next_equal(base: bytes, read: int, new: bytes, at: int) -> tuple[int, int] | None:
    """Where the two are equal again, looked for behind a difference at ``at`` and ``read``."""
    for skip in _SKIPS:
        anchor = new[at + skip : at + skip + _ANCHOR]
        if len(anchor) < _ANCHOR:
            return None
        found = base.find(anchor, read, read + _REACH + 2 * skip)
        if found >= 0:
            back = _equal_before(base[read:found], new[at : at + skip])
            return at + skip - back, found - back
    return None


def _equal_from(base: bytes, read: int, new: bytes, at: int) -> int:
    """How many bytes are equal from there on."""
    begin = at
    while at < len(new) and read < len(base):
        if new[at : at + _BLOCK] != base[read : read + _BLOCK]:
            return at - begin + _common(base[read : read + _BLOCK], new[at : at + _BLOCK])
        size = min(_BLOCK, len(new) - at)
        at, read = at + size, read + size
    return at - begin


def _common(one: bytes, other: bytes) -> int:
    """Length of the common beginning."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _equal_before(one: bytes, other: bytes) -> int:
    """Length of the common end."""
    return _common(one[::-1], other[::-1])


def _put(made: bytearray, literal: bytes, start: int, length: int) -> None:
    if literal or length:
        made += _HEAD.pack(len(literal), start, length)
        made += literal
