"""Bounded queue of background jobs, for example the diagnosis of runs that have ended."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Final

MAX_EXIT_DELAY_S: Final = 30.0
"""Seconds after the end of the main thread in which the worker still starts jobs."""

_MAX_KEPT_FAILURES: Final = 16


class BackgroundQueue:
    """Queue with one worker thread, which runs jobs in order and exits when the queue is empty.

    `put` takes microseconds. The interpreter waits for the worker before it exits.

    Args:
        name: name of the worker thread.
        max_jobs: number of waiting jobs; a further job replaces the oldest.

    Attributes:
        dropped_jobs: number of jobs that were discarded.
        failures: types of the latest errors in the worker thread.
    """

    def __init__(self, name: str, *, max_jobs: int) -> None:
        self.dropped_jobs = 0
        self.failures: deque[str] = deque(maxlen=_MAX_KEPT_FAILURES)
        self._name, self._max_jobs = name, max_jobs
        self._jobs: deque[Callable[[], object]] = deque()
        self._idle = threading.Condition()
        self._worker: threading.Thread | None = None

    def put(self, job: Callable[[], object]) -> None:
        """Queue a job."""
        with self._idle:
            if len(self._jobs) >= self._max_jobs:
                self._jobs.popleft()
                self.dropped_jobs += 1
            self._jobs.append(job)
            if self._worker is None:
                self._worker = threading.Thread(target=self._run_worker, name=self._name)
                self._worker.start()

    def clear(self) -> None:
        """Discard the waiting jobs; a running job continues."""
        with self._idle:
            self.dropped_jobs += len(self._jobs)
            self._jobs.clear()

    def flush(self, timeout_s: float | None = None) -> bool:
        """Wait until the queue is empty and the worker is idle; return False after the timeout."""
        with self._idle:
            return self._idle.wait_for(lambda: self._worker is None, timeout_s)

    def _run_worker(self) -> None:
        exit_deadline: float | None = None
        while True:
            if exit_deadline is None and not threading.main_thread().is_alive():
                exit_deadline = time.monotonic() + MAX_EXIT_DELAY_S
            with self._idle:
                if exit_deadline is not None and time.monotonic() > exit_deadline:
                    self.clear()
                if not self._jobs:
                    self._worker = None
                    self._idle.notify_all()
                    return
                job = self._jobs.popleft()
            try:
                job()
            except Exception as error:  # a store, a judge or a plug-in may raise anything
                self.failures.append(type(error).__name__)
