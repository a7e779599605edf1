"""Snapshots of one run: dense at its end, sparse further back, bounded in bytes.

The snapshots of the current branch are numbered from 0. Let *h* be the number of the latest one, and ``2**v``
the largest power of two that divides *i*. Number *i* is kept as long as ``h - i < dense * 2**v``. Number 0 is
always kept.

- At most about ``dense / 2 * log2(h)`` snapshots are kept.
- For a target *a* snapshots before the latest, there is a snapshot at or before it. The
  distance between them is at most ``a // (dense - 1)``, rounded up to a power of two.
- A rollback does not restore dropped snapshots: the bound uses the largest *a* that the target has had.

Each snapshot is compressed (zlib, RFC 1950), most of them as a delta of an earlier full snapshot. A delta
depends only on one full snapshot, which is kept as long as a delta needs it.
"""

from __future__ import annotations

import bisect
import secrets
import struct
import threading
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentguard.errors import ConfigError, RecoveryError

MAX_STATE_BYTES = 256 * 1024 * 1024
"""Bytes of one state before compression; larger ones are refused."""
_FULL_SNAPSHOT_INTERVAL = 16
"""Number of snapshots per full one. It is a power of two, so that full snapshots are dropped last."""
_MIN_DELTA_BYTES = 4096
"""Size of a state in bytes below which a delta costs more time than it saves memory."""
_COMPRESSION_LEVEL = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotFrame:
    """Snapshot of a state.

    Attributes:
        step: number of steps on the current branch at the time of the snapshot.
        sequence_number: number of earlier snapshots on its branch.
        forks: number of abandoned branches at that time; it shows whether the snapshot is on the current
            branch of a stored run.
        id: identifier by which a delta refers to its base.
        base: step and id of the full snapshot that is the base of a delta; None for a full snapshot.
        blob: compressed bytes.
        size: size of the state in bytes.
    """

    step: int
    sequence_number: int
    forks: int = 0
    id: str
    base: tuple[int, str] | None = None
    blob: bytes
    size: int


class SnapshotSink(Protocol):
    """Receiver of the changes of a history; it writes them in the background."""

    def write(self, frame: SnapshotFrame | None, dropped_steps: Sequence[int]) -> bool:
        """Write a new snapshot and drop those of the given steps without waiting.

        Returns:
            False if the snapshot was lost.
        """
        ...


