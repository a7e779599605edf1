"""Diagnosis of ended runs in a thread, so that requests and rows do not wait for it."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from agentguard.errors import AgentGuardError
from agentguard.guard import Guard
from agentguard.judge.cache import VerdictScope
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.store.db.rows import Row
from agentguard.store.store import Store
from agentguard.trajectory.model import Trajectory
from agentguard_server.proxy.capture.bundle_writer import RunBundleWriter

logger = logging.getLogger("agentguard.collector")

_MAX_PENDING_RUNS: Final = 1024
_MAX_RESIDENT_CHARS: Final = 8 * 1024 * 1024
_MAX_LOGGED_FAILURES: Final = 100
_SHUTDOWN_TIMEOUT_S: Final = 5.0
_STORE_FLUSH_TIMEOUT_S: Final = 30.0
_MAX_ROW_DELAY_S: Final = 0.25
"""Longest wait of the rows of a diagnosis for those of the next runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRun:
    """Run that waits for its diagnosis.

    Attributes:
        tenant: tenant of the run.
        id: ID of the run.
        trajectory: the run as it is stored; None if it must be read from the store.
    """

    tenant: str
    id: str
    trajectory: Trajectory | None = None


class DiagnosisWorker:
    """Thread that diagnoses ended runs one after the other, with a bounded queue.

    Waiting runs stay in memory up to a total size; the worker reads the others from the store.

    Args:
        store: store of the runs and diagnoses.
        guard: guard that diagnoses the runs.
        bundles: writer of bundles; None for no bundles.

    Attributes:
        diagnosed_runs: number of runs that were diagnosed.
        undiagnosed_runs: number of runs that were not diagnosed: too many waited, or the diagnosis failed.
    """

    def __init__(self, store: Store, guard: Guard, bundles: RunBundleWriter | None = None) -> None:
        self._store, self._guard, self._bundles = store, guard, bundles
        self._queue: queue.Queue[tuple[EndedRun, int] | None] = queue.Queue(_MAX_PENDING_RUNS)
        self._lock = threading.Lock()
        self._resident_chars, self._is_closing = 0, False
        self.diagnosed_runs = self.undiagnosed_runs = 0
        self._thread = threading.Thread(target=self._run, name="agentguard-diagnosing", daemon=True)
        self._thread.start()

    def enqueue(self, run: EndedRun) -> None:
        """Queue a run whose rows are queued in the store. Never waits."""
        size = 0 if run.trajectory is None else _count_chars(run.trajectory)
        with self._lock:
            if self._resident_chars + size > _MAX_RESIDENT_CHARS:
                run, size = EndedRun(tenant=run.tenant, id=run.id), 0
            self._resident_chars += size
        try:
            self._queue.put_nowait((run, size))
        except queue.Full:
            self._release(size)
            self._record_undiagnosed("the queue of ended runs is full")

    def close(self) -> None:
        """Finish the queued diagnoses within a few seconds and stop the thread."""
        self._is_closing = True
        try:
            self._queue.put(None, timeout=_SHUTDOWN_TIMEOUT_S)
        except queue.Full:
            return
        self._thread.join(_SHUTDOWN_TIMEOUT_S)

    def _run(self) -> None:
        while items := self._take_all():
            is_readable = self._flush_rows([run for run, _ in items])
            rows, deadline = list[Row](), time.monotonic() + _MAX_ROW_DELAY_S
            while items:
                run, size = items.popleft()
                if run.trajectory is not None or is_readable:
                    rows += self._diagnose_safely(run)
                self._release(size)
                # Each write wakes the thread of the store, which costs a tenth of a diagnosis.
                if rows and (not items or self._is_closing or time.monotonic() >= deadline):
                    self._store.write(*rows)
                    rows, deadline = [], time.monotonic() + _MAX_ROW_DELAY_S

    def _take_all(self) -> deque[tuple[EndedRun, int]]:
        """Wait for ended runs and return all that wait; return an empty queue after `close`."""
        items: deque[tuple[EndedRun, int]] = deque()
        while not items or not self._queue.empty():
            item = self._queue.get()
            if item is None:
                if items:
                    self._queue.put(None)  # for the next call
                return items
            items.append(item)
        return items

    def _flush_rows(self, runs: list[EndedRun]) -> bool:
        """Wait for the rows of the runs that must be read; return False if they cannot be read now.

        One flush serves all runs, because each flush commits a transaction.
        """
        absent = [run for run in runs if run.trajectory is None]
        if not absent:
            return True
        try:
            self._store.flush(_STORE_FLUSH_TIMEOUT_S, immediate=False)
        except AgentGuardError as error:
            for _ in absent:
                self._record_undiagnosed(str(error))
            return False
        return True

    def _diagnose_safely(self, run: EndedRun) -> Sequence[Row]:
        """Diagnose a run and return the rows to write; count a failure."""
        try:
            return self._diagnose(run)
        except AgentGuardError as error:
            self._record_undiagnosed(str(error))
        except Exception as error:  # one run must not keep the next from being diagnosed
            self._record_undiagnosed(type(error).__name__)
        return ()

    def _diagnose(self, run: EndedRun) -> Sequence[Row]:
        found = run.trajectory or self._store.get_trajectory(run.id, tenant=run.tenant)
        if found is None:
            return ()
        with VerdictScope(self._store, tenant=run.tenant):
            diagnosis = self._guard.diagnose(found)
        rows = build_diagnosis_rows(diagnosis, tenant=run.tenant)
        self.diagnosed_runs += 1
        if self._bundles is not None:
            self._bundles.finish_run(run.tenant, found, diagnosis)
        return rows

    def _release(self, size: int) -> None:
        with self._lock:
            self._resident_chars -= size

    def _record_undiagnosed(self, reason: str) -> None:
        self.undiagnosed_runs += 1
        if self.undiagnosed_runs <= _MAX_LOGGED_FAILURES:
            logger.warning("a run that has ended was not diagnosed: %s", reason)


def _count_chars(run: Trajectory) -> int:
    """Return the number of characters in the texts of a run, an estimate of its memory."""
    return sum(len(text) for step in run.steps for _, text in step.texts())
