"""Options of a store."""

from __future__ import annotations

from dataclasses import dataclass

from agentguard.options import Options, option
from agentguard.store.db.engine import SynchronousMode


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions(Options):
    """Options of `Store.open`. Raises ConfigError if a value is out of range.

    Attributes:
        max_rows, max_bytes: bounds of the write queue; rows beyond them are lost and counted.
        synchronous: SQLite only. With ``"normal"`` a power failure may lose the last commits; with ``"full"``
            every commit waits for the disk. Effect claims always use ``"full"``.
        lock_timeout_s: seconds to wait for a database lock that another process holds.
        max_commit_delay_s: longest wait in seconds of rows for more rows of the same commit. A waiting
            caller, or a queue that is half full, ends the wait.
    """

    max_rows: int = option(50_000, bounds=(1, 1_000_000_000))
    max_bytes: int = option(64 * 1024 * 1024, bounds=(1, 1 << 40))
    synchronous: SynchronousMode = option("normal", choices=("normal", "full"))
    lock_timeout_s: float = option(5.0, bounds=(0.0, 600.0))
    max_commit_delay_s: float = option(0.04, bounds=(0.0, 10.0))