class SnapshotHistory:
    """Snapshots of one run by step; thread-safe.

    Args:
        max_bytes: memory limit of the compressed states and the uncompressed latest full state.
        dense_count: number of latest snapshots that are all kept; at least 2.
        sink: receiver of the changes.

    Raises:
        ConfigError: a limit is out of its range.
    """

    def __init__(
        self, *, max_bytes: int = 32 * 1024 * 1024, dense_count: int = 8, sink: SnapshotSink | None = None
    ) -> None:
        if max_bytes < 1 or dense_count < 2:
            raise ConfigError("snapshots: expected max_bytes of at least 1 and dense_count of at least 2")
        self._max_bytes, self._dense_count, self._sink = max_bytes, dense_count, sink
        self._lock = threading.Lock()
        self._frames: dict[int, SnapshotFrame] = {}
        self._compressed_bytes = 0
        self._base_state: tuple[int, str, bytes] | None = None
        self.rejected_count = 0
        """Number of snapshots that exceeded a limit or that the sink lost."""

    @property
    def steps(self) -> tuple[int, ...]:
        """Steps that can be restored, the earliest first."""
        with self._lock:
            return tuple(self._frames)

    @property
    def first_step(self) -> int | None:
        """Step of the snapshot with number 0; None if it is not kept."""
        with self._lock:
            return next((step for step, frame in self._frames.items() if frame.sequence_number == 0), None)

    @property
    def latest_step(self) -> int | None:
        """Last step that can be restored; None without a snapshot."""
        with self._lock:
            return next(reversed(self._frames), None)

    @property
    def size_bytes(self) -> int:
        """Number of bytes in memory."""
        with self._lock:
            return self._count_bytes()

    def put(self, step: int, raw: bytes, *, forks: int = 0) -> bool:
        """Add the state of the run after ``step`` steps; replace the snapshots of this and later steps.

        Returns:
            True if the snapshot was kept, False if the state exceeds a limit.
        """
        with self._lock:
            dropped = self._truncate(step)
            frame = self._build_frame(step, raw, forks) if len(raw) <= MAX_STATE_BYTES else None
            if frame is not None:
                self._frames[step] = frame
                self._compressed_bytes += len(frame.blob)
                dropped += self._thin()
            is_kept = step in self._frames
            self.rejected_count += not is_kept
            self._notify_sink(frame if is_kept else None, [one for one in dropped if one not in self._frames])
            return is_kept

    def get(self, step: int) -> bytes:
        """Return the state of a step. Raises RecoveryError if there is no snapshot or it is damaged."""
        with self._lock:
            frame = self._frames.get(step)
            if frame is None:
                raise RecoveryError(f"there is no saved state before step {step}")
            raw = _decompress(frame)
            if frame.base is None:
                return raw
            base = self._frames.get(frame.base[0])
            if base is None or base.id != frame.base[1]:
                raise RecoveryError(f"the state before step {step} is damaged: its base is missing")
            return apply_delta(_decompress(base), raw)

    def find_nearest(self, step: int) -> int | None:
        """Return the latest restorable step at or before ``step``; None without such a step."""
        with self._lock:
            steps = list(self._frames)
            place = bisect.bisect_right(steps, step)
            return steps[place - 1] if place else None

    def truncate(self, step: int) -> None:
        """Drop the snapshots from ``step`` on, after a rollback to this step."""
        with self._lock:
            self._notify_sink(None, self._truncate(step))

    def load(self, frames: Iterable[SnapshotFrame]) -> None:
        """Load stored snapshots; skip those whose base is missing."""
        with self._lock:
            loaded = {frame.step: frame for frame in sorted(frames, key=lambda frame: frame.step)}
            dropped = [step for step, frame in loaded.items() if not _is_usable(frame, loaded)]
            self._frames = {step: frame for step, frame in loaded.items() if step not in dropped}
            self._compressed_bytes = sum(len(frame.blob) for frame in self._frames.values())
            self._base_state = None
            self._notify_sink(None, dropped + self._thin())

    def _build_frame(self, step: int, raw: bytes, forks: int) -> SnapshotFrame:
        """Build a delta of the last full snapshot, or a full one if the delta is more than half as large."""
        frame_id, number, full_state = secrets.token_hex(8), self._get_head_number() + 1, self._base_state
        blob = base = None
        if full_state is not None and number % _FULL_SNAPSHOT_INTERVAL and len(raw) >= _MIN_DELTA_BYTES:
            blob, base = zlib.compress(encode_delta(full_state[2], raw), _COMPRESSION_LEVEL), full_state[:2]
        if blob is None or full_state is None or len(blob) * 2 > len(self._frames[full_state[0]].blob):
            self._base_state = (step, frame_id, raw)
            blob, base = zlib.compress(raw, _COMPRESSION_LEVEL), None
        return SnapshotFrame(
            step=step, sequence_number=number, forks=forks, id=frame_id, base=base, blob=blob, size=len(raw)
        )

    def _get_head_number(self) -> int:
        return next((frame.sequence_number for frame in reversed(self._frames.values())), -1)

    def _truncate(self, step: int) -> list[int]:
        if not self._frames or next(reversed(self._frames)) < step:
            return []
        dropped = [one for one in self._frames if one >= step]
        self._drop(dropped)
        return dropped

    def _drop(self, steps: Iterable[int]) -> None:
        for step in steps:
            self._compressed_bytes -= len(self._frames.pop(step).blob)
            if self._base_state is not None and self._base_state[0] == step:
                self._base_state = None

    def _thin(self) -> list[int]:
        """Drop snapshots by the retention rule; halve its dense part until the memory limit is met."""
        dropped: list[int] = []
        dense = self._dense_count
        while True:
            dropped += self._thin_once(dense)
            if self._count_bytes() <= self._max_bytes or dense == 1:
                break
            dense //= 2
        while self._frames and self._count_bytes() > self._max_bytes:
            dropped += self._evict()
        return dropped

    def _thin_once(self, dense: int) -> list[int]:
        head = self._get_head_number()
        dropped = {
            step
            for step, frame in self._frames.items()
            if not _is_retained(frame.sequence_number, head, dense)
        }
        if dropped:
            dropped -= {
                frame.base[0] for step, frame in self._frames.items() if step not in dropped and frame.base
            }
            self._drop(dropped)
        return sorted(dropped)

    def _evict(self) -> list[int]:
        """Drop the uncompressed state if there is one, otherwise the second snapshot, or the first of two."""
        if self._base_state is not None:
            self._base_state = None
            return []
        steps = list(self._frames)
        dropped = steps[1] if len(steps) > 2 else steps[0]
        dependents = [step for step, frame in self._frames.items() if frame.base and frame.base[0] == dropped]
        self._drop([dropped, *dependents])
        return [dropped, *dependents]

    def _count_bytes(self) -> int:
        return self._compressed_bytes + (len(self._base_state[2]) if self._base_state is not None else 0)

    def _notify_sink(self, frame: SnapshotFrame | None, dropped_steps: list[int]) -> None:
        if self._sink is None or (frame is None and not dropped_steps):
            return
        if not self._sink.write(frame, sorted(set(dropped_steps))) and frame is not None:
            self.rejected_count += 1
            self._base_state = None  # a stored delta must not depend on a base that is not stored


