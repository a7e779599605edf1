"""A run as the store has it: begun there, or read from there to be gone on with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from agentguard.errors import FormatError
from agentguard.recover.base import Recovery
from agentguard.recover.keep import decode_recovery
from agentguard.trajectory.model import Trajectory
from agentguard.trajectory.recorder import Recorder

if TYPE_CHECKING:
    from agentguard.store.store import Store


def begun(store: Store, meta: Trajectory) -> Recorder:
    """A recorder of a new run that is written behind; what is stored under its id is replaced."""
    from agentguard.store.log import StoreLog
    from agentguard.store.rows import ClearRow

    store.write(ClearRow(run_id=meta.id))
    return Recorder(meta, log=StoreLog(store))


def gone_on_with(store: Store, meta: Trajectory) -> tuple[Recorder, bool]:
    """A recorder that has the steps of a stored run, or a new one; and whether that run has ended.

    Raises:
        StoreUnavailable: the store cannot be read.
        FormatError: the stored run is none.
    """
    from agentguard.store.log import StoreLog

    known, row = store.record(meta.id), store.run(meta.id)
    if known is None or row is None:
        return begun(store, meta), False
    ended = bool(row.data.get("ended"))
    # Nothing is added to a run that has ended; a log would begin it anew in the store.
    return Recorder.go_on(known, log=None if ended else StoreLog(store)), ended


def recoveries_of(store: Store, run_id: str) -> list[Recovery]:
    """The recoveries of a stored run, the earliest first; rows that a guard did not write are left out.

    Raises StoreUnavailable.
    """
    found = []
    for row in store.recoveries(run_id):
        try:
            found.append(decode_recovery(row.data))
        except FormatError:
            continue
    return sorted(found, key=lambda one: one.id)
