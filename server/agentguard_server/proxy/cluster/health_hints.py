"""Hints about replicas, carried by a table: what one proxy finds, the others hear within a second."""

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

from agentguard.backends.health.hints import LONGEST_S, Hint, Trouble
from agentguard.errors import AgentGuardError
from agentguard.store.db.row_mapping import to_row
from agentguard.store.db.rows import HintRow
from agentguard.store.db.tables import HINTS

if TYPE_CHECKING:
    from agentguard.store.store import Store

_LOG = logging.getLogger(__name__)
_SKEW_S: Final = 120.0
"""How far the clocks of two machines may be apart."""
_FORGET_EVERY_S: Final = 300.0
_KEPT_S: Final = 3600.0
_TOLD_S: Final = 60.0
_TROUBLES: Final = frozenset(get_args(Trouble))

Receive = Callable[[Hint], None]


class SharedHints:
    """`agentguard.backends.health.hints.Hints` over a store; a thread looks for what others say.

    Args:
        store: where; opened without waiting for the database.
        every_s: seconds between two looks.
        keep_s: seconds after which conversations that nobody goes on with are removed from it.
        machine: name of this process among the others; made up if absent.

    Attributes:
        failed: looks that could not be taken, as the database was away.
    """

    def __init__(
        self, store: Store, *, every_s: float = 1.0, keep_s: float = 86_400.0, machine: str = ""
    ) -> None:
        self._store, self._every_s, self._keep_s = store, every_s, keep_s
        self.machine = machine or f"{socket.gethostname()[:60]}-{secrets.token_hex(6)}"
        # Counted from the time, so that a process of the same name goes on above what it said before.
        self._numbers = itertools.count(time.time_ns() // 1_000_000)
        self._seen: dict[tuple[str, str], int] = {}
        self._receivers: list[Receive] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._end = threading.Event()
        self._thread: threading.Thread | None = None
        self._told = float("-inf")
        self._forgot = time.monotonic()
        self._looked = False
        self.failed = 0

    def publish(self, hint: Hint) -> None:
        """Tell the others. Never waits and never raises; what cannot be told is lost, and counted there."""
        self._store.write(
            HintRow(
                machine=self.machine,
                backend=hint.replica,
                trouble=hint.trouble or "",
                seconds=min(max(hint.seconds, 0.0), LONGEST_S),
                number=next(self._numbers),
            )
        )

    def subscribe(self, receive: Receive) -> None:
        """Call back with each hint of another, once it has been started."""
        self._receivers.append(receive)

    def start(self) -> None:
        """Look from now on, in a thread; who hears of it is called in the loop that runs now."""
        if self._thread is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.Thread(target=self._run, name="agentguard-hints", daemon=True)
            self._thread.start()

    def close(self, timeout_s: float = 1.0) -> None:
        """Look no more."""
        self._end.set()
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        while not self._end.wait(self._every_s):
            try:
                for hint in self._look():
                    self._hand_out(hint)
                self._forget()
            except AgentGuardError as error:
                self.failed += 1
                if time.monotonic() - self._told > _TOLD_S:
                    self._told = time.monotonic()
                    _LOG.warning("what other proxies say of replicas cannot be read now: %s", error)

    def _look(self) -> list[Hint]:
        """What others said since the last look. Raises StoreUnavailable."""
        recent = HINTS.c.updated_at > time.time() - _SKEW_S
        query = select(HINTS).where(HINTS.c.tenant == "", recent, HINTS.c.machine != self.machine)
        with self._store.reading() as connection:
            rows = [
                to_row(HintRow, one) for one in connection.execute(query.order_by(HINTS.c.number)).mappings()
            ]
        new = [row for row in rows if row.number > self._seen.get((row.machine, row.backend), -1)]
        self._seen = {(row.machine, row.backend): row.number for row in rows}
        first, self._looked = not self._looked, True
        # What was said before this process began may be over: it is taken for what is left of it.
        hints = [_hint(row, left_of=time.time() if first else None) for row in new]
        return [hint for hint in hints if hint is not None]

    def _hand_out(self, hint: Hint) -> None:
        for receive in self._receivers:
            try:
                assert self._loop is not None  # for mypy: there is a thread, so it was started
                self._loop.call_soon_threadsafe(receive, hint)
            except RuntimeError:  # the loop is closed
                self._end.set()

    def _forget(self) -> None:
        if time.monotonic() - self._forgot > _FORGET_EVERY_S:
            self._forgot = time.monotonic()
            self._store.forget_shared(sessions_s=self._keep_s, hints_s=_KEPT_S)


def _hint(row: HintRow, *, left_of: float | None) -> Hint | None:
    """A row as a hint; None if it is over, or says what no hint of ours says."""
    if row.trouble and row.trouble not in _TROUBLES:
        return None
    seconds = row.seconds if left_of is None else row.updated_at + row.seconds - left_of
    if row.trouble and seconds <= 0:
        return None
    trouble = cast(Trouble, row.trouble) if row.trouble else None
    return Hint(replica=row.backend, trouble=trouble, seconds=min(max(seconds, 0.0), LONGEST_S))