def _is_retained(number: int, head: int, dense: int) -> bool:
    return number == 0 or head - number < dense * (number & -number)


def _is_usable(frame: SnapshotFrame, frames: dict[int, SnapshotFrame]) -> bool:
    if frame.base is None:
        return True
    base = frames.get(frame.base[0])
    return base is not None and base.base is None and base.id == frame.base[1]


def _decompress(frame: SnapshotFrame) -> bytes:
    """Return the bytes of a snapshot; a size limit protects against decompression bombs."""
    stream = zlib.decompressobj()
    try:
        raw = stream.decompress(frame.blob, MAX_STATE_BYTES + (1 << 20))
    except zlib.error:
        raise RecoveryError(f"the state before step {frame.step} is damaged") from None
    if not stream.eof:
        raise RecoveryError(f"the state before step {frame.step} is damaged or too large")
    return raw


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
    """Return the delta from which `apply_delta` builds ``new`` out of ``base``."""
    encoded = bytearray()
    literal = at = read = searches = 0
    while at < len(new):
        equal = _count_equal_bytes(base, read, new, at)
        if equal >= _ANCHOR_BYTES or at + equal == len(new):
            _append_operation(encoded, new[literal:at], read, equal)
            at, read = at + equal, read + equal
            literal = at
        if at >= len(new) or searches >= _MAX_SEARCHES:
            break
        found = _find_next_match(base, read, new, at)
        searches += len(_SKIPS)
        if found is None:
            break
        at, read = found
    _append_operation(encoded, new[literal:], 0, 0)
    return bytes(encoded)


def apply_delta(base: bytes, encoded: bytes) -> bytes:
    """Return the bytes that a delta builds out of ``base``. Raises RecoveryError if it does not fit."""
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
    """Return the offsets in ``new`` and ``base`` at which they are equal again, if there are any."""
    for skip in _SKIPS:
        anchor = new[at + skip : at + skip + _ANCHOR_BYTES]
        if len(anchor) < _ANCHOR_BYTES:
            return None
        found = base.find(anchor, read, read + _SEARCH_WINDOW + 2 * skip)
        if found >= 0:
            back = _count_common_suffix(base[read:found], new[at : at + skip])
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
                + _count_common_prefix(base[read : read + _BLOCK_BYTES], new[at : at + _BLOCK_BYTES])
            )
        size = min(_BLOCK_BYTES, len(new) - at)
        at, read = at + size, read + size
    return at - begin


def _count_common_prefix(one: bytes, other: bytes) -> int:
    """Return the length of the common prefix."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _count_common_suffix(one: bytes, other: bytes) -> int:
    """Return the length of the common suffix."""
    return _count_common_prefix(one[::-1], other[::-1])


def _append_operation(encoded: bytearray, literal: bytes, start: int, length: int) -> None:
    if literal or length:
        encoded += _COPY_HEADER.pack(len(literal), start, length)
        encoded += literal
