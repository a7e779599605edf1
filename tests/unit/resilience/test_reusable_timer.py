"""A reusable timer fires once, at the last time set, and creates few loop timers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hypothesis import given, strategies as st

from agentguard.resilience.deadline import ReusableTimer


@dataclass
class Handle:
    at: float
    call: Any
    off: bool = False

    def cancel(self) -> None:
        self.off = True


@dataclass
class Loop:
    """A loop with a clock that the test moves."""

    now: float = 0.0
    set: list[Handle] = field(default_factory=list)

    def time(self) -> float:
        return self.now

    def call_at(self, at: float, call: Any) -> Handle:
        self.set.append(Handle(at, call))
        return self.set[-1]

    def until(self, at: float) -> None:
        while due := sorted(
            (one for one in self.set if not one.off and one.at <= at), key=lambda one: one.at
        ):
            self.now, due[0].off = max(self.now, due[0].at), True
            due[0].call()
        self.now = at


def made() -> tuple[Loop, ReusableTimer, list[float]]:
    loop = Loop()
    return loop, ReusableTimer(loop), []  # type: ignore[arg-type]


def test_timer_fires_once_at_last_set_time() -> None:
    loop, alarm, rung = made()
    for _ in range(100):
        alarm.arm(5, lambda: rung.append(loop.now))
        loop.until(loop.now + 1)
    assert rung == []
    loop.until(300)
    assert rung == [104]
    assert len(loop.set) <= 30


def test_earlier_time_replaces_later_one() -> None:
    loop, alarm, rung = made()
    alarm.arm(50, lambda: rung.append(-1.0))
    alarm.arm(2, lambda: rung.append(loop.now))
    loop.until(300)
    assert rung == [2]


def test_postponed_or_cancelled_timer_does_not_fire() -> None:
    loop, alarm, rung = made()
    alarm.arm(2, lambda: rung.append(loop.now))
    alarm.callback = None
    loop.until(10)
    alarm.arm(2, lambda: rung.append(loop.now))
    alarm.cancel()
    loop.until(20)
    assert rung == []
    assert all(one.off for one in loop.set)


@given(st.lists(st.tuples(st.floats(0.01, 20), st.floats(0, 20), st.booleans()), max_size=30))
def test_timer_fires_like_a_reset_loop_timer(moves: list[tuple[float, float, bool]]) -> None:
    loop, alarm, rung = made()
    due: float | None = None
    expected: list[float] = []
    for seconds, wait, off in moves:
        alarm.arm(seconds, lambda: rung.append(loop.now))
        due = loop.now + seconds
        if off:
            alarm.callback = due = None
        if due is not None and due <= loop.now + wait:
            expected.append(due)
        loop.until(loop.now + wait)
    assert len(rung) == len(expected)
    assert all(abs(one - other) < 0.002 for one, other in zip(rung, expected, strict=True))
