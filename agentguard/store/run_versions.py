"""Ids of imported runs in a store: a different run with a stored id gets an id of its file."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING, Final

from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.store.store import Store

_MAX_FILE_CHARS: Final = 120
"""Characters of the end of a path in an id; the viewer accepts 256 characters in all."""


class RunVersions:
    """Assignment of ids to runs that are read from files and written to one store.

    An id is unique within its source only: two folders may each have a run ``001``. A run replaces the stored
    run of its id if one continues the other: the same file, or a session that grew. Otherwise it is stored as
    ``FILE:ID``.

    Args:
        store: the store.
        tenant: tenant of the runs.

    Attributes:
        conflicts: number of runs whose id another stored run has.
    """

    def __init__(self, store: Store, *, tenant: str = "") -> None:
        self._store, self._tenant = store, tenant
        self.conflicts = 0

    def assign_id(self, run: Trajectory, file: str | None) -> Trajectory:
        """Return the run with the id to store it under. Raises StoreError if the store cannot be read."""
        if self._is_free(run, run.id):
            return run
        self.conflicts += 1
        base = f"{file[-_MAX_FILE_CHARS:]}:{run.id}" if file else f"{run.id}#2"
        candidates = (base if number == 1 else f"{base}#{number}" for number in count(1))
        return replace(run, id=next(id for id in candidates if self._is_free(run, id)))

    def _is_free(self, run: Trajectory, id: str) -> bool:
        stored = self._store.get_trajectory(id, tenant=self._tenant)
        return stored is None or _is_continuation(stored, run)


def _is_continuation(first: Trajectory, second: Trajectory) -> bool:
    """Return True if the steps of one run are the first steps of the other."""
    shared = min(len(first.steps), len(second.steps))
    is_same_task = first.task == second.task or not first.steps or not second.steps
    return is_same_task and first.steps[:shared] == second.steps[:shared]
