"""Shared store of conversations, so that another worker or machine can continue a run."""

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
    from agentguard.recover.effect_store import EffectStore
    from agentguard.store.store import Store
    from agentguard_server.proxy.cluster.effect_replicator import EffectReplicator

_LOG = logging.getLogger(__name__)
_MAX_THREADS: Final = 2
_MAX_PENDING: Final = 32
_PAUSE_AFTER_ERROR_S: Final = 5.0
_MAX_KEYS: Final = 16
_BATCH_SIZE: Final = 200


class SharedConversationStore:
    """Store of the state that a conversation needs to continue.

    Args:
        store: database; open it with ``connect=False``.
        lookup_timeout_s: timeout of `load`.
        effect_replicator: reader and writer of shared effects; by default effects are not shared.

    Attributes:
        missed_lookups: number of lookups without a result because the database was unavailable, slow or
            overloaded.
    """

    def __init__(
        self,
        store: Store,
        *,
        lookup_timeout_s: float = 0.25,
        effect_replicator: EffectReplicator | None = None,
    ) -> None:
        self._store, self._lookup_timeout_s = store, lookup_timeout_s
        self._effect_replicator = effect_replicator
        self._executor = ThreadPoolExecutor(_MAX_THREADS, thread_name_prefix="agentguard-sessions")
        self._pending = 0
        self._paused_until = float("-inf")
        self._is_closed = False
        self.missed_lookups = 0

    def save(
        self, keys: Iterable[bytes], state: Mapping[str, Any], *, tenant: str, run: str, version: int
    ) -> None:
        """Save a conversation's state under each of its keys. Never waits or raises.

        Args:
            keys: keys by which the next request of the conversation is recognised.
            state: plain data.
            tenant: tenant of the conversation; other tenants cannot find it.
            run: ID of the run.
            version: number of requests in the conversation; an older version replaces nothing.
        """
        links, items = state.get("chain"), state.get("items")
        if items is not None and links:  # store new items once, not once per key
            state = {name: value for name, value in state.items() if name != "items"}
            self._store.write(SessionRow(key=links[-1], tenant=tenant, run_id=run, data={"items": items}))
        for key in list(keys)[:_MAX_KEYS]:
            self._store.write(
                SessionRow(key=key.hex(), tenant=tenant, run_id=run, version=version, data=state)
            )

    def create_effect_store(self, run: str, *, tenant: str) -> EffectStore | None:
        """Return a store that shares the effects of a new run; None if effects are not shared."""
        return (
            None
            if self._effect_replicator is None
            else self._effect_replicator.create_effect_store(run, tenant=tenant)
        )

    async def load(self, keys: Sequence[bytes], *, tenant: str) -> Mapping[str, Any] | None:
        """Return the latest state of the first key that has one; None if no key has one.

        The result is also None if the lookup fails or times out. Never raises.
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
        lookup = asyncio.get_running_loop().run_in_executor(self._executor, self._look_up, names, tenant)
        lookup.add_done_callback(self._finish_lookup)
        try:
            async with asyncio.timeout(self._lookup_timeout_s):
                return await asyncio.shield(lookup)
        except TimeoutError:
            self._paused_until = now + _PAUSE_AFTER_ERROR_S
            self.missed_lookups += 1
        except AgentGuardError as error:
            self._paused_until = now + _PAUSE_AFTER_ERROR_S
            self.missed_lookups += 1
            _LOG.warning("the conversations of other workers cannot be read now: %s", error)
        return None

    def close(self) -> None:
        """Stop all lookups; pending lookups are cancelled."""
        self._is_closed = True
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _finish_lookup(self, future: asyncio.Future[Any]) -> None:
        self._pending -= 1
        if not future.cancelled():
            future.exception()  # marks the exception as retrieved, since `load` may have timed out

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
        if self._effect_replicator is not None and (location := data.get("effects")):
            run, branch = map(str, location)
            effects = self._effect_replicator.load_done_effects((run, branch), tenant=tenant)
            data = {**data, "known": effects}
        return data

    def _load_history(self, links: Sequence[str], tenant: str) -> list[Any] | None:
        """Return the items of all requests of a conversation; None if a part is missing."""
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
