"""Assignment of ids to imported runs: a different run with a stored id gets the id ``FILE:ID``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, count
from typing import TYPE_CHECKING, Final

from agentguard.trajectory.content_digest import compute_content_digest
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.store.store import Store

_MAX_FILE_CHARS: Final = 120
"""Characters of the end of a path in an id; the viewer accepts 256 characters in all."""


class RunIdAssigner:
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
        id = next(id for id, stored in self._iter_stored(run, file) if _is_free(stored, run))
        self.conflicts += id != run.id
        return run if id == run.id else replace(run, id=id)

    def find_equal(self, run: Trajectory, file: str | None) -> str | None:
        """Return the id under which the store has this content; None if the run is new or has changed.

        Raises StoreError if the store cannot be read.
        """
        digest = compute_content_digest(run)
        for id, stored in self._iter_stored(run, file):
            if stored is None:
                break
            if compute_content_digest(replace(stored, id=run.id)) == digest:
                return id
        return None

    def _iter_stored(self, run: Trajectory, file: str | None) -> Iterator[tuple[str, Trajectory | None]]:
        """Yield the ids that the run may have in the store, with the stored runs."""
        base = f"{file[-_MAX_FILE_CHARS:]}:{run.id}" if file else f"{run.id}#2"
        candidates = (base if number == 1 else f"{base}#{number}" for number in count(1))
        for id in chain([run.id], candidates):
            yield id, self._store.get_trajectory(id, tenant=self._tenant)


def _is_free(stored: Trajectory | None, run: Trajectory) -> bool:
    return stored is None or _is_continuation(stored, run)


def _is_continuation(first: Trajectory, second: Trajectory) -> bool:
    """Return True if the steps of one run are the first steps of the other."""
    shared = min(len(first.steps), len(second.steps))
    is_same_task = first.task == second.task or not first.steps or not second.steps
    return is_same_task and first.steps[:shared] == second.steps[:shared]
