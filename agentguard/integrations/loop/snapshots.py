"""The state of the environment that a loop's tools act on: saved at boundaries, put back with the line."""

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
    """Keeps the state of one run; does nothing where it cannot be saved.

    Args:
        session: the run; its forks go to boundaries that were saved from now on.
        save, restore: the caller's functions, both or neither.
        options: how often and in what form it is saved.
        store: where it is written behind.

    Raises:
        ConfigError: one of the two functions alone, or an option that is out of its range.
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
        """The steps before which the state can be put back."""
        return self._snapshot_manager.restorable_steps if self._snapshot_manager is not None else ()

    def save_if_due(self) -> None:
        """Save the state, if that is due.

        Raises:
            ConfigError: the first state cannot be encoded. What fails later is noted, and the run goes on.
        """
        keeper, session = self._snapshot_manager, self._session
        if keeper is None:
            return
        first = not keeper.restorable_steps
        try:
            keeper.save_if_due(len(session), forks=session.recorder.branch_count)
        except Exception as error:  # the caller's own function may raise anything
            if first:
                raise
            session.record_failure(error)

    def roll_back(self, to_step: int, method: Literal["truncate", "fork"]) -> None:
        """The line was left before ``to_step``; by a fork the state is put back. Raises RecoveryError."""
        if self._snapshot_manager is None:
            return
        if method == "fork":
            self._snapshot_manager.restore_step(to_step)
        else:
            self._snapshot_manager.mark_stale(to_step)

    def restore_first(self) -> None:
        """The run begins anew, with the first state; where that is not kept, it is noted."""
        if self._snapshot_manager is not None and not self._snapshot_manager.restore_first(
            forks=self._session.recorder.branch_count
        ):
            self._session.record_failure(RecoveryError("the first state is not kept"))

    def discard_from_current(self) -> None:
        """Another line has taken the place of the live one, with the same state."""
        if self._snapshot_manager is not None:
            self._snapshot_manager.mark_stale(len(self._session))

    def resume(self) -> None:
        """Put back the latest state that was kept, and leave the steps behind it.

        Where none was kept, the state is taken as it is now and the run goes back to its task.

        Raises:
            StoreUnavailable, ConfigError, RecoveryError: what was kept cannot be read or decoded.
        """
        if self._snapshot_manager is None:
            return
        run = self._session.run
        at = self._snapshot_manager.restore_latest(run)
        if at is None:
            at = next((step.index for step in run.steps if step.source is Source.AGENT), len(run.steps))
        if at < len(run.steps):
            rewind_to_saved_state(self._session, at)

    def close(self) -> None:
        """Nothing will be put back any more."""
        if self._snapshot_manager is not None:
            self._snapshot_manager.clear()
