"""Cache of page models, so that each fragment of a page does not load the whole run again."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from agentguard._bounded_map import BoundedMap
from agentguard.store.store import Store
from agentguard_server.viewer.data.run_data import RunData
from agentguard_server.viewer.run.page_model import RunPageModel

_MAX_STEPS = 60_000
"""Number of steps of all cached runs, from which the least recently used runs are removed."""
_MAX_RUNS = 16


@dataclass(frozen=True, slots=True)
class _CacheEntry:
    """Page model, the version of its run, and the number of its steps."""

    version: object
    view: RunPageModel
    steps: int


class RunPageCache:
    """Thread-safe LRU cache of page models; an entry is valid until its run changes.

    Args:
        store: store of the runs.
        tenant: tenant that owns the runs.
    """

    def __init__(self, store: Store, tenant: str = "") -> None:
        self._store, self._tenant = store, tenant
        self._lock = threading.Lock()
        self._entries = BoundedMap[str, _CacheEntry](_MAX_RUNS)

    def get_view(self, run_id: str) -> RunPageModel | None:
        """Return the page model of a run, or None if there is no such run. Raises like `RunData.load`."""
        version = self._read_version(run_id)
        with self._lock:
            entry = self._entries.use(run_id)
            if entry is not None and version is not None and entry.version == version:
                return entry.view
        data = RunData.load(self._store, run_id, self._tenant)
        if data is None:
            return None
        view = RunPageModel.from_run_data(data)
        self._insert(
            run_id, _CacheEntry(version, view, sum(len(branch.own_steps) for branch in view.branches))
        )
        return view

    def _read_version(self, run_id: str) -> object:
        """Return a value that changes whenever the run changes; None if the run has no summary."""
        summary = self._store.get_run_summary(run_id, tenant=self._tenant)
        return None if summary is None else summary.updated_at

    def _insert(self, run_id: str, entry: _CacheEntry) -> None:
        with self._lock:
            self._entries[run_id] = entry
            while len(self._entries) > 1 and sum(one.steps for one in self._entries.values()) > _MAX_STEPS:
                self._entries.popitem()
