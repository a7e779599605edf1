"""Breaker, budget, ejection, window and shedding against slow, simple reference models."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from agentguard.errors import CircuitOpen
from agentguard.resilience import (
    DO_NOT_RETRY,
    Backoff,
    CircuitBreakerOptions,
    CircuitState,
    OutlierDetection,
    OutlierDetectionOptions,
    RetryBudget,
    RetryBudgetOptions,
    Runtime,
    parse_retry_after,
)
from agentguard.resilience.base import CallOutcome
from agentguard.resilience.circuit_breaker import SlidingWindow
from agentguard.testing.virtual_clock import VirtualClock

OUTCOMES = st.sampled_from(list(CallOutcome))
# Times are eighths of a second, so that sums are exact and both sides agree at every boundary.
STEPS = st.one_of(st.integers(0, 20), st.integers(0, 400)).map(lambda n: n / 8)


class BreakerMachine(RuleBasedStateMachine):
    """Reference model that keeps every counted call with its time, and the state as a plain variable."""

    OPTIONS = CircuitBreakerOptions(
        failure_ratio=0.25, minimum_throughput=4, sampling_duration_s=20.0, break_duration_s=8.0
    )

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.events = []

        async def nowhere(request, deadline):
            raise AssertionError("the machine calls enter and end itself")

        self.breaker = self.OPTIONS.build(nowhere, Runtime(clock=self.clock, observers=self.events.append))
        self.state, self.until, self.probing, self.counted = CircuitState.CLOSED, 0.0, False, []
        self.open_permits = []  # (permit, number of the state when it was granted, probe)
        self.number = 0

    def move(self, state):
        self.state, self.probing = state, False
        self.number += 1
        self.until = self.clock.now() + 8.0
        self.counted = []

    @rule(seconds=STEPS)
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule()
    def enter(self):
        if self.state is CircuitState.OPEN and self.clock.now() >= self.until:
            self.move(CircuitState.HALF_OPEN)
        allowed = self.state is CircuitState.CLOSED or (
            self.state is CircuitState.HALF_OPEN and not self.probing
        )
        if not allowed:
            with pytest.raises(CircuitOpen) as caught:
                self.breaker.acquire()
            assert caught.value.retry_after_s >= 0
            return
        self.probing = self.state is CircuitState.HALF_OPEN
        self.open_permits.append((self.breaker.acquire(), self.number, self.probing))

    @precondition(lambda self: self.open_permits)
    @rule(data=st.data(), outcome=OUTCOMES)
    def end(self, data, outcome):
        self.finish(data.draw(st.integers(0, len(self.open_permits) - 1)), outcome)

    @rule(times=st.integers(1, 6), outcome=st.sampled_from([CallOutcome.SUCCESS, CallOutcome.FAILURE]))
    def calls(self, times, outcome):
        """Make some calls in sequence, while earlier calls are still open."""
        for _ in range(times):
            before = len(self.open_permits)
            self.enter()
            if len(self.open_permits) > before:
                self.finish(before, outcome)

    @rule()
    def wait_for_the_probe(self):
        self.clock.advance(8.0)

    def finish(self, index, outcome):
        permit, number, probe = self.open_permits.pop(index)
        permit.release(outcome)
        permit.release(CallOutcome.FAILURE)  # a second end is ignored
        if number != self.number:
            return
        if probe:
            self.probing = False
            if outcome is not CallOutcome.IGNORED:
                self.move(CircuitState.CLOSED if outcome is CallOutcome.SUCCESS else CircuitState.OPEN)
        elif outcome is not CallOutcome.IGNORED:
            self.counted.append((math.floor(self.clock.now() / 2.0), outcome))
            present = self.counted[-1][0]
            inside = [o for slot, o in self.counted if slot > present - 10]
            failed = inside.count(CallOutcome.FAILURE)
            if failed and len(inside) >= 4 and failed >= len(inside) / 4:
                self.move(CircuitState.OPEN)

    @invariant()
    def same_state(self):
        assert self.breaker.state is self.state

    @invariant()
    def one_probe_at_most(self):
        probes = [n for _, n, probe in self.open_permits if probe and n == self.number]
        assert len(probes) == (1 if self.probing else 0)


class BudgetMachine(RuleBasedStateMachine):
    """Reference model with exact arithmetic, and the guarantee over every interval."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.history = [(Fraction(0), 0, 0)]  # (time, requests, extra requests) so far

    @initialize(
        ratio=st.sampled_from([0.0, 0.05, 0.2, 1.0]),
        reserve=st.sampled_from([0.0, 1.0, 3.0]),
        per_second=st.sampled_from([0.0, 0.5, 10.0]),
        more=st.sampled_from([0.0, 2.0, 50.0]),
    )
    def make(self, ratio, reserve, per_second, more):
        self.options = RetryBudgetOptions(
            ratio=ratio, reserve=reserve, per_second=per_second, burst=reserve + more
        )
        self.budget = RetryBudget(self.options, self.clock)
        self.exact = Fraction(reserve)
        self.ratio = Fraction(str(ratio))

    def note(self, requests, extra):
        _, before, taken = self.history[-1]
        self.history.append((Fraction(self.clock.now()), before + requests, taken + extra))

    @rule(seconds=STEPS)
    def wait(self, seconds):
        self.clock.advance(seconds)
        reserve = Fraction(self.options.reserve)
        if self.exact < reserve:
            earned = Fraction(self.options.per_second) * Fraction(seconds)
            self.exact = min(reserve, self.exact + earned)

    @rule(times=st.integers(1, 30))
    def deposit(self, times):
        for _ in range(times):
            self.budget.deposit()
        self.exact = min(Fraction(self.options.burst), self.exact + times * self.ratio)
        self.note(times, 0)

    @rule()
    def withdraw(self):
        allowed = self.exact >= 1
        assert self.budget.has_tokens is allowed
        assert self.budget.withdraw() is allowed
        self.exact -= allowed
        self.note(0, int(allowed))

    @invariant()
    def same_balance(self):
        if len(self.history) > 1:
            assert self.budget.tokens == pytest.approx(float(self.exact), abs=1e-6)

    @invariant()
    def promise(self):
        now, requests, extra = self.history[-1]
        for then, before, taken in self.history:
            earned = self.ratio * (requests - before) + Fraction(self.options.per_second) * (now - then)
            assert extra - taken <= Fraction(self.options.burst) + earned


