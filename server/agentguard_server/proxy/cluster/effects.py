"""The ledger of effects that several proxies share: what one has seen done, no other lets be done again.

An effect is written once its result was seen, behind the requests: by then it cannot be taken back, and who
goes on with the run elsewhere reads it before anything is asked of the model there. No request waits for a
claim: a call whose result nobody has seen yet stands in the history that the next request brings along.
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
from agentguard.recover.effect_ledger import Effect, EffectState, InMemoryEffectStore
from agentguard.recover.effect_store import SqlEffectStore
from agentguard.store.write.effect_claims import SHARED_BRANCH_PREFIX

if TYPE_CHECKING:
    from agentguard.store.store import Store

_LOG = logging.getLogger(__name__)
_MAX_QUEUE: Final = 2000
_MAX_RESULT_CHARS: Final = 400
"""Characters of what a tool returned: a model that asks for a call again is told the beginning."""
_MAX_ARGUMENT_BYTES: Final = 4096
_RETRY_INTERVAL_S: Final = 1.0
_MAX_ATTEMPTS: Final = 60


class EffectReplicator:
    """Writes effects of runs in a thread, and reads those of others.

    Args:
        store: where; opened without waiting for the database.

    Attributes:
        lost: effects that others will not know of: the database was away for long, or too much waited.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._queue: queue.Queue[tuple[ReplicatedEffectStore, Effect] | None] = queue.Queue(_MAX_QUEUE)
        self._stop_event = threading.Event()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._id_generator = random.Random(os.urandom(16))  # noqa: S311  ids tell runs apart, and guard nothing
        self.dropped = 0

    def create_effect_store(self, run: str, *, tenant: str) -> ReplicatedEffectStore:
        """The effects of a run that begins here."""
        return ReplicatedEffectStore(self, run, tenant)

    def generate_line_id(self) -> str:
        """A name for the effects of one run, whatever other runs bear its id."""
        return f"{SHARED_BRANCH_PREFIX}{self._id_generator.getrandbits(96):024x}"

    def load_done_effects(self, location: tuple[str, str], *, tenant: str) -> tuple[Effect, ...]:
        """The effects of a run that are done. Waits for the database; raises StoreError."""
        run, line = location
        found = SqlEffectStore(self._store, run, tenant=tenant, branch=line).effects()
        return tuple(effect for effect in found if effect.state is EffectState.DONE)

    def open_sql_store(self, location: tuple[str, str], *, tenant: str) -> SqlEffectStore:
        """The book in the store."""
        return SqlEffectStore(self._store, location[0], tenant=tenant, branch=location[1])

    def enqueue(self, effect_store: ReplicatedEffectStore, effect: Effect) -> None:
        """Have an effect written. Never waits and never raises."""
        if self._thread is None:
            self._start_thread()
        try:
            self._queue.put_nowait((effect_store, effect))
        except queue.Full:
            self.dropped += 1

    @property
    def pending(self) -> int:
        """Effects that are not written yet."""
        return self._queue.unfinished_tasks

    def flush(self, timeout_s: float) -> bool:
        """Wait until all that was told is written; whether it was in time."""
        done = self._queue.all_tasks_done
        with done:
            return done.wait_for(lambda: not self._queue.unfinished_tasks, timeout_s)

    def close(self, timeout_s: float = 1.0) -> None:
        """Write what waits, for a moment at most."""
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
        """Write an effect; while the database is away, try again, since the ones after it could not be."""
        for _ in range(_MAX_ATTEMPTS):
            try:
                return effect_store.write_through(effect)
            except StoreUnavailable:
                if self._stop_event.wait(_RETRY_INTERVAL_S):
                    break
            except AgentGuardError as error:
                _LOG.warning("an effect cannot be kept for other proxies: %s", error)
                break
        self.dropped += 1
        return None


class ReplicatedEffectStore(InMemoryEffectStore):
    """The effects of one run: claimed in memory, and kept for others once they are done.

    Args:
        shared: writes them.
        run: id of the run, whose deletion takes them along.
        tenant: whose run it is.
    """

    def __init__(self, replicator: EffectReplicator, run: str, tenant: str) -> None:
        super().__init__()
        self._replicator, self._run, self._tenant = replicator, run, tenant
        self._published: set[tuple[str, int]] = set()
        self._sql_store: SqlEffectStore | None = None

    def restore(self, location: tuple[str, str], effects: Iterable[Effect]) -> None:
        """As `InMemoryEffectStore.take_up`."""
        known = tuple(effects)
        super().restore(location, known)
        self._published.update(effect.id for effect in known)

    def settle(self, effect: Effect) -> None:
        """As `EffectStore.settle`."""
        super().settle(effect)
        done = effect.state is EffectState.DONE
        if not done and effect.id not in self._published:
            return  # a call that nobody made, and nobody was told of
        if self.location is None:
            self.location = (self._run, self._replicator.generate_line_id())
        self._published.add(effect.id)
        self._replicator.enqueue(self, _truncate(effect))

    def write_through(self, effect: Effect) -> None:
        """Write an effect through; in the thread that writes. Raises StoreError."""
        if self._sql_store is None:
            assert self.location is not None  # for mypy: it was settled before
            self._sql_store = self._replicator.open_sql_store(self.location, tenant=self._tenant)
        if effect.state is EffectState.DONE:
            self._sql_store.claim(replace(effect, state=EffectState.ATTEMPTED, result=""))
        self._sql_store.settle(effect)


def _truncate(effect: Effect) -> Effect:
    """As much of an effect as a model is told that asks for it again."""
    arguments = dict(effect.arguments)
    if len(orjson.dumps(arguments, default=str, option=orjson.OPT_NON_STR_KEYS)) > _MAX_ARGUMENT_BYTES:
        arguments = {}
    return replace(effect, arguments=arguments, result=effect.result[:_MAX_RESULT_CHARS])
