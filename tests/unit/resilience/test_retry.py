import asyncio
import math
import random

import pytest

from agentguard.errors import (
    BackendError,
    CircuitOpen,
    DeadlineExceeded,
    Overloaded,
    RetriesExhausted,
    Stalled,
)
from agentguard.resilience import (
    Backoff,
    BasicRequest,
    Deadline,
    EventKind,
    Pipeline,
    RetryBudgetOptions,
    RetryOptions,
)
from agentguard.resilience.base import is_retryable
from agentguard.testing.virtual_clock import VirtualClock
from tests.unit.resilience.scripted_backend import Backend, answer, fails

PLAIN = RetryOptions(backoff=Backoff(initial_delay_s=1.0, jitter=0.0))


def outcome(*script, retry=PLAIN, call=None, total_s=100.0):
    """Return (answer or error, backend, events, time) of one call with retries only."""
    clock, events = VirtualClock(), []
    backend = Backend(clock, *script)
    send = Pipeline((retry,), clock=clock, rng=random.Random(1), observers=[events.append]).bind(backend.send)

    async def main():
        try:
            return await send(call or BasicRequest(payload=1), Deadline.after(total_s, clock=clock))
        except Exception as error:
            return error

    return clock.run(main()), backend, events, clock.now()


def test_backoff_doubles_and_attempts_end_at_three():
    error, backend, events, _ = outcome(fails(503, seconds=0.001))
    assert isinstance(error, RetriesExhausted)
    assert (error.attempts, error.last.status) == (3, 503)
    assert [round(t) for t in backend.calls] == [0, 1, 3]
    assert [(e.kind, e.attempt) for e in events] == [("retry", 1), ("retry", 2), ("gave_up", 3)]


def test_later_answer_is_returned():
    result, backend, _, _ = outcome(fails(503), fails(None), answer())
    assert result == "answer to 1"
    assert len(backend.calls) == 3


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 422, 501, 505])
def test_permanent_error_is_raised_unchanged(status):
    error, backend, events, _ = outcome(fails(status))
    assert isinstance(error, BackendError)
    assert (error.status, len(backend.calls), events) == (status, 1, [])


@pytest.mark.parametrize(
    ("error", "idempotent", "allowed"),
    [
        (BackendError("refused", stage="unsent"), False, True),
        (BackendError("reset"), True, True),
        (BackendError("reset"), False, False),
        (BackendError("busy", status=429), False, True),
        (BackendError("busy", status=503), False, False),
        (BackendError("busy", status=503), True, True),
        (BackendError("cut", stage="committed"), True, False),
        (BackendError("cut", status=503, stage="committed"), True, False),
        (DeadlineExceeded("slow", stage="sent"), True, True),
        (DeadlineExceeded("slow", stage="sent"), False, False),
        (Stalled("slow", stage="sent"), True, True),
        (Stalled("slow", stage="committed"), True, False),
        (CircuitOpen("open"), True, False),
        (Overloaded("full"), True, False),
        (RetriesExhausted("no", attempts=3, last=BackendError("x", stage="unsent")), True, False),
    ],
    ids=str,
)
def test_retryable_errors_are_classified(error, idempotent, allowed):
    assert is_retryable(error, BasicRequest(idempotent=idempotent)) is allowed


def test_retry_after_is_respected_with_small_jitter():
    _, backend, _, _ = outcome(fails(429, retry_after_s=7, seconds=0.001), answer())
    assert 7 < backend.calls[1] <= 7.71


@pytest.mark.parametrize("seconds", [-1.0, 200.0, 1e9, math.inf])
def test_stop_or_wait_beyond_deadline_ends_at_once(seconds):
    error, backend, _, ended = outcome(fails(503, retry_after_s=seconds))
    assert isinstance(error, RetriesExhausted)
    assert error.retry_after_s == seconds
    assert (len(backend.calls), ended) == (1, 0.05)


def test_budget_is_shared_by_all_calls():
    clock = VirtualClock()
    backend = Backend(clock, fails(503))
    budget = RetryBudgetOptions(ratio=0.2, reserve=3.0, per_second=0.0)
    send = Pipeline((RetryOptions(budget=budget),), clock=clock, rng=random.Random(1)).bind(backend.send)

    async def main():
        return await asyncio.gather(
            *(send(BasicRequest(payload=n)) for n in range(100)), return_exceptions=True
        )

    errors = clock.run(main())
    assert all(isinstance(error, RetriesExhausted) for error in errors)
    assert len(backend.calls) == 100 + 3 + 20


def test_budget_exhausted_during_wait_is_respected():
    budget = RetryBudgetOptions(ratio=0.0, reserve=1.0, per_second=0.0)
    clock = VirtualClock()
    backend = Backend(clock, fails(503))
    events = []
    retry = RetryOptions(budget=budget, backoff=Backoff(jitter=0.0))
    send = Pipeline((retry,), clock=clock, observers=[events.append]).bind(backend.send)

    async def main():
        await asyncio.gather(
            send(BasicRequest(payload=1)), send(BasicRequest(payload=2)), return_exceptions=True
        )

    clock.run(main())
    assert len(backend.calls) == 3
    assert [e.kind for e in events].count(EventKind.GAVE_UP) == 2


def test_internal_error_is_not_retried():
    async def broken(backend, request):
        raise KeyError("bug")

    error, backend, _, _ = outcome(broken)
    assert isinstance(error, KeyError)
    assert len(backend.calls) == 1


def test_full_jitter_covers_its_range():
    backoff, rng = Backoff(initial_delay_s=1.0, max_delay_s=5.0), random.Random(0)
    for failed, bound in [(1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (2000, 5.0)]:
        waits = [backoff.sample_delay(failed, rng) for _ in range(300)]
        assert backoff.compute_max_delay(failed) == bound
        assert 0 <= min(waits) < 0.05 * bound
        assert 0.95 * bound < max(waits) <= bound
