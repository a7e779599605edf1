"""Snapshot manager: snapshots of the state of a run at a cost-optimal interval, and their restoration."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentguard.errors import ConfigError, RecoveryError
from agentguard.recover.snapshots.history import SnapshotFrame, SnapshotHistory
from agentguard.recover.snapshots.serializers import StateCodec, get_codec
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.store.db.rows import SnapshotRow
    from agentguard.store.store import Store


def compute_daly_interval(cost: float, mean_time_between_failures: float) -> float:
    """Return the optimal interval between two snapshots, in the unit of the arguments (Daly 2006).

    Args:
        cost: cost of one snapshot, 0 or more.
        mean_time_between_failures: mean time between failures, greater than 0.
    """
    if cost >= 2 * mean_time_between_failures:
        return mean_time_between_failures
    part = cost / (2 * mean_time_between_failures)
    return math.sqrt(2 * cost * mean_time_between_failures) * (1 + math.sqrt(part) / 3 + part / 9) - cost


class CheckpointInterval:
    """Interval between snapshots in turns; the caller measures all times.

    Args:
        expected_turns_between_failures: prior of the failure rate: one failure in this number of turns.
        max_turns: maximum number of turns between two snapshots.
        free_cost_s: duration of a snapshot in seconds up to which a snapshot is due at each boundary. A turn
            also costs tokens, even if it takes little time.
        smoothing: weight of the latest measurement in the moving averages, in (0, 1].

    Raises:
        ConfigError: an argument is out of its range.
    """

    def __init__(
        self,
        *,
        expected_turns_between_failures: float = 25.0,
        max_turns: int = 32,
        free_cost_s: float = 0.005,
        smoothing: float = 0.25,
    ) -> None:
        if not (
            math.isfinite(expected_turns_between_failures)
            and expected_turns_between_failures > 0
            and max_turns >= 1
            and 0 < smoothing <= 1
        ):
            raise ConfigError(
                "snapshots: expected expected_turns_between_failures above 0, max_turns of at least 1 and "
                "smoothing in (0, 1]"
            )
        self._prior_turns_between_failures, self._max_turns, self._free_cost_s, self._smoothing = (
            expected_turns_between_failures,
            max_turns,
            free_cost_s,
            smoothing,
        )
        self._cost_s: float | None = None
        self._turn_s: float | None = None
        self._turn_count = self._failure_count = 0
        self._turns_since_snapshot = 0

    @property
    def turns(self) -> int:
        """Current number of turns between snapshots; with 1, a snapshot is due at each boundary."""
        cost, turn = self._cost_s, self._turn_s
        if cost is None or turn is None or cost <= self._free_cost_s:
            return 1
        if turn <= 0:
            return self._max_turns
        best = compute_daly_interval(cost / turn, self.turns_between_failures)
        return min(self._max_turns, max(1, round(best)))

    @property
    def turns_between_failures(self) -> float:
        """Estimated turns between failures: the observations, and the prior as one further failure."""
        return (self._prior_turns_between_failures + self._turn_count) / (1 + self._failure_count)

    def is_due(self) -> bool:
        """Return whether a snapshot is due at this boundary."""
        return self._turns_since_snapshot >= self.turns

    def record_snapshot(self, seconds: float) -> None:
        """Record the duration of a snapshot."""
        self._cost_s = self._update_mean(self._cost_s, seconds)
        self._turns_since_snapshot = 0

    def record_turn(self, seconds: float) -> None:
        """Record the duration of a turn."""
        self._turn_s = self._update_mean(self._turn_s, seconds)
        self._turn_count += 1
        self._turns_since_snapshot += 1

    def record_failure(self) -> None:
        """Record a failure, after which the run continues from a saved state."""
        self._failure_count += 1
        self._turns_since_snapshot = 0

    def _update_mean(self, so_far: float | None, new: float) -> float:
        new = max(0.0, new)
        return new if so_far is None else so_far + self._smoothing * (new - so_far)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """Options of the snapshots of a run; a wrong value raises ConfigError when a run begins.

    Attributes:
        codec: ``"json"`` (JSON data and bytes), ``"pickle"``, or a custom `StateCodec`.
        max_bytes: memory limit of the snapshots of a run.
        dense_count: number of latest snapshots that are all kept; `SnapshotHistory` thins out earlier ones.
        expected_turns_between_failures: prior of the failure rate; see `CheckpointInterval`.
        max_turns: maximum number of turns between two snapshots; with 1, a snapshot is due at each boundary.
        clock: function that returns seconds, to measure snapshots and turns.
    """

    codec: str | StateCodec = "json"
    max_bytes: int = 32 * 1024 * 1024
    dense_count: int = 8
    expected_turns_between_failures: float = 25.0
    max_turns: int = 32
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False)


class SnapshotManager:
    """Manager of the saved states of one run; not thread-safe, since one thread drives a run.

    Args:
        save_state: function that returns the state.
        restore_state: function that restores a saved state.
        options: options of the snapshots.
        store: store to which the manager writes snapshots in the background; by default they stay in memory.
        run_id: id of the run.

    Raises:
        ConfigError: an option is out of its range.
    """

    def __init__(
        self,
        save_state: Callable[[], Any],
        restore_state: Callable[[Any], None],
        *,
        options: SnapshotOptions | None = None,
        store: Store | None = None,
        run_id: str = "",
    ) -> None:
        chosen = options or SnapshotOptions()
        self._save_state, self._restore_state, self._clock = save_state, restore_state, chosen.clock
        self._codec = get_codec(chosen.codec)
        self._sink = None if store is None else SnapshotStoreSink(store, run_id, codec=self._codec.name)
        self.history = SnapshotHistory(
            max_bytes=chosen.max_bytes, dense_count=chosen.dense_count, sink=self._sink
        )
        self.interval = CheckpointInterval(
            expected_turns_between_failures=chosen.expected_turns_between_failures, max_turns=chosen.max_turns
        )
        self._last_boundary: tuple[int, float] | None = None
        self._is_stale = self._has_tried = False

    def save_if_due(self, step: int, *, forks: int = 0) -> None:
        """Save the state before ``step`` if a snapshot is due, as it is at the first boundary.

        Args:
            step: number of steps on the current branch.
            forks: number of abandoned branches.

        Raises:
            ConfigError: the state cannot be encoded.
            Exception: ``save_state`` raised it.
        """
        now = self._clock()
        if self._last_boundary is not None and step > self._last_boundary[0]:
            self.interval.record_turn((now - self._last_boundary[1]) / (step - self._last_boundary[0]))
        if self._is_due(step):
            began = self._clock()
            self.history.put(step, self._codec.encode(self._save_state()), forks=forks)
            self._has_tried = True  # a state that is too large is not saved again at each boundary
            self.interval.record_snapshot(self._clock() - began)
            self._is_stale = False
        self._last_boundary = (step, self._clock())

    def restore_step(self, step: int) -> None:
        """Restore the state saved before ``step``, after a rollback to this step.

        Raises:
            RecoveryError: no state was saved there (see `restorable_steps`), or it is damaged.
        """
        self._restore_state(self._codec.decode(self.history.get(step)))
        self.history.truncate(step + 1)
        self.interval.record_failure()
        self._last_boundary = (step, self._clock())

    def restore_first(self, *, forks: int = 0) -> bool:
        """Restore the first state for a restart; return False if there is no such snapshot."""
        first = self.history.first_step
        if first is None:
            self._is_stale = True
            return False
        raw = self.history.get(first)
        self._restore_state(self._codec.decode(raw))
        self.history.put(first, raw, forks=forks)
        self.interval.record_failure()
        self._last_boundary = (first, self._clock())
        return True

    def mark_stale(self, step: int) -> None:
        """Make a snapshot due at the next boundary, after a rollback to ``step`` that restored no state."""
        self._is_stale, self._last_boundary = True, (step, self._clock())

    def restore_latest(self, run: Trajectory) -> int | None:
        """Restore the latest stored state on the current branch of ``run``.

        Returns:
            The step before which the state was saved; None if no state is stored.

        Raises:
            StoreUnavailable, ConfigError, RecoveryError: the state cannot be read or decoded.
        """
        if self._sink is not None:
            self.history.load(self._sink.load(run))
        while (step := self.history.find_nearest(len(run.steps))) is not None:
            try:
                self.history.get(step)
            except RecoveryError:
                self.history.truncate(step)  # damaged: try an earlier snapshot
            else:
                self.restore_step(step)
                return step
        return None

    @property
    def restorable_steps(self) -> tuple[int, ...]:
        """Steps before which a restorable state was saved, the earliest first."""
        return self.history.steps

    def clear(self) -> None:
        """Drop all snapshots after the end of the run."""
        self.history.truncate(0)

    def _is_due(self, step: int) -> bool:
        latest = self.history.latest_step
        first = latest is None and not self._has_tried
        return first or self._is_stale or (latest != step and self.interval.is_due())


class SnapshotStoreSink:
    """Sink that writes a history to a store in the background. `Store.get_health` counts lost rows.

    Args:
        store: the store.
        run_id: id of the run.
        codec: name of the codec of the snapshots.
        tenant: tenant of the run.
    """

    def __init__(self, store: Store, run_id: str, *, codec: str, tenant: str = "") -> None:
        self._store, self._run, self._codec, self._tenant = store, run_id, codec, tenant

    def write(self, frame: SnapshotFrame | None, dropped_steps: Sequence[int]) -> bool:
        """Write the snapshot and the deletions in one transaction; see `SnapshotSink.write`."""
        from agentguard.store.db.rows import DropSnapshotsRow, Row

        rows: list[Row] = [] if frame is None else [self._to_row(frame)]
        if dropped_steps:
            rows.append(DropSnapshotsRow(tenant=self._tenant, run_id=self._run, steps=tuple(dropped_steps)))
        return self._store.write(*rows).state not in ("lost", "refused")

    def load(self, run: Trajectory) -> tuple[SnapshotFrame, ...]:
        """Return the snapshots of the run's current branch and drop the others.

        Raises:
            StoreUnavailable: the store cannot be read.
            ConfigError: the snapshots have another codec.
        """
        rows = self._store.list_snapshots(self._run, tenant=self._tenant)
        others = {str(row.data.get("codec")) for row in rows} - {self._codec}
        if others:
            saved = ", ".join(sorted(others))
            raise ConfigError(
                f"the codec of the saved states of run {self._run!r} is {saved}, not {self._codec}"
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
