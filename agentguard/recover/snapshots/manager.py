"""Saves the state that a run's tools act on, as often as it pays, and puts it back."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentguard.errors import ConfigError, RecoveryError
from agentguard.recover.snapshots.history import SnapshotHistory
from agentguard.recover.snapshots.serializers import StateCodec, get_codec
from agentguard.recover.snapshots.store_sink import SnapshotStoreSink
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.store.store import Store


def compute_daly_interval(cost: float, mean_time_between_failures: float) -> float:
    """The best interval between two snapshots, in the unit of its arguments.

    Args:
        cost: of one snapshot, 0 or more.
        between: mean time between failures, over 0.
    """
    if cost >= 2 * mean_time_between_failures:
        return mean_time_between_failures
    part = cost / (2 * mean_time_between_failures)
    return math.sqrt(2 * cost * mean_time_between_failures) * (1 + math.sqrt(part) / 3 + part / 9) - cost


class CheckpointInterval:
    """Says at which boundary to save. Time comes in as numbers of seconds; there is no clock in here.

    Args:
        turns_between: turns that are thought to lie between two failures before any was seen: it counts as
            one failure in so many turns.
        most: turns between two snapshots at most.
        free: seconds that count as no cost: a turn has a price in tokens, too, however little time it takes.
        weight: of the latest measurement in the moving averages, in (0, 1].

    Raises:
        ConfigError: one of them is out of its range.
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
            raise ConfigError("snapshots: turns_between is over 0, most at least 1, weight in (0, 1]")
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
        """Turns from one snapshot to the next, as things stand; 1 saves at each boundary."""
        cost, turn = self._cost_s, self._turn_s
        if cost is None or turn is None or cost <= self._free_cost_s:
            return 1
        if turn <= 0:
            return self._max_turns
        best = compute_daly_interval(cost / turn, self.turns_between_failures)
        return min(self._max_turns, max(1, round(best)))

    @property
    def turns_between_failures(self) -> float:
        """Turns between two failures, as it is held now: what was seen, and the prior as one failure more."""
        return (self._prior_turns_between_failures + self._turn_count) / (1 + self._failure_count)

    def is_due(self) -> bool:
        """Whether to save at this boundary."""
        return self._turns_since_snapshot >= self.turns

    def record_snapshot(self, seconds: float) -> None:
        """A snapshot was made and took so long."""
        self._cost_s = self._update_mean(self._cost_s, seconds)
        self._turns_since_snapshot = 0

    def record_turn(self, seconds: float) -> None:
        """A turn went by and took so long."""
        self._turn_s = self._update_mean(self._turn_s, seconds)
        self._turn_count += 1
        self._turns_since_snapshot += 1

    def record_failure(self) -> None:
        """A saved state was needed; the run goes on from it."""
        self._failure_count += 1
        self._turns_since_snapshot = 0

    def _update_mean(self, so_far: float | None, new: float) -> float:
        new = max(0.0, new)
        return new if so_far is None else so_far + self._smoothing * (new - so_far)


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """How the state of a run is saved; what is out of its range is a ConfigError when a run begins.

    Attributes:
        codec: ``"json"`` (JSON data and bytes), ``"pickle"``, or a codec of one's own.
        most_bytes: that the snapshots of a run take in memory.
        dense: how many of the latest are all kept; further back they are thinned out (`Series`).
        turns_between: turns thought to lie between two failures before any was seen (`CheckpointInterval`).
        most_turns: turns between two snapshots at most; with 1 each boundary is saved.
        clock: seconds, for measuring what snapshots and turns take.
    """

    codec: str | StateCodec = "json"
    max_bytes: int = 32 * 1024 * 1024
    dense_count: int = 8
    expected_turns_between_failures: float = 25.0
    max_turns: int = 32
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False)


class SnapshotManager:
    """The saved states of one run; one thread drives it, as one drives the run.

    Args:
        save: gives the state.
        restore: puts one back that was saved.
        options: how.
        store: where they are written behind; in memory alone if absent.
        run_id: whose they are.

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
        """Save the state before the turn ``step`` if that is due; the first boundary always is.

        Args:
            step: steps on the live line.
            forks: lines that were left so far.

        Raises:
            ConfigError: the state cannot be encoded.
            Exception: whatever ``save`` raises.
        """
        now = self._clock()
        if self._last_boundary is not None and step > self._last_boundary[0]:
            self.interval.record_turn((now - self._last_boundary[1]) / (step - self._last_boundary[0]))
        if self._is_due(step):
            began = self._clock()
            self.history.put(step, self._codec.encode(self._save_state()), forks=forks)
            self._has_tried = True  # one that is too large is not tried at every boundary
            self.interval.record_snapshot(self._clock() - began)
            self._is_stale = False
        self._last_boundary = (step, self._clock())

    def restore_step(self, step: int) -> None:
        """Put back the state saved before ``step``; the live line was left there.

        Raises:
            RecoveryError: none was saved there (`restorable`), or it is damaged.
        """
        self._restore_state(self._codec.decode(self.history.get(step)))
        self.history.truncate(step + 1)
        self.interval.record_failure()
        self._last_boundary = (step, self._clock())

    def restore_first(self, *, forks: int = 0) -> bool:
        """Put back the first state: the run begins anew. False where it is not kept: the state stays."""
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
        """The live line was left at ``step`` and the state stayed as it is: save it at the next boundary."""
        self._is_stale, self._last_boundary = True, (step, self._clock())

    def restore_latest(self, run: Trajectory) -> int | None:
        """Put back the latest state that was stored of the live line of ``run``.

        Returns:
            The step it was saved before; None if there is none.

        Raises:
            StoreUnavailable, ConfigError, RecoveryError: it cannot be read or decoded.
        """
        if self._sink is not None:
            self.history.load(self._sink.load(run))
        while (step := self.history.find_nearest(len(run.steps))) is not None:
            try:
                self.history.get(step)
            except RecoveryError:
                self.history.truncate(step)  # damaged: an earlier one will do
            else:
                self.restore_step(step)
                return step
        return None

    @property
    def restorable_steps(self) -> tuple[int, ...]:
        """The steps before which a state was saved that can be put back, the earliest first."""
        return self.history.steps

    def clear(self) -> None:
        """The run is over: nothing will be put back."""
        self.history.truncate(0)

    def _is_due(self, step: int) -> bool:
        latest = self.history.latest_step
        first = latest is None and not self._has_tried
        return first or self._is_stale or (latest != step and self.interval.is_due())
