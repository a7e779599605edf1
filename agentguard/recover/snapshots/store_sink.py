"""Snapshots in the store: written in the background, and read when a run is resumed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from agentguard.errors import ConfigError
from agentguard.recover.snapshots.history import SnapshotFrame
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.store.db.rows import SnapshotRow
    from agentguard.store.store import Store


class SnapshotStoreSink:
    """Sink that writes a history to a store in the background; the store counts lost rows (`Store.health`).

    Args:
        store: the store.
        run_id: id of the run.
        codec: name of the codec of the snapshots.
        tenant: tenant of the run.
    """

    def __init__(self, store: Store, run_id: str, *, codec: str, tenant: str = "") -> None:
        self._store, self._run, self._codec, self._tenant = store, run_id, codec, tenant

    def write(self, frame: SnapshotFrame | None, dropped_steps: Sequence[int]) -> bool:
        """Write both changes in one transaction; see `SnapshotSink.write`."""
        from agentguard.store.db.rows import DropSnapshotsRow, Row

        rows: list[Row] = [] if frame is None else [self._to_row(frame)]
        if dropped_steps:
            rows.append(DropSnapshotsRow(tenant=self._tenant, run_id=self._run, steps=tuple(dropped_steps)))
        return self._store.write(*rows).state not in ("lost", "refused")

    def load(self, run: Trajectory) -> tuple[SnapshotFrame, ...]:
        """Return the snapshots of the run's current branch and drop the others.

        Raises:
            StoreUnavailable: the store cannot be read.
            ConfigError: another codec saved the snapshots.
        """
        rows = self._store.list_snapshots(self._run, tenant=self._tenant)
        others = {str(row.data.get("codec")) for row in rows} - {self._codec}
        if others:
            saved = ", ".join(sorted(others))
            raise ConfigError(
                f"the states of run {self._run!r} were saved by codec {saved}, not {self._codec}"
            )
        good = [row for row in rows if _is_on_current_branch(row, run)]
        stale = {row.step for row in rows} - {row.step for row in good}
        if stale:
            self.write(None, sorted(stale))
        return tuple(_to_frame(row) for row in good)

    def _to_row(self, frame: SnapshotFrame) -> SnapshotRow:
        from agentguard.store.db.rows import SnapshotRow

        return SnapshotRow(
            tenant=self._tenant,
            run_id=self._run,
            step=frame.step,
            state=frame.blob,
            data={
                "codec": self._codec,
                "number": frame.sequence_number,
                "forks": frame.forks,
                "id": frame.id,
                "base": list(frame.base) if frame.base else None,
                "size": frame.size,
            },
        )


def _is_on_current_branch(row: SnapshotRow, run: Trajectory) -> bool:
    """Return whether a snapshot is on the current branch: no later fork is before its step."""
    left = run.branches[int(row.data.get("forks", 0)) :]
    return row.step <= len(run.steps) and all(branch.fork_step >= row.step for branch in left)


def _to_frame(row: SnapshotRow) -> SnapshotFrame:
    data = row.data
    base = data.get("base")
    return SnapshotFrame(
        step=row.step,
        sequence_number=int(data.get("number", 0)),
        forks=int(data.get("forks", 0)),
        id=str(data.get("id", "")),
        base=(int(base[0]), str(base[1])) if base else None,
        blob=row.state,
        size=int(data.get("size", 0)),
    )
