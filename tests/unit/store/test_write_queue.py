"""Queue of rows that wait for the writer."""

import threading
import time
from collections import deque

import pytest
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from agentguard.store.db.rows import FindingRow
from agentguard.store.write.queue import WriteQueue, WriteUnit, estimate_size
from agentguard.store.write.receipt import WriteReceipt

ROW = FindingRow(run_id="r", detector="d")
MOST_ROWS, MOST_BYTES = 10, 100


class Bounds(RuleBasedStateMachine):
    """State machine: order, limits and counts hold for any puts and takes."""

    def __init__(self) -> None:
        super().__init__()
        self.inbox = WriteQueue(max_rows=MOST_ROWS, max_bytes=MOST_BYTES)
        self.waiting: deque[WriteUnit] = deque()
        self.taken: list[WriteUnit] = []

    @rule(rows=st.integers(0, 12), weight=st.integers(0, 120))
    def put(self, rows: int, weight: int) -> None:
        unit = WriteUnit((ROW,) * rows, weight, WriteReceipt(self.inbox.condition))
        before = (self.inbox.row_count, self.inbox.byte_count)
        refused = self.inbox.put(unit)
        fits = before[0] + rows <= MOST_ROWS and before[1] + weight <= MOST_BYTES
        assert (refused == "") == (fits or before[0] == 0)
        if not refused:
            self.waiting.append(unit)

    @precondition(lambda self: self.waiting and not self.taken)
    @rule(most=st.integers(1, 12))
    def take(self, most: int) -> None:
        self.taken = self.inbox.take(max_rows=most, max_bytes=MOST_BYTES)
        assert self.taken == [self.waiting.popleft() for _ in self.taken]
        assert sum(len(one.rows) for one in self.taken[:-1]) < most or len(self.taken) == 1

    @precondition(lambda self: self.taken)
    @rule()
    def done(self) -> None:
        with self.inbox.lock:
            self.inbox.release(self.taken)
        self.taken = []

    @invariant()
    def counts_are_true(self) -> None:
        there = [*self.waiting, *self.taken]
        assert self.inbox.row_count == sum(len(one.rows) for one in there)
        assert self.inbox.byte_count == sum(one.size_bytes for one in there)
        assert self.inbox.added_count - self.inbox.settled_count == len(there)


TestBounds = Bounds.TestCase
TestBounds.settings = settings(max_examples=40, deadline=None)


def test_reader_wakes_on_rows_and_on_close():
    inbox = WriteQueue(max_rows=5, max_bytes=500)
    seen = []

    def read() -> None:
        while units := inbox.take(max_rows=5, max_bytes=500):
            seen.extend(units)
            with inbox.lock:
                inbox.release(units)

    reader = threading.Thread(target=read)
    reader.start()
    unit = WriteUnit((ROW,), 1, WriteReceipt(inbox.condition))
    assert inbox.put(unit) == ""
    inbox.close()
    reader.join(10)
    assert not reader.is_alive()
    assert seen == [unit]
    assert inbox.put(unit) == "the store is closed"


class Reader(threading.Thread):
    """Thread that takes once, with a gather time longer than any test."""

    def __init__(self, inbox: WriteQueue) -> None:
        super().__init__(daemon=True)
        self.inbox = inbox
        self.taken: list[WriteUnit] = []

    def run(self) -> None:
        self.taken = self.inbox.take(max_rows=4, max_bytes=100, max_delay_s=600.0)

    def begin(self) -> list[WriteUnit]:
        """Start the thread, and give it one unit to gather."""
        self.start()
        unit = self.put()
        until = time.monotonic() + 10
        while self.inbox._batch_threshold is None:
            assert time.monotonic() < until
            time.sleep(0.001)
        return [unit]

    def put(self, weight: int = 1) -> WriteUnit:
        unit = WriteUnit((ROW,), weight, WriteReceipt(self.inbox.condition))
        assert self.inbox.put(unit) == ""
        return unit


def haste(reader: Reader) -> list[WriteUnit]:
    with reader.inbox.lock:
        reader.inbox.condition.add_waiter()
    return []


def closing(reader: Reader) -> list[WriteUnit]:
    reader.inbox.close()
    return []


def rows_enough(reader: Reader) -> list[WriteUnit]:
    return [reader.put() for _ in range(2)]


def bytes_enough(reader: Reader) -> list[WriteUnit]:
    return [reader.put(weight=99)]


@pytest.mark.parametrize("ends", [haste, closing, rows_enough, bytes_enough])
def test_reader_gathers_until_the_limit(ends) -> None:
    reader = Reader(WriteQueue(max_rows=8, max_bytes=2000))
    units = reader.begin()
    units.append(reader.put())
    units += ends(reader)
    reader.join(10)
    assert reader.taken == units


def test_reader_gathers_at_most_half_the_capacity() -> None:
    reader = Reader(WriteQueue(max_rows=4, max_bytes=1000))
    units = reader.begin()
    units.append(reader.put())
    reader.join(10)
    assert reader.taken == units


def test_reader_gathers_for_bounded_time_and_not_for_waiting_callers() -> None:
    inbox = WriteQueue(max_rows=10, max_bytes=1000)
    unit = WriteUnit((ROW,), 1, WriteReceipt(inbox.condition))
    inbox.put(unit)
    assert inbox.take(max_rows=5, max_bytes=100, max_delay_s=0.01) == [unit]
    waiter = threading.Thread(target=unit.receipt.wait, args=(20,))
    waiter.start()
    inbox.put(unit)
    assert inbox.take(max_rows=5, max_bytes=100, max_delay_s=600.0) == [unit]
    with inbox.lock:
        unit.receipt.settle("written")
        inbox.condition.notify_all()
    waiter.join(10)
    assert not waiter.is_alive()
    assert inbox.condition.waiter_count == 0


def test_weight_is_proportional_to_size_and_fast():
    assert estimate_size((FindingRow(run_id="r", detector="d", data={"a": "x" * 10_000}),)) > 10_000
    assert (
        estimate_size((FindingRow(run_id="r", detector="d", data={"a": [["x" * 1000] * 10] * 10}),)) > 100_000
    )
    many = FindingRow(run_id="r", detector="d", data={"a": list(range(10**6))})
    assert estimate_size((many,)) > 10**6
    circle: dict = {}
    circle["me"] = circle
    assert estimate_size((FindingRow(run_id="r", detector="d", data=circle),)) > 0