class OutlierMachine(RuleBasedStateMachine):
    """Reference model that keeps each host's last outcomes as a list, and the end of its ejection."""

    OPTIONS = OutlierDetectionOptions(
        consecutive_failures=3,
        base_ejection_time_s=30.0,
        max_ejection_time_s=90.0,
        interval_s=10.0,
        max_ejection_percent=40.0,
        success_rate_request_volume=100_000,
    )

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.events = VirtualClock(), []
        self.names = list("abcde")
        runtime = Runtime(clock=self.clock, observers=self.events.append)
        self.outliers = OutlierDetection(self.names, self.OPTIONS, runtime)
        self.rows = {name: [] for name in self.names}
        self.back = {}  # host to the end of its ejection
        self.past = {}  # host to (ejections, end of the last)

    def sweep(self):
        for name, until in list(self.back.items()):
            if self.clock.now() >= until:
                del self.back[name]
                self.rows[name] = []

    @rule(seconds=STEPS)
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule(data=st.data(), good=st.booleans(), times=st.integers(1, 4))
    def record(self, data, good, times):
        name = data.draw(st.sampled_from([*self.names, "gone"]))
        for _ in range(times):
            self.sweep()
            self.outliers.record(name, good)
            if name == "gone" or name in self.back:
                continue
            self.rows[name].append(good)
            row = 0
            for past in reversed(self.rows[name]):
                if past:
                    break
                row += 1
            if row >= 3 and len(self.back) < max(1, math.floor(0.4 * len(self.names))):
                self.eject(name)

    def eject(self, name):
        times, until = self.past.get(name, (0, self.clock.now()))
        calm = int((self.clock.now() - until) // 10.0)
        times = max(0, times - calm) + 1
        self.back[name] = self.clock.now() + min(90.0, 30.0 * times)
        self.past[name] = (times, self.back[name])

    @precondition(lambda self: len(self.names) > 1)
    @rule(data=st.data())
    def remove(self, data):
        name = data.draw(st.sampled_from(self.names))
        self.sweep()
        self.outliers.remove(name)
        self.names.remove(name)
        self.rows.pop(name)
        self.back.pop(name, None)
        self.past.pop(name, None)

    @precondition(lambda self: len(self.names) < 12)
    @rule(number=st.integers(0, 99))
    def add(self, number):
        name = f"h{number}"
        if name not in self.names:
            self.names.append(name)
            self.rows[name] = []
        self.outliers.add(name)

    @invariant()
    def same_hosts(self):
        self.sweep()
        left = [name for name in self.names if name not in self.back]
        panic = len(left) < 0.5 * len(self.names)
        assert self.outliers.list_usable_hosts() == (self.names if panic else left)
        assert self.outliers.is_panicking is panic
        assert self.outliers.list_usable_hosts()


class WindowMachine(RuleBasedStateMachine):
    """Reference model that keeps every event."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = VirtualClock()
        self.window, self.all = SlidingWindow(10.0, self.clock), []

    @rule(seconds=STEPS)
    def wait(self, seconds):
        self.clock.advance(seconds)

    @rule(good=st.booleans())
    def add(self, good):
        self.window.add(good)
        self.all.append((math.floor(self.clock.now()), good))

    @rule()
    def clear(self):
        self.window.clear()
        self.all = []

    @invariant()
    def same_counts(self):
        inside = [good for slot, good in self.all if slot > math.floor(self.clock.now()) - 10]
        assert self.window.get_counts() == (sum(inside), len(inside))


FEW = settings(max_examples=60, stateful_step_count=60)
TestBreaker = BreakerMachine.TestCase
TestBudget = BudgetMachine.TestCase
TestOutlier = OutlierMachine.TestCase
TestWindow = WindowMachine.TestCase
for case in (TestBreaker, TestBudget, TestOutlier, TestWindow):
    case.settings = FEW


@given(st.one_of(st.none(), st.text(max_size=200), st.floats().map(str), st.integers().map(str)))
def test_retry_after_is_a_wait_a_stop_or_absent(value):
    seconds = parse_retry_after(value, wall_time=0.0)
    assert seconds is None or seconds == DO_NOT_RETRY or seconds >= 0


@given(st.floats(allow_nan=False))
def test_retry_after_in_seconds_is_exact(number):
    seconds = parse_retry_after(repr(number), wall_time=0.0)
    assert seconds == (DO_NOT_RETRY if number < 0 else number)


@given(st.datetimes().filter(lambda d: 1970 < d.year < 9000), st.integers(-(10**6), 10**6))
def test_retry_after_date_is_converted_to_seconds(moment, offset):
    from datetime import UTC
    from email.utils import format_datetime

    moment = moment.replace(microsecond=0, tzinfo=UTC)
    then = moment.timestamp()
    assert parse_retry_after(format_datetime(moment, usegmt=True), wall_time=then - offset) == max(0, offset)


@given(
    st.floats(0.001, 100),
    st.floats(1, 10),
    st.floats(1, 100),
    st.floats(0, 1),
    st.integers(1, 10**6),
    st.randoms(),
)
def test_backoff_stays_within_bounds(base, factor, times, jitter, failed, rng):
    backoff = Backoff(
        initial_delay_s=base, factor=factor, max_delay_s=min(86_400.0, base * times), jitter=jitter
    )
    wait = backoff.sample_delay(failed, rng)
    assert 0 <= wait <= backoff.compute_max_delay(failed) <= backoff.max_delay_s
    assert backoff.compute_max_delay(failed) <= backoff.compute_max_delay(failed + 1)
