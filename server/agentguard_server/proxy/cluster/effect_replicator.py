"""Replication of effects between proxies, so that no proxy repeats a side effect that another has recorded.

A thread writes an effect when its result is known; requests do not wait for it. Another proxy that
continues the run reads the effects before it calls the model. A call without a known result needs no shared
claim, because the history of the next request has the call.
"""

from __future__ import annotations

import logging
import os
import queue
import random
import threading
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import orjson

from agentguard.errors import AgentGuardError, StoreUnavailable
from agentguard.recover.effect_store import Effect, EffectState, InMemoryEffectStore, SqlEffectStore
from agentguard.store.write.effect_claims import SHARED_BRANCH_PREFIX

if TYPE_CHECKING:
    from agentguard.store.store import Store

_LOG = logging.getLogger(__name__)
_MAX_QUEUE: Final = 2000
_MAX_RESULT_CHARS: Final = 400
"""Stored length of a tool result; the guard shows it to a model that repeats the call."""
_MAX_ARGUMENT_BYTES: Final = 4096
_RETRY_INTERVAL_S: Final = 1.0
_MAX_ATTEMPTS: Final = 60


class EffectReplicator:
    """Background writer of effects, and reader of the effects of other proxies.

    Args:
        store: store of the effects; open it with ``connect=False``.

    Attributes:
        dropped: number of effects that were not written. The database was unavailable or rejected the effect,
            or the queue was full.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: queue.Queue[tuple[ReplicatedEffectStore, Effect] | None] = queue.Queue(_MAX_QUEUE)
        self._stop_event = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._id_generator = random.Random(os.urandom(16))  # noqa: S311  IDs distinguish runs and are not secret
        self.dropped = 0

    def create_effect_store(self, run: str, *, tenant: str) -> ReplicatedEffectStore:
        """Return the effect store of a new run."""
        return ReplicatedEffectStore(self, run, tenant)

    def generate_branch_id(self) -> str:
        """Return a random branch ID, since other runs may have the same run ID."""
        return f"{SHARED_BRANCH_PREFIX}{self._id_generator.getrandbits(96):024x}"

    def load_done_effects(self, location: tuple[str, str], *, tenant: str) -> tuple[Effect, ...]:
        """Return the completed effects of a run, by its run and branch ID. Waits for the database.

        Raises:
            StoreError: the database cannot be read.
        """
        effects = self.open_sql_store(location, tenant=tenant).effects()
        return tuple(effect for effect in effects if effect.is_done)

    def open_sql_store(self, location: tuple[str, str], *, tenant: str) -> SqlEffectStore:
        """Return the effect store of a run in the database, by its run and branch ID."""
        return SqlEffectStore(self._store, location[0], tenant=tenant, branch=location[1])

    def enqueue(self, effect_store: ReplicatedEffectStore, effect: Effect) -> None:
        """Queue an effect for the writer thread. Never waits or raises."""
        if self._thread is None:
            self._start_thread()
        try:
            self._queue.put_nowait((effect_store, effect))
        except queue.Full:
            self.dropped += 1

    @property
    def pending(self) -> int:
        """Return the number of effects that are not written yet."""
        return self._queue.unfinished_tasks

    def flush(self, timeout_s: float) -> bool:
        """Wait until all queued effects are written; return False on a timeout."""
        done = self._queue.all_tasks_done
        with done:
            return done.wait_for(lambda: not self._queue.unfinished_tasks, timeout_s)

    def close(self, timeout_s: float = 1.0) -> None:
        """Write queued effects until the timeout, then stop the thread."""
        if self._thread is not None:
            try:
                self._queue.put_nowait(None)
            except queue.Full:
                self._stop_event.set()
            self._thread.join(timeout_s)
        self._stop_event.set()

    def _start_thread(self) -> None:
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run_writer, name="agentguard-effects", daemon=True
                )
                self._thread.start()

    def _run_writer(self) -> None:
        while (found := self._queue.get()) is not None and not self._stop_event.is_set():
            self._write(*found)
            self._queue.task_done()

    def _write(self, effect_store: ReplicatedEffectStore, effect: Effect) -> None:
        """Write an effect; retry while the database is unavailable, since later writes would fail too."""
        for _ in range(_MAX_ATTEMPTS):
            try:
                return effect_store.write_through(effect)
            except StoreUnavailable:
                if self._stop_event.wait(_RETRY_INTERVAL_S):
                    break
            except AgentGuardError as error:
                _LOG.warning("an effect cannot be shared with other proxies: %s", error)
                break
        self.dropped += 1
        return None


class ReplicatedEffectStore(InMemoryEffectStore):
    """Effects of one run: claimed in memory, and written to the shared store when they are done.

    Args:
        replicator: writer of the effects.
        run: ID of the run; its deletion deletes the effects.
        tenant: tenant of the run.
    """

    def __init__(self, replicator: EffectReplicator, run: str, tenant: str) -> None:
        super().__init__()
        self._replicator, self._run, self._tenant = replicator, run, tenant
        self._published: set[tuple[str, int]] = set()
        self._sql_store: SqlEffectStore | None = None

    def restore(self, location: tuple[str, str], effects: Iterable[Effect]) -> None:
        """Load the effects of a run from another process; see `InMemoryEffectStore.restore`."""
        known = tuple(effects)
        super().restore(location, known)
        self._published.update(effect.id for effect in known)

    def settle(self, effect: Effect) -> None:
        """Record the state and result of an effect; see `EffectStore.settle`."""
        super().settle(effect)
        if not effect.is_done and effect.id not in self._published:
            return  # other proxies do not know this call, and it did not complete
        if self.location is None:
            self.location = (self._run, self._replicator.generate_branch_id())
        self._published.add(effect.id)
        self._replicator.enqueue(self, _truncate(effect))

    def write_through(self, effect: Effect) -> None:
        """Write an effect to the database. Runs in the writer thread; raises StoreError."""
        if self._sql_store is None:
            assert self.location is not None  # for mypy: `settle` sets it
            self._sql_store = self._replicator.open_sql_store(self.location, tenant=self._tenant)
        if effect.is_done:
            self._sql_store.claim(replace(effect, state=EffectState.ATTEMPTED, result=""))
        self._sql_store.settle(effect)


def _truncate(effect: Effect) -> Effect:
    """Return an effect with a truncated result, and without its arguments if they are too long."""
    arguments = dict(effect.arguments)
    if len(orjson.dumps(arguments, default=str, option=orjson.OPT_NON_STR_KEYS)) > _MAX_ARGUMENT_BYTES:
        arguments = {}
    return replace(effect, arguments=arguments, result=effect.result[:_MAX_RESULT_CHARS])
