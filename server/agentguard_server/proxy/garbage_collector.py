"""Settings of Python's garbage collector for the processes of the proxy."""

from __future__ import annotations

import gc
from typing import Final

_GC_THRESHOLD: Final = 20_000
"""New objects between two collections: some tens of requests, which create few reference cycles."""


def tune_garbage_collector(threshold: int = _GC_THRESHOLD) -> None:
    """Collect garbage less often, and exclude the objects that exist now, since the process keeps them.

    Args:
        threshold: number of new objects between two collections.
    """
    gc.collect()
    gc.freeze()
    gc.enable()  # the command may have disabled it during the imports
    gc.set_threshold(threshold, 10, 5)  # at most 50 thresholds of objects in cycles remain uncollected
