"""Saves the state that a run's tools act on, as often as it pays, and puts it back."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from agentguard.errors import RecoveryError
from agentguard.recover.snapshots.cadence import Cadence
from agentguard.recover.snapshots.codec import StateCodec, codec_of
from agentguard.recover.snapshots.kept import StoreSink
from agentguard.recover.snapshots.series import Series
from agentguard.trajectory.model import Trajectory

if TYPE_CHECKING:
    from agentguard.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotOptions:
    """How the state of a run is saved; what is out of its range is a ConfigError when a run begins.

    Attributes:
        codec: ``"json"`` (JSON data and bytes), ``"pickle"``, or a codec of one's own.
        most_bytes: that the snapshots of a run take in memory.
        dense: how many of the latest are all kept; further back they are thinned out (`Series`).
        turns_between: turns thought to lie between two failures before any was seen (`Cadence`).
        most_turns: turns between two snapshots at most; with 1 each boundary is saved.
        clock: seconds, for measuring what snapshots and turns take.
    """

    codec: str | StateCodec = "json"
    most_bytes: int = 32 * 1024 * 1024
    dense: int = 8
    turns_between: float = 25.0
    most_turns: int = 32
    clock: Callable[[], float] = field(default=time.perf_counter, repr=False)


class Keeper:
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
        save: Callable[[], Any],
        restore: Callable[[Any], None],
        *,
        options: SnapshotOptions | None = None,
        store: Store | None = None,
        run_id: str = "",
    ) -> None:
        chosen = options or SnapshotOptions()
        self._save, self._restore, self._clock = save, restore, chosen.clock
        self._codec = codec_of(chosen.codec)
        self._sink = None if store is None else StoreSink(store, run_id, codec=self._codec.name)
        self.series = Series(most_bytes=chosen.most_bytes, dense=chosen.dense, sink=self._sink)
        self.cadence = Cadence(turns_between=chosen.turns_between, most=chosen.most_turns)
        self._at: tuple[int, float] | None = None
        self._stale = self._tried = False

    def boundary(self, step: int, *, forks: int = 0) -> None:
        """Save the state before the turn ``step`` if that is due; the first boundary always is.

        Args:
            step: steps on the live line.
            forks: lines that were left so far.

        Raises:
            ConfigError: the state cannot be encoded.
            Exception: whatever ``save`` raises.
        """
        now = self._clock()
        if self._at is not None and step > self._at[0]:
            self.cadence.turned((now - self._at[1]) / (step - self._at[0]))
        if self._due(step):
            began = self._clock()
            self.series.put(step, self._codec.encode(self._save()), forks=forks)
            self._tried = True  # one that is too large is not tried at every boundary
            self.cadence.took(self._clock() - began)
            self._stale = False
        self._at = (step, self._clock())

    def back(self, step: int) -> None:
        """Put back the state saved before ``step``; the live line was left there.

        Raises:
            RecoveryError: none was saved there (`restorable`), or it is damaged.
        """
        self._restore(self._codec.decode(self.series.get(step)))
        self.series.cut(step + 1)
        self.cadence.failed()
        self._at = (step, self._clock())

    def again(self, *, forks: int = 0) -> bool:
        """Put back the first state: the run begins anew. False where it is not kept: the state stays."""
        first = self.series.first
        if first is None:
            self._stale = True
            return False
        raw = self.series.get(first)
        self._restore(self._codec.decode(raw))
        self.series.put(first, raw, forks=forks)
        self.cadence.failed()
        self._at = (first, self._clock())
        return True

    def left(self, step: int) -> None:
        """The live line was left at ``step`` and the state stayed as it is: save it at the next boundary."""
        self._stale, self._at = True, (step, self._clock())

    def resume(self, run: Trajectory) -> int | None:
        """Put back the latest state that was stored of the live line of ``run``.

        Returns:
            The step it was saved before; None if there is none.

        Raises:
            StoreUnavailable, ConfigError, RecoveryError: it cannot be read or decoded.
        """
        if self._sink is not None:
            self.series.load(self._sink.read(run))
        while (step := self.series.nearest(len(run.steps))) is not None:
            try:
                self.series.get(step)
            except RecoveryError:
                self.series.cut(step)  # damaged: an earlier one will do
            else:
                self.back(step)
                return step
        return None

    @property
    def restorable(self) -> tuple[int, ...]:
        """The steps before which a state was saved that can be put back, the earliest first."""
        return self.series.steps

    def end(self) -> None:
        """The run is over: nothing will be put back."""
        self.series.cut(0)

    def _due(self, step: int) -> bool:
        latest = self.series.latest
        first = latest is None and not self._tried
        return first or self._stale or (latest != step and self.cadence.due())
