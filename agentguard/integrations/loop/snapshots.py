"""Snapshots of the environment of a loop's tools, saved at turn boundaries and restored by rollbacks."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

from agentguard.errors import ConfigError, RecoveryError
from agentguard.recover.snapshots.manager import SnapshotManager, SnapshotOptions
from agentguard.runtime.resumption import rewind_to_saved_state
from agentguard.runtime.session import Session
from agentguard.trajectory.model import Source

if TYPE_CHECKING:
    from agentguard.store.store import Store


class EnvironmentSnapshots:
    """Snapshots of one run; without a save function the methods do nothing.

    Args:
        session: session of the run; its forks go to boundaries with a snapshot.
        save, restore: the caller's functions, both or neither.
        options: frequency and format of the snapshots.
        store: store that receives the snapshots asynchronously.

    Raises:
        ConfigError: one of the two functions is missing, or an option is out of range.
    """

    def __init__(
        self,
        session: Session,
        save: Callable[[], Any] | None,
        restore: Callable[[Any], None] | None,
        *,
        options: SnapshotOptions | None = None,
        store: Store | None = None,
    ) -> None:
        if (save is None) != (restore is None) or (save is None and options is not None):
            raise ConfigError("run: give both save and restore, or neither")
        self._session = session
        self._snapshot_manager: SnapshotManager | None = None
        if save is not None and restore is not None:
            self._snapshot_manager = SnapshotManager(
                save, restore, options=options, store=store, run_id=session.id
            )
            session.restorable_steps = lambda: self.saved_steps

    @property
    def saved_steps(self) -> tuple[int, ...]:
        """Return the steps before which the state can be restored."""
        return self._snapshot_manager.restorable_steps if self._snapshot_manager is not None else ()

    def save_if_due(self) -> None:
        """Save the state if a snapshot is due.

        Raises:
            ConfigError: the first state cannot be encoded. Later errors are recorded, and the run continues.
        """
        manager, session = self._snapshot_manager, self._session
        if manager is None:
            return
        is_first = not manager.restorable_steps
        try:
            manager.save_if_due(len(session), forks=session.recorder.branch_count)
        except Exception as error:  # the caller's own function may raise anything
            if is_first:
                raise
            session.record_failure(error)

    def roll_back(self, to_step: int, method: Literal["truncate", "fork"]) -> None:
        """Restore the saved state for a fork; for a truncation, mark later snapshots as stale.

        Raises:
            RecoveryError: the state of the step cannot be restored.
        """
        if self._snapshot_manager is None:
            return
        if method == "fork":
            self._snapshot_manager.restore_step(to_step)
        else:
            self._snapshot_manager.mark_stale(to_step)

    def restore_first(self) -> None:
        """Restore the first state for a restart; record a failure if it is missing."""
        if self._snapshot_manager is not None and not self._snapshot_manager.restore_first(
            forks=self._session.recorder.branch_count
        ):
            self._session.record_failure(RecoveryError("the first snapshot is missing"))

    def discard_from_current(self) -> None:
        """Mark snapshots from the current step on as stale, after a change of the branch alone."""
        if self._snapshot_manager is not None:
            self._snapshot_manager.mark_stale(len(self._session))

    def resume(self) -> None:
        """Restore the latest saved state, and roll back the steps after it.

        Without a saved state, keep the current state and roll the run back to its task.

        Raises:
            StoreUnavailable, ConfigError, RecoveryError: the saved state cannot be read or decoded.
        """
        if self._snapshot_manager is None:
            return
        run = self._session.run
        to_step = self._snapshot_manager.restore_latest(run)
        if to_step is None:
            to_step = next((step.index for step in run.steps if step.source is Source.AGENT), len(run.steps))
        if to_step < len(run.steps):
            rewind_to_saved_state(self._session, to_step)

    def close(self) -> None:
        """Delete the snapshots at the end of the run."""
        if self._snapshot_manager is not None:
            self._snapshot_manager.clear()
