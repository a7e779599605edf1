"""Conversations that may go on elsewhere: kept under their keys, found by whoever is asked next."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import and_, select

from agentguard.errors import AgentGuardError
from agentguard.store.fit import row_of
from agentguard.store.rows import SessionRow
from agentguard.store.tables import SESSIONS

if TYPE_CHECKING:
    from agentguard.store.store import Store

_LOG = logging.getLogger(__name__)
_THREADS: Final = 2
_MOST_WAITING: Final = 32
_PAUSE_S: Final = 5.0
_MOST_KEYS: Final = 16


class SharedSessions:
    """Keeps and finds what a conversation needs to go on.

    Args:
        store: where; opened without waiting for the database.
        wait_s: longest wait of `find`.

    Attributes:
        missed: times that nothing could be looked up, as the database was away or slow.
    """

    def __init__(self, store: Store, *, wait_s: float = 0.25) -> None:
        self._store, self._wait_s = store, wait_s
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="agentguard-sessions")
        self._waiting = 0
        self._paused_until = float("-inf")
        self._closed = False
        self.missed = 0

    def keep(
        self, keys: Iterable[bytes], state: Mapping[str, Any], *, tenant: str, run: str, version: int
    ) -> None:
        """Keep a conversation's state under each of its keys. Never waits and never raises.

        Args:
            keys: by which its next request can be told.
            state: plain data.
            tenant: whose it is; nobody else finds it.
            run: id of the run.
            version: counts the conversation's requests; what is older replaces nothing.
        """
        for key in list(keys)[:_MOST_KEYS]:
            self._store.write(
                SessionRow(key=key.hex(), tenant=tenant, run_id=run, version=version, data=state)
            )

    async def find(self, keys: Sequence[bytes], *, tenant: str) -> Mapping[str, Any] | None:
        """The latest state under the first of the keys that has one; None if there is none, or no database.

        Waits no longer than it may, and never raises.
        """
        now = time.monotonic()
        if not keys or self._closed or now < self._paused_until:
            self.missed += bool(keys)
            return None
        if self._waiting >= _MOST_WAITING:
            self.missed += 1
            return None
        self._waiting += 1
        names = [key.hex() for key in keys[:_MOST_KEYS]]
        asked = asyncio.get_running_loop().run_in_executor(self._threads, self._look_up, names, tenant)
        asked.add_done_callback(self._over)
        try:
            async with asyncio.timeout(self._wait_s):
                return await asyncio.shield(asked)
        except TimeoutError:
            self._paused_until = now + _PAUSE_S
            self.missed += 1
        except AgentGuardError as error:
            self._paused_until = now + _PAUSE_S
            self.missed += 1
            _LOG.warning("conversations of others cannot be looked up now: %s", error)
        return None

    def close(self) -> None:
        """Look nothing up any more; who waits is told that nothing was found."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _over(self, asked: asyncio.Future[Any]) -> None:
        self._waiting -= 1
        if not asked.cancelled():
            asked.exception()  # who waited was told, or has given up

    def _look_up(self, names: list[str], tenant: str) -> Mapping[str, Any] | None:
        query = select(SESSIONS).where(and_(SESSIONS.c.tenant == tenant, SESSIONS.c.key.in_(names)))
        with self._store.reading() as connection:
            found = {row["key"]: row for row in connection.execute(query).mappings()}
        first = next((found[name] for name in names if name in found), None)
        return None if first is None else row_of(SessionRow, first).data
