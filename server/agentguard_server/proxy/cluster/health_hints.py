"""Health hints in a shared table: other proxies read the hints of one proxy within a second."""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast, get_args

from sqlalchemy import select

from agentguard.backends.health.peer_hints import MAX_HINT_S, Hint, ReplicaProblem
from agentguard.errors import AgentGuardError
from agentguard.store.db.row_mapping import to_row
from agentguard.store.db.rows import HealthHintRow
from agentguard.store.db.tables import HINTS

if TYPE_CHECKING:
    from agentguard.store.store import Store

_LOG = logging.getLogger(__name__)
_MAX_CLOCK_SKEW_S: Final = 120.0
"""Tolerated difference between the clocks of two machines."""
_PURGE_INTERVAL_S: Final = 300.0
_HINT_TTL_S: Final = 3600.0
_WARNING_INTERVAL_S: Final = 60.0
_TROUBLES: Final = frozenset(get_args(ReplicaProblem))

HintCallback = Callable[[Hint], None]


class SharedHealthHints:
    """`agentguard.backends.health.peer_hints.HintChannel` over a store that a thread polls.

    Args:
        store: database; open it with ``connect=False``.
        poll_interval_s: seconds between two polls.
        conversation_ttl_s: seconds from the last request of a conversation until the thread deletes it.
        machine: unique name of this process; by default host name and a random suffix.

    Attributes:
        failed_polls: number of polls that failed because the database was unavailable.
    """

    def __init__(
        self,
        store: Store,
        *,
        poll_interval_s: float = 1.0,
        conversation_ttl_s: float = 86_400.0,
        machine: str = "",
    ) -> None:
        self._store, self._poll_interval_s = store, poll_interval_s
        self._conversation_ttl_s = conversation_ttl_s
        self.machine = machine or f"{socket.gethostname()[:60]}-{secrets.token_hex(6)}"
        # The sequence starts at the current time, so that a restarted process of the same name continues it.
        self._sequence = itertools.count(time.time_ns() // 1_000_000)
        self._last_numbers: dict[tuple[str, str], int] = {}
        self._callbacks: list[HintCallback] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_event = threading.Event()
        self._thread: threading.Thread | None = None
        self._warned_at = float("-inf")
        self._purged_at = time.monotonic()
        self._has_polled = False
        self.failed_polls = 0

    def publish(self, hint: Hint) -> None:
        """Publish a hint. Never waits or raises; the store counts lost rows."""
        self._store.write(
            HealthHintRow(
                machine=self.machine,
                backend=hint.replica,
                trouble=hint.problem or "",
                seconds=min(max(hint.duration_s, 0.0), MAX_HINT_S),
                number=next(self._sequence),
            )
        )

    def subscribe(self, receive: HintCallback) -> None:
        """Register a callback for the hints of other proxies; `start` begins the calls."""
        self._callbacks.append(receive)

    def start(self) -> None:
        """Start the polling thread; it calls the subscribers in the running event loop."""
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="agentguard-hints", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float = 1.0) -> None:
        """Stop the polling thread."""
        self._stop_event.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._stop_event.wait(self._poll_interval_s):
            try:
                for hint in self._poll():
                    self._dispatch(hint)
                self._purge_expired()
            except AgentGuardError as error:
                self.failed_polls += 1
                if time.monotonic() - self._warned_at > _WARNING_INTERVAL_S:
                    self._warned_at = time.monotonic()
                    _LOG.warning("the health hints of other proxies cannot be read now: %s", error)

    def _poll(self) -> list[Hint]:
        """Return the hints of other proxies since the last poll. Raises StoreUnavailable."""
        recent = HINTS.c.updated_at > time.time() - _MAX_CLOCK_SKEW_S
        query = select(HINTS).where(HINTS.c.tenant == "", recent, HINTS.c.machine != self.machine)
        with self._store.begin_read() as connection:
            rows = [
                to_row(HealthHintRow, one)
                for one in connection.execute(query.order_by(HINTS.c.number)).mappings()
            ]
        new = [row for row in rows if row.number > self._last_numbers.get((row.machine, row.backend), -1)]
        self._last_numbers = {(row.machine, row.backend): row.number for row in rows}
        first, self._has_polled = not self._has_polled, True
        # A hint from before the start of this process applies only for the rest of its duration.
        hints = [_to_hint(row, now=time.time() if first else None) for row in new]
        return [hint for hint in hints if hint is not None]

    def _dispatch(self, hint: Hint) -> None:
        for receive in self._callbacks:
            try:
                assert self._loop is not None  # for mypy: `start` sets it
                self._loop.call_soon_threadsafe(receive, hint)
            except RuntimeError:  # the loop is closed
                self._stop_event.set()

    def _purge_expired(self) -> None:
        if time.monotonic() - self._purged_at > _PURGE_INTERVAL_S:
            self._purged_at = time.monotonic()
            self._store.delete_expired_shared_state(
                session_ttl_s=self._conversation_ttl_s, hint_ttl_s=_HINT_TTL_S
            )


def _to_hint(row: HealthHintRow, *, now: float | None) -> Hint | None:
    """Convert a row into a hint; return None if it has expired or its problem is unknown."""
    if row.trouble and row.trouble not in _TROUBLES:
        return None
    seconds = row.seconds if now is None else row.updated_at + row.seconds - now
    if row.trouble and seconds <= 0:
        return None
    trouble = cast(ReplicaProblem, row.trouble) if row.trouble else None
    return Hint(replica=row.backend, problem=trouble, duration_s=min(max(seconds, 0.0), MAX_HINT_S))
