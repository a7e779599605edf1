"""Settings of the C library's heap, and return of its free memory to the operating system."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

_INTERVAL_S: Final = 5.0
"""Time between two trims; a trim takes about a millisecond of processor time."""

# Parameters of glibc's mallopt(3).
_M_TRIM_THRESHOLD: Final = -1
_M_MMAP_THRESHOLD: Final = -3
_M_ARENA_MAX: Final = -8
_LARGE_BLOCK_BYTES: Final = 1024 * 1024
"""Blocks from this size on are returned when they are freed; smaller ones are reused."""


def configure_heap() -> None:
    """Limit the free memory that the heap keeps. Call it before the process has threads.

    By default, glibc gives each thread its own arena. When separately mapped blocks are freed, it raises the
    threshold for them, up to 32 MB. Both leave free memory between blocks in use.
    """
    configure = _find_function("mallopt")
    if configure is not None:
        configure(_M_ARENA_MAX, 1)  # threads seldom allocate at the same time: they need the GIL
        configure(_M_MMAP_THRESHOLD, _LARGE_BLOCK_BYTES)
        configure(_M_TRIM_THRESHOLD, _LARGE_BLOCK_BYTES)


async def trim_heap_periodically() -> None:
    """Return free heap pages to the operating system at intervals, until the task is cancelled.

    The C library keeps freed memory between memory that is in use: after requests of 200 KB, a third of the
    collector's heap. Only glibc has a function for this; with another C library the call returns at once.
    """
    trim = _find_function("malloc_trim")
    while trim is not None:
        await asyncio.sleep(_INTERVAL_S)
        await asyncio.to_thread(trim, 0)  # ctypes releases the lock of the interpreter


def _find_function(name: str) -> Callable[..., int] | None:
    """Return a function of the C library; None if it has no function of that name."""
    try:
        function: Callable[..., int] = getattr(ctypes.CDLL(None), name)
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return None
    return function
