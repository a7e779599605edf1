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
from agentguard.store.db.row_mapping import to_row
from agentguard.store.db.rows import SessionRow
from agentguard.store.db.tables import SESSIONS

if TYPE_CHECKING:
    from agentguard.recover.effect_ledger import EffectStore
    from agentguard.store.store import Store
    from agentguard_server.proxy.cluster.effects import EffectReplicator

_LOG = logging.getLogger(__name__)
_MAX_THREADS: Final = 2
_MAX_PENDING: Final = 32
_PAUSE_AFTER_ERROR_S: Final = 5.0
_MAX_KEYS: Final = 16
_BATCH_SIZE: Final = 200


class SharedConversationStore:
    """Keeps and finds what a conversation needs to go on.

    Args:
        store: where; opened without waiting for the database.
        wait_s: longest wait of `find`.
        effects: reads what was done in a run; nothing is known of it if absent.

    Attributes:
        missed: times that nothing could be looked up, as the database was away or slow.
    """

    def __init__(
        self,
        store: Store,
        *,
        lookup_timeout_s: float = 0.25,
        effect_replicator: EffectReplicator | None = None,
    ) -> None:
        self._store, self._lookup_timeout_s, self._effect_replicator = (
            store,
            lookup_timeout_s,
            effect_replicator,
        )
        self._executor = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="agentguard-sessions")
        self._pending = 0
        self._paused_until = float("-inf")
        self._is_closed = False
        self.missed_lookups = 0

    def save(
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
        links, items = state.get("chain"), state.get("items")
        if items is not None and links:  # what was said since the last time, once for all keys
            state = {name: value for name, value in state.items() if name != "items"}
            said = SessionRow(key=links[-1], tenant=tenant, run_id=run, data={"items": items})
            self._store.write(said)
        for key in list(keys)[:_MAX_KEYS]:
            self._store.write(
                SessionRow(key=key.hex(), tenant=tenant, run_id=run, version=version, data=state)
            )

    def create_effect_store(self, run: str, *, tenant: str) -> EffectStore | None:
        """Where the effects of a run that begins here are kept for others; None if they are not."""
        return (
            None
            if self._effect_replicator is None
            else self._effect_replicator.create_effect_store(run, tenant=tenant)
        )

    async def load(self, keys: Sequence[bytes], *, tenant: str) -> Mapping[str, Any] | None:
        """The latest state under the first of the keys that has one; None if there is none, or no database.

        Waits no longer than it may, and never raises.
        """
        now = time.monotonic()
        if not keys or self._is_closed or now < self._paused_until:
            self.missed_lookups += bool(keys)
            return None
        if self._pending >= _MAX_PENDING:
            self.missed_lookups += 1
            return None
        self._pending += 1
        names = [key.hex() for key in keys[:_MAX_KEYS]]
        asked = asyncio.get_running_loop().run_in_executor(self._executor, self._look_up, names, tenant)
        asked.add_done_callback(self._finish_lookup)
        try:
            async with asyncio.timeout(self._lookup_timeout_s):
                return await asyncio.shield(asked)
        except TimeoutError:
            self._paused_until = now + _PAUSE_AFTER_ERROR_S
            self.missed_lookups += 1
        except AgentGuardError as error:
            self._paused_until = now + _PAUSE_AFTER_ERROR_S
            self.missed_lookups += 1
            _LOG.warning("conversations of others cannot be looked up now: %s", error)
        return None

    def close(self) -> None:
        """Look nothing up any more; who waits is told that nothing was found."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _finish_lookup(self, future: asyncio.Future[Any]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # who waited was told, or has given up

    def _look_up(self, names: list[str], tenant: str) -> Mapping[str, Any] | None:
        query = select(SESSIONS).where(and_(SESSIONS.c.tenant == tenant, SESSIONS.c.key.in_(names)))
        with self._store.begin_read() as connection:
            found = {row["key"]: row for row in connection.execute(query).mappings()}
        first = next((found[name] for name in names if name in found), None)
        if first is None:
            return None
        data = to_row(SessionRow, first).data
        if links := data.get("chain"):
            history = self._load_history(links, tenant)
            if history is None:
                return None
            data = {**data, "history": history}
        if self._effect_replicator is not None and (where := data.get("effects")):
            data = {
                **data,
                "known": self._effect_replicator.load_done_effects(
                    (str(where[0]), str(where[1])), tenant=tenant
                ),
            }
        return data

    def _load_history(self, links: Sequence[str], tenant: str) -> list[Any] | None:
        """What was said, from all requests of a conversation; None if a part of it is gone."""
        parts: dict[str, list[Any]] = {}
        with self._store.begin_read() as connection:
            for at in range(0, len(links), _BATCH_SIZE):
                wanted = SESSIONS.c.key.in_(links[at : at + _BATCH_SIZE])
                query = select(SESSIONS).where(and_(SESSIONS.c.tenant == tenant, wanted))
                for row in connection.execute(query).mappings():
                    parts[row["key"]] = to_row(SessionRow, row).data["items"]
        if len(parts) != len(links):
            return None
        return [item for link in links for item in parts[link]]
