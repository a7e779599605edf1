"""Queue of stored runs that one background thread diagnoses, one after the other."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Final

from agentguard.errors import AgentGuardError
from agentguard.guard import Guard
from agentguard.judge.cache import VerdictScope
from agentguard.localize.serialization import build_diagnosis_rows
from agentguard.runtime.error_schema_feedback import SchemaFeedback
from agentguard.schemata.lazy_store import LazySchemaStore
from agentguard.store.db.run_summary import RunSummaryFilter, VerdictFilter
from agentguard.store.store import Store

_LOG = logging.getLogger(__name__)

MAX_QUEUED_RUNS: Final = 10_000
_DURABILITY_TIMEOUT_S: Final = 5.0
_STOP_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueProgress:
    """Progress since the queue was last empty.

    Attributes:
        total: number of runs that were queued; 0 before the first one.
        done: number of runs that were diagnosed or failed.
        failed: number of runs without a diagnosis because of an error.
        problem: message of the last error.
        running: whether a run is waiting or in progress.
    """

    total: int = 0
    done: int = 0
    failed: int = 0
    problem: str = ""
    running: bool = False


class DiagnosisQueue:
    """Bounded queue of runs, and the thread that diagnoses them; it starts with the first run.

    The guard has the default policy with the embedded judge: a diagnosis costs nothing.

    Args:
        store: store of the runs and of the diagnoses.
        tenant: tenant that owns the runs.
    """

    def __init__(self, store: Store, *, tenant: str = "") -> None:
        self._store, self._tenant = store, tenant
        self._condition = threading.Condition()
        self._ids: deque[str] = deque()
        self._progress = QueueProgress()
        self._guard: Guard | None = None
        self._guard_lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    @property
    def progress(self) -> QueueProgress:
        """Return the progress."""
        return self._progress

    def add(self, ids: Iterable[str]) -> int:
        """Queue runs that are not queued yet, up to the limit; return their number."""
        with self._condition:
            if self._is_stopped:
                return 0
            known = set(self._ids)
            new_ids = [id for id in dict.fromkeys(ids) if id not in known]
            new_ids = new_ids[: MAX_QUEUED_RUNS - len(self._ids)]
            if not new_ids:
                return 0
            if not self._progress.running:
                self._progress = QueueProgress()
            self._ids.extend(new_ids)
            self._progress = replace(self._progress, total=self._progress.total + len(new_ids), running=True)
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="agentguard-diagnosis", daemon=True)
                self._thread.start()
            self._condition.notify_all()
            return len(new_ids)

    def add_undiagnosed(self) -> int:
        """Queue the stored runs without a diagnosis, newest first; return their number.

        Raises StoreUnavailable if the database cannot be read now.
        """
        undiagnosed = RunSummaryFilter(verdicts=frozenset({VerdictFilter.NOT_DIAGNOSED}))
        summaries = self._store.iter_run_summaries(undiagnosed, tenant=self._tenant)
        return self.add(row.run_id for row, _ in zip(summaries, range(MAX_QUEUED_RUNS), strict=False))

    def diagnose(self, run_id: str) -> bool:
        """Diagnose a run now and store the result; return False if there is no such run."""
        run = self._store.get_trajectory(run_id, tenant=self._tenant)
        if run is None:
            return False
        scope = VerdictScope(None, tenant=self._tenant)
        with scope, self._get_guard().override(store=self._store) as guard:
            diagnosis = guard.diagnose(run)
        rows = build_diagnosis_rows(diagnosis, tenant=self._tenant)
        self._store.write(*rows).wait(_DURABILITY_TIMEOUT_S)
        return True

    def wait_until_idle(self, timeout_s: float) -> bool:
        """Wait until no run is queued or in progress; return False after the timeout."""
        with self._condition:
            return self._condition.wait_for(lambda: not self._progress.running, timeout_s)

    def stop(self) -> None:
        """Drop the queued runs and wait for the run in progress, at most 5 s."""
        with self._condition:
            self._is_stopped = True
            self._ids.clear()
            self._condition.notify_all()
        if self._thread is not None:
            self._thread.join(_STOP_TIMEOUT_S)

    def _run(self) -> None:
        while (run_id := self._take()) is not None:
            problem = self._try_diagnosis(run_id)
            with self._condition:
                self._progress = replace(
                    self._progress,
                    done=self._progress.done + 1,
                    failed=self._progress.failed + bool(problem),
                    problem=problem or self._progress.problem,
                    running=bool(self._ids),
                )
                self._condition.notify_all()

    def _take(self) -> str | None:
        """Wait for the next run and return it; return None after `stop`."""
        with self._condition:
            self._condition.wait_for(lambda: self._ids or self._is_stopped)
            return None if self._is_stopped else self._ids.popleft()

    def _try_diagnosis(self, run_id: str) -> str:
        """Diagnose a run; return the message of an error, else an empty text."""
        try:
            return "" if self.diagnose(run_id) else f"{run_id}: the run was deleted"
        except AgentGuardError as error:
            return f"{run_id}: {error}"
        except Exception as error:  # one broken run must not end the thread
            _LOG.warning("the diagnosis of a stored run failed: %s", type(error).__name__)
            return f"{run_id}: {type(error).__name__}"

    def _get_guard(self) -> Guard:
        """Return the guard; it is built with the first run, because loading its model takes a second."""
        with self._guard_lock:
            if self._guard is None:
                self._guard = Guard(schemata=SchemaFeedback(LazySchemaStore(self._store)))
            return self._guard
