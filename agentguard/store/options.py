"""How a store behaves; checked once."""

from __future__ import annotations

import math
from dataclasses import dataclass

from agentguard.errors import ConfigError
from agentguard.store.db.engine import SynchronousMode


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options of `Store.open`. Raises ConfigError on one that is out of its range.

    Attributes:
        max_rows, max_bytes: how much may wait to be written; what comes on top of it is lost and counted.
        synchronous: SQLite only: with ``"normal"`` a power cut may lose the last rows, with ``"full"`` every
            group of rows waits for the disk. Claims of effects always do.
        lock_timeout_s: how long to wait for a lock that another process holds, before trying again later.
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
