"""Saving and restoring snapshots: within the time budget, in memory and through a real store."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from agentguard.errors import ConfigError, RecoveryError
from agentguard.recover.snapshots.manager import SnapshotManager, SnapshotOptions
from agentguard.store import Store
from agentguard.store.db.rows import SnapshotRow
from agentguard.testing.virtual_clock import VirtualClock
from agentguard.trajectory.model import Branch, Source, Step, Trajectory


class World:
    """A state, and the cost of its snapshot in virtual time."""

    def __init__(self, cost: float = 0.0, turn: float = 1.0) -> None:
        self.clock, self.cost, self.turn = VirtualClock(), cost, turn
        self.state: dict[str, Any] = {"at": 0}
        self.saved = 0

    def save(self) -> Any:
        self.clock.advance(self.cost)
        self.saved += 1
        return self.state

    def restore(self, state: Any) -> None:
        self.state = state

    def manager(self, store: Store | None = None, **options: Any) -> SnapshotManager:
        chosen = SnapshotOptions(clock=self.clock.now, **options)
        return SnapshotManager(self.save, self.restore, options=chosen, store=store, run_id="r")

    def go(self, manager: SnapshotManager, steps: range, forks: int = 0) -> None:
        for step in steps:
            manager.save_if_due(step, forks=forks)
            self.state["at"] = step + 1
            self.clock.advance(self.turn)


def run_of(steps: int, *left: int) -> Trajectory:
    made = tuple(Step(index=i, source=Source.AGENT, agent="a") for i in range(steps))
    branches = tuple(Branch(id=f"b{i}", fork_step=at, steps=()) for i, at in enumerate(left))
    return Trajectory(id="r", format="event_log", task="t", steps=made, branches=branches)


def test_free_snapshot_is_saved_at_every_boundary() -> None:
    world = World()
    manager = world.manager()
    world.go(manager, range(1, 9))
    assert manager.restorable_steps == tuple(range(1, 9))
    manager.restore_step(4)
    assert world.state == {"at": 4}
    assert manager.restorable_steps == (1, 2, 3, 4)


def test_boundary_is_saved_once() -> None:
    world = World()
    manager = world.manager()
    for _ in range(3):
        manager.save_if_due(1)
    assert world.saved == 1


def test_expensive_snapshot_is_saved_rarely_and_always_first() -> None:
    world = World(cost=3.0)
    manager = world.manager()
    world.go(manager, range(1, 80))
    assert manager.restorable_steps[0] == 1
    assert 4 < world.saved < 20
    assert manager.history.find_nearest(40) is not None


def test_restart_restores_the_first_state() -> None:
    world = World()
    manager = world.manager()
    world.go(manager, range(2, 7))
    assert manager.restore_first(forks=1)
    assert world.state == {"at": 0}
    assert manager.restorable_steps == (2,)
    assert not world.manager().restore_first()
    assert world.state == {"at": 0}, "nothing was saved, nothing is put back"


def test_later_state_is_not_used_as_first_state() -> None:
    world = World()
    world.state["noise"] = random.Random(1).randbytes(3_000).hex()
    manager = world.manager(max_bytes=4_500)
    for step in range(1, 5):
        world.state = {"at": step, "noise": random.Random(step).randbytes(1_500 + 400 * step).hex()}
        manager.save_if_due(step)
        world.clock.advance(1.0)
    assert manager.history.first_step is None
    assert manager.restorable_steps
    assert not manager.restore_first()
    assert world.state["at"] == 4


def test_oversized_state_is_not_retried_at_every_boundary() -> None:
    world = World(cost=5.0)
    manager = world.manager(max_bytes=4)
    world.go(manager, range(1, 60))
    assert manager.restorable_steps == ()
    assert 1 < world.saved < 20
    assert manager.history.rejected_count == world.saved


def test_branch_abandoned_without_snapshot_is_saved_again() -> None:
    world = World(cost=5.0)
    manager = world.manager()
    world.go(manager, range(1, 6))
    manager.mark_stale(3)
    manager.save_if_due(3, forks=1)
    assert manager.restorable_steps == (1, 3)
    manager.restore_step(3)
    assert world.state == {"at": 6}, "messages were cut, the state was not"


def test_another_process_resumes_from_the_latest_state(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        world = World()
        world.go(world.manager(store), range(1, 9))
        store.flush(10)
        other = World()
        manager = other.manager(store)
        assert manager.restore_latest(run_of(7)) == 7
        assert other.state == {"at": 7}
        assert manager.restorable_steps == tuple(range(1, 8))
        manager.clear()
        store.flush(10)
        assert store.list_snapshots("r") == ()


def test_states_of_abandoned_branch_are_not_restored(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        world = World()
        world.go(world.manager(store), range(1, 8))
        store.flush(10)
        manager = world.manager(store)
        assert (
            manager.restore_latest(run_of(7, 4)) == 4
        )  # abandoned at 4, and 3 steps further on another branch
        store.flush(10)
        assert [row.step for row in store.list_snapshots("r")] == [1, 2, 3, 4]


def test_corrupt_state_is_skipped(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        world = World()
        world.go(world.manager(store), range(1, 5))
        store.flush(10)
        last = store.list_snapshots("r")[-1]
        store.write(SnapshotRow(run_id="r", step=4, state=b"junk", data=last.data)).wait(10)
        assert world.manager(store).restore_latest(run_of(6)) == 3


def test_states_of_another_codec_are_ignored(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s.db") as store:
        world = World()
        world.go(world.manager(store, codec="pickle"), range(1, 5))
        store.flush(10)
        with pytest.raises(ConfigError, match="is pickle, not json"):
            world.manager(store).restore_latest(run_of(4))
        assert len(store.list_snapshots("r")) == 4


def test_resume_without_snapshots_restores_nothing(tmp_path: Path) -> None:
    world = World()
    with Store.open(tmp_path / "s.db") as store:
        assert world.manager(store).restore_latest(run_of(4)) is None
    assert world.manager().restore_latest(run_of(4)) is None
    with pytest.raises(RecoveryError, match="no saved state"):
        world.manager().restore_step(2)


def test_unsaveable_state_is_an_error_and_others_remain() -> None:
    world = World()
    manager = world.manager()
    world.go(manager, range(1, 3))
    world.state = {"at": (1, 2)}
    with pytest.raises(ConfigError, match="JSON would change"):
        manager.save_if_due(3)
    assert manager.restorable_steps == (1, 2)


def test_unavailable_store_costs_only_its_queue(tmp_path: Path) -> None:
    from agentguard.store.options import StoreOptions

    closed = tmp_path / "no folder" / "file"
    closed.parent.write_text("a file where a folder should be")
    store = Store.open(closed, connect=False, options=StoreOptions(max_rows=30, max_bytes=200_000))
    try:
        world = World()
        world.state["text"] = "x" * 1000
        manager = world.manager(store)
        world.go(manager, range(1, 200))
        health = store.get_health()
        assert not health.written
        assert health.pending <= 30
        assert health.lost > 100
        assert manager.history.rejected_count > 100
        manager.restore_step(198)
        assert world.state["at"] == 198, "what is in memory is whole"
    finally:
        store.close(0.1)
