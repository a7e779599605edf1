"""Return of free heap memory to the operating system."""

from __future__ import annotations

import asyncio
import ctypes
from collections.abc import Callable
from typing import Final

_INTERVAL_S: Final = 5.0
"""Time between two trims; a trim takes about a millisecond of processor time."""


async def trim_heap_periodically() -> None:
    """Return free heap pages to the operating system at intervals, until the task is cancelled.

    The C library keeps freed memory between memory that is in use: after requests of 200 KB, a third of the
    collector's heap. Only glibc has a function for this; with another C library the call returns at once.
    """
    trim = _find_trim_function()
    while trim is not None:
        await asyncio.sleep(_INTERVAL_S)
        await asyncio.to_thread(trim, 0)  # ctypes releases the lock of the interpreter


def _find_trim_function() -> Callable[[int], int] | None:
    try:
        return ctypes.CDLL(None).malloc_trim
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return None
