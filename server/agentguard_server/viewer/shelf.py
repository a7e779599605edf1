"""Runs that are being looked at, kept for a while: each fragment of a page would else read all of it anew."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass

from agentguard.store.store import Store
from agentguard_server.viewer.bundle import Bundle
from agentguard_server.viewer.run.view import View

_MOST_STEPS = 60_000
_MOST_RUNS = 16


@dataclass(frozen=True, slots=True)
class _Kept:
    stamp: object
    view: View
    steps: int


class Shelf:
    """The views of the latest runs asked for, each as long as its run has not changed; thread-safe.

    Args:
        store: where the runs are.
        tenant: whose they are.
    """

    def __init__(self, store: Store, tenant: str = "") -> None:
        self._store, self._tenant = store, tenant
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, _Kept] = OrderedDict()

    def view(self, run_id: str) -> View | None:
        """The view of a run; None if it is not there. Raises as `Bundle.load` does."""
        stamp = self._stamp(run_id)
        with self._lock:
            kept = self._kept.get(run_id)
            if kept is not None and stamp is not None and kept.stamp == stamp:
                self._kept.move_to_end(run_id)
                return kept.view
        bundle = Bundle.load(self._store, run_id, self._tenant)
        if bundle is None:
            return None
        view = View.of(bundle)
        self._keep(run_id, _Kept(stamp, view, sum(len(line.own) for line in view.lines)))
        return view

    def _stamp(self, run_id: str) -> object:
        """What changes with the run; None where nobody can tell."""
        overview = self._store.overview(run_id, tenant=self._tenant)
        return None if overview is None else overview.updated_at

    def _keep(self, run_id: str, kept: _Kept) -> None:
        with self._lock:
            self._kept[run_id] = kept
            self._kept.move_to_end(run_id)
            while len(self._kept) > _MOST_RUNS or (
                len(self._kept) > 1 and sum(one.steps for one in self._kept.values()) > _MOST_STEPS
            ):
                self._kept.popitem(last=False)
