"""Options of a store."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentguard.errors import ConfigError
from agentguard.store.db.engine import SynchronousMode


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options of `Store.open`. Raises ConfigError if a value is out of range.

    Attributes:
        max_rows, max_bytes: bounds of the write queue; rows beyond them are lost and counted.
        synchronous: SQLite only. With ``"normal"`` a power failure may lose the last commits; with ``"full"``
            every commit waits for the disk. Effect claims always use ``"full"``.
        lock_timeout_s: seconds to wait for a database lock that another process holds.
    """

    max_rows: int = 50_000
    max_bytes: int = 64 * 1024 * 1024
    synchronous: SynchronousMode = "normal"
    lock_timeout_s: float = 5.0

    def __post_init__(self) -> None:
        if self.max_rows < 1 or self.max_bytes < 1:
            raise ConfigError("store: max_rows and max_bytes are at least 1")
        if self.synchronous not in ("normal", "full"):
            raise ConfigError("store: synchronous is normal or full")
        if not (math.isfinite(self.lock_timeout_s) and 0 <= self.lock_timeout_s <= 600):
            raise ConfigError("store: lock_timeout_s lies between 0 and 600 seconds")
