"""Queue of the frames that the collector has received and not handled."""

from __future__ import annotations

import zlib
from collections import deque
from typing import Final, Generic, TypeVar

Sender = TypeVar("Sender")

_MAX_PLAIN_BYTES: Final = 1024 * 1024
"""Size of the queue from which further frames are compressed: under normal load none is."""

_LEVEL: Final = 1
"""Level of the compression: 1 ms for a frame of 256 KB, which shrinks to a tenth or less if it is text."""


class FrameQueue(Generic[Sender]):
    """FIFO queue of frames with their senders, in memory and bounded by its size.

    Args:
        max_bytes: size from which `is_full` is true, after compression.
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._size_bytes = max_bytes, 0
        self._entries: deque[tuple[Sender, bytes, bool]] = deque()

    def __len__(self) -> int:
        """Return the number of queued frames."""
        return len(self._entries)

    @property
    def is_full(self) -> bool:
        """Return True if senders must wait."""
        return self._size_bytes >= self._max_bytes

    def put(self, sender: Sender, frame: bytes) -> None:
        """Add a frame, also if the queue is full."""
        is_compressed = self._size_bytes + len(frame) > _MAX_PLAIN_BYTES
        data = zlib.compress(frame, _LEVEL) if is_compressed else frame
        self._entries.append((sender, data, is_compressed))
        self._size_bytes += len(data)

    def pop(self) -> tuple[Sender, bytes]:
        """Remove and return the first frame with its sender. Raises IndexError if the queue is empty."""
        sender, data, is_compressed = self._entries.popleft()
        self._size_bytes -= len(data)
        return sender, zlib.decompress(data) if is_compressed else data
