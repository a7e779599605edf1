"""Snapshots of a run: each kept snapshot is restored exactly, and their number is bounded."""

from __future__ import annotations

import math
import random
import threading
from collections.abc import Sequence

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentguard.errors import ConfigError, RecoveryError
from agentguard.recover.snapshots.history import SnapshotFrame, SnapshotHistory


class Shelf:
    """In-memory sink in place of a store."""

    def __init__(self) -> None:
        self.frames: dict[int, SnapshotFrame] = {}
        self.broken = False

    def write(self, new: SnapshotFrame | None, dropped: Sequence[int]) -> bool:
        if self.broken:
            return False
        for step in dropped:
            self.frames.pop(step, None)
        if new is not None:
            self.frames[new.step] = new
        return True


def state(seed: int, size: int = 2_000) -> bytes:
    rng = random.Random(seed)
    return " ".join(rng.choices([f"word{i}" for i in range(200)], k=size // 7)).encode()


def grown(steps: int, size: int = 6_000) -> list[bytes]:
    """Return states of a run: each extends the one before it."""
    base = state(1, size)
    return [base + b"".join(b"turn %d happened. " % i for i in range(step)) for step in range(steps)]


def most_kept(head: int, dense: int) -> int:
    """Return the bound of the rule: dense ones, half as many for each doubling of the distance, the first."""
    return dense + math.ceil(dense / 2) * (head.bit_length() + 1) + 1


def reach(behind: int, dense: int) -> int:
    """Return the maximum distance from a target, ``behind`` steps before the head, to its snapshot."""
    gap = behind / (dense - 1)
    return 0 if behind < dense else 2 ** math.ceil(math.log2(max(1, gap)))


def test_snapshots_round_trip() -> None:
    series = SnapshotHistory()
    for step, raw in enumerate(states := grown(8)):
        assert series.put(step, raw)
    assert series.steps == tuple(range(8))
    assert [series.get(step) for step in series.steps] == states


def test_similar_states_use_little_space() -> None:
    series = SnapshotHistory()
    for step, raw in enumerate(grown(8, 200_000)):
        series.put(step, raw)
    one = SnapshotHistory()
    one.put(0, grown(1, 200_000)[0])
    assert series.size_bytes < one.size_bytes * 1.05


@given(st.integers(1, 400), st.integers(2, 12))
def test_old_snapshots_are_sparse_and_every_target_has_a_near_one(head: int, dense: int) -> None:
    series = SnapshotHistory(dense_count=dense)
    for step in range(head + 1):
        series.put(step, b"%d" % step)
    assert len(series.steps) <= most_kept(head, dense)
    for target in range(head + 1):
        near = series.find_nearest(target)
        assert near is not None
        assert target - reach(head - target, dense) <= near <= target


def test_repeated_step_replaces_its_snapshot_and_later_ones() -> None:
    series = SnapshotHistory()
    for step in range(6):
        series.put(step, state(step))
    series.put(3, b"other")
    assert series.steps == (0, 1, 2, 3)
    assert series.get(3) == b"other"


def test_missing_snapshot_is_an_error() -> None:
    series = SnapshotHistory()
    series.put(4, b"x")
    assert series.find_nearest(3) is None
    assert series.find_nearest(9) == 4
    with pytest.raises(RecoveryError, match="no saved state before step 3"):
        series.get(3)


def test_oversized_state_is_rejected_and_counted() -> None:
    series = SnapshotHistory(max_bytes=1_000)
    assert series.put(0, b"small")
    assert not series.put(1, random.Random(1).randbytes(5_000))
    assert series.rejected_count == 1
    assert series.size_bytes <= 1_000
    assert series.put(2, b"small again")
    assert series.get(2) == b"small again"


def test_eviction_drops_snapshots_between_the_ends() -> None:
    series = SnapshotHistory(max_bytes=12_000, dense_count=8)
    noise = random.Random(3)
    for step in range(40):
        series.put(step, noise.randbytes(1_000))
        assert series.size_bytes <= 12_000
    assert {0, 39} <= set(series.steps)
    assert len(series.steps) > 4


def test_snapshots_are_read_by_another_history() -> None:
    shelf = Shelf()
    series = SnapshotHistory(sink=shelf)
    states = grown(50)
    for step, raw in enumerate(states):
        series.put(step, raw)
    other = SnapshotHistory(sink=shelf)
    other.load(shelf.frames.values())
    assert other.steps == series.steps
    assert all(other.get(step) == states[step] for step in other.steps)
    for step in range(50, 90):  # continues with the stored numbers, so that old snapshots stay sparse
        other.put(step, b"%d" % step)
    assert len(other.steps) <= most_kept(90, 8)
    assert set(shelf.frames) == set(other.steps)


def test_delta_with_lost_base_is_omitted() -> None:
    shelf = Shelf()
    series = SnapshotHistory(sink=shelf)
    for step, raw in enumerate(grown(4)):
        series.put(step, raw)
    lost = [frame for frame in shelf.frames.values() if frame.step != 0]
    other = SnapshotHistory(sink=shelf)
    other.load(lost)
    assert other.steps == ()
    assert set(shelf.frames) == {0}, "what cannot be used is forgotten"


def test_corruption_is_an_error() -> None:
    shelf = Shelf()
    SnapshotHistory(sink=shelf).put(0, state(1))
    frame = shelf.frames[0]
    for blob in (frame.blob[:-9], b"junk", frame.blob[:50] + b"\0\0\0" + frame.blob[53:]):
        other = SnapshotHistory()
        other.load([SnapshotFrame(step=0, sequence_number=0, id=frame.id, blob=blob, size=frame.size)])
        with pytest.raises(RecoveryError, match="damaged"):
            other.get(0)


def test_lost_snapshot_is_not_used_as_base() -> None:
    shelf = Shelf()
    series = SnapshotHistory(sink=shelf)
    states = grown(6)
    shelf.broken = True
    series.put(0, states[0])
    assert series.rejected_count == 1
    assert series.get(0) == states[0], "it can be restored while the process lives"
    shelf.broken = False
    for step in range(1, 6):
        series.put(step, states[step])
    other = SnapshotHistory()
    other.load(shelf.frames.values())
    assert [other.get(step) for step in other.steps] == states[1:]


@pytest.mark.parametrize("wrong", [{"max_bytes": 0}, {"dense_count": 1}])
def test_limits_are_validated(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="max_bytes of at least 1 and dense_count of at least 2"):
        SnapshotHistory(**wrong)


def test_concurrent_puts_and_gets_are_consistent() -> None:
    series, states, wrong = SnapshotHistory(max_bytes=200_000), grown(200), []

    def read() -> None:
        for _ in range(300):
            for step in series.steps[-2:]:
                try:
                    wrong.extend([step] if series.get(step) != states[step] else [])
                except RecoveryError:
                    continue  # dropped between the two

    readers = [threading.Thread(target=read) for _ in range(3)]
    for one in readers:
        one.start()
    for step, raw in enumerate(states):
        series.put(step, raw)
    for one in readers:
        one.join()
    assert wrong == []
    assert series.get(199) == states[199]


class SeriesMachine(RuleBasedStateMachine):
    """Reference model: a plain dict of all states on the current branch."""

    MOST, DENSE = 60_000, 4

    def __init__(self) -> None:
        super().__init__()
        self.shelf = Shelf()
        self.series = SnapshotHistory(max_bytes=self.MOST, dense_count=self.DENSE, sink=self.shelf)
        self.model: dict[int, bytes] = {}
        self.step = 0
        self.text = state(1, 6_000)

    @rule(forward=st.integers(1, 4), seed=st.integers(0, 5), kind=st.sampled_from(["grow", "edit", "new"]))
    def put(self, forward: int, seed: int, kind: str) -> None:
        self.step += forward
        if kind == "grow":
            self.text += b"one more line %d. " % seed
        elif kind == "edit":
            half = len(self.text) // 2
            self.text = self.text[:half] + b"<%d>" % seed + self.text[half + 5 :]
        else:
            self.text = random.Random(seed).randbytes(4_000 * (seed + 1))
        assert self.series.put(self.step, self.text)
        self.model[self.step] = self.text

    @precondition(lambda self: self.model)
    @rule(share=st.floats(0, 1))
    def fork(self, share: float) -> None:
        """Fork to the nearest snapshot at or before a step: its state is the one of that step."""
        target = int(share * self.step)
        near = self.series.find_nearest(target)
        assert near is None or near <= target
        if near is None:
            return
        self.text = self.series.get(near)
        assert self.text == self.model[near]
        self.series.truncate(near + 1)
        self.step = near
        self.model = {step: raw for step, raw in self.model.items() if step <= near}

    @precondition(lambda self: self.model)
    @rule()
    def put_again(self) -> None:
        """Save the unchanged state, as after a rollback."""
        self.text += b"!"
        assert self.series.put(self.step, self.text)
        self.model[self.step] = self.text

    @rule()
    def crash(self) -> None:
        """Continue in another process from the sink's content."""
        self.series = SnapshotHistory(max_bytes=self.MOST, dense_count=self.DENSE, sink=self.shelf)
        self.series.load(self.shelf.frames.values())

    @rule(share=st.floats(0, 1))
    def get(self, share: float) -> None:
        steps = self.series.steps
        if steps:
            step = steps[int(share * (len(steps) - 1))]
            assert self.series.get(step) == self.model[step]

    @invariant()
    def bounded(self) -> None:
        assert self.series.size_bytes <= self.MOST
        assert list(self.series.steps) == sorted(self.series.steps)
        assert set(self.series.steps) <= set(self.model)
        assert set(self.shelf.frames) == set(self.series.steps)
        assert self.step == 0 or self.step in self.series.steps, "the latest is there"


TestSeriesMachine = SeriesMachine.TestCase
TestSeriesMachine.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
