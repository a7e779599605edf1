import asyncio
import random

import pytest

from agentguard.errors import BackendError, CircuitOpen
from agentguard.resilience import (
    AdaptiveThrottlingOptions,
    BasicRequest,
    CircuitBreakerOptions,
    CircuitState,
    Deadline,
    Pipeline,
    Runtime,
    StreamTimeoutOptions,
    TimeoutOptions,
)
from agentguard.resilience.base import CallOutcome
from agentguard.resilience.circuit_breaker import SlidingWindow
from agentguard.testing.virtual_clock import VirtualClock
from tests.unit.resilience.scripted_backend import Backend, answer, carries, ends, fails, hang, read, stream


def bound(clock, backend, *strategies, observers=()):
    return Pipeline(strategies, clock=clock, rng=random.Random(3), observers=observers).bind(backend.send)


async def tried(send, n, payload=None):
    """Return the kinds of n outcomes in sequence."""
    kinds = []
    for k in range(n):
        try:
            await send(BasicRequest(payload=payload or k))
            kinds.append("good")
        except Exception as error:
            kinds.append(getattr(error, "code", type(error).__name__))
    return kinds


def test_breaker_opens_at_failure_ratio_after_minimum_calls():
    clock, events = VirtualClock(), []
    backend = Backend(clock, *[answer()] * 7, fails(500), fails(500), answer())
    send = bound(
        clock,
        backend,
        CircuitBreakerOptions(failure_ratio=0.2, minimum_throughput=10),
        observers=[events.append],
    )

    async def main():
        assert await tried(send, 10) == ["good"] * 7 + ["backend_error"] * 2 + ["good"]
        with pytest.raises(CircuitOpen) as caught:
            await send(BasicRequest())
        assert caught.value.retry_after_s == 5.0

    clock.run(main())
    assert [e.reason for e in events] == ["open"]
    assert len(backend.calls) == 10


@pytest.mark.parametrize("status", [400, 404, 429])
def test_caller_errors_do_not_open_breaker(status):
    clock = VirtualClock()
    backend = Backend(clock, fails(status))
    send = bound(clock, backend, CircuitBreakerOptions(minimum_throughput=1))
    assert clock.run(tried(send, 50)) == ["backend_error"] * 50


def test_old_failures_expire():
    clock = VirtualClock()
    backend = Backend(clock, *[fails(500)] * 9, answer())
    send = bound(clock, backend, CircuitBreakerOptions(minimum_throughput=10, sampling_duration_s=30.0))

    async def main():
        await tried(send, 9)
        await clock.sleep(31)
        return await tried(send, 20)

    assert clock.run(main()) == ["good"] * 20


def test_one_of_fifty_calls_may_probe():
    clock, events = VirtualClock(), []
    backend = Backend(clock, fails(500), answer(1.0))
    send = bound(
        clock,
        backend,
        CircuitBreakerOptions(minimum_throughput=1, break_duration_s=5.0),
        observers=[events.append],
    )

    async def main():
        await tried(send, 1)
        await clock.sleep(5)
        results = await asyncio.gather(
            *(send(BasicRequest(payload=n)) for n in range(50)), return_exceptions=True
        )
        assert sum(isinstance(r, CircuitOpen) for r in results) == 49
        assert results[0] == "answer to 0"

    clock.run(main())
    assert [e.reason for e in events] == ["open", "half_open", "closed"]
    assert len(backend.calls) == 2


def test_failed_probe_reopens_and_cancelled_probe_frees_the_permit():
    clock = VirtualClock()
    backend = Backend(clock, fails(500), hang(), fails(500), answer())
    send = bound(clock, backend, CircuitBreakerOptions(minimum_throughput=1, break_duration_s=5.0))
    breaker = send.bound_strategies["circuit_breaker"]

    async def main():
        await tried(send, 1)
        await clock.sleep(5)
        probe = asyncio.create_task(send(BasicRequest()))
        await clock.sleep(1)
        assert await tried(send, 1) == ["circuit_open"]
        probe.cancel()
        await asyncio.wait({probe})
        assert breaker.state is CircuitState.HALF_OPEN
        assert await tried(send, 2) == ["backend_error", "circuit_open"]
        await clock.sleep(5)
        assert await tried(send, 2) == ["good", "good"]

    clock.run(main())


def test_timeout_counts_but_cancellation_does_not():
    clock = VirtualClock()
    backend = Backend(clock, hang())
    send = bound(clock, backend, TimeoutOptions(total_s=1.0), CircuitBreakerOptions(minimum_throughput=2))
    breaker = send.bound_strategies["circuit_breaker"]

    async def main():
        for _ in range(5):
            task = asyncio.create_task(send(BasicRequest()))
            await clock.sleep(0.5)
            task.cancel()
            await asyncio.wait({task})
        assert breaker.state is CircuitState.CLOSED
        assert await tried(send, 3) == ["deadline_exceeded"] * 2 + ["circuit_open"]

    clock.run(main())


def test_stream_counts_at_its_end_and_probe_at_its_start():
    clock = VirtualClock()
    backend = Backend(clock, stream(tokens=2, then="cut"), stream(), stream(tokens=2, then="cut"))
    progress = StreamTimeoutOptions(has_content=carries, is_last=ends)
    send = bound(clock, backend, CircuitBreakerOptions(minimum_throughput=1, break_duration_s=5.0), progress)
    breaker = send.bound_strategies["circuit_breaker"]

    async def main():
        response = await send(BasicRequest())
        assert breaker.state is CircuitState.CLOSED
        with pytest.raises(BackendError):
            await read(response)
        assert breaker.state is CircuitState.OPEN
        await clock.sleep(5)
        response = await send(BasicRequest())
        assert breaker.state is CircuitState.CLOSED
        await read(response)
        assert breaker.state is CircuitState.CLOSED
        with pytest.raises(BackendError):
            await read(await send(BasicRequest()))
        assert breaker.state is CircuitState.OPEN

    clock.run(main())


def test_permits_of_earlier_states_and_repeated_ends_are_ignored():
    clock = VirtualClock()
    breaker = CircuitBreakerOptions(minimum_throughput=1).build(
        Backend(clock, answer()).send, Runtime(clock=clock)
    )
    late, later, first = breaker.acquire(), breaker.acquire(), breaker.acquire()
    first.release(CallOutcome.FAILURE)
    first.release(CallOutcome.SUCCESS)
    clock.advance(5)
    probe = breaker.acquire()
    late.release(CallOutcome.FAILURE)
    assert breaker.state is CircuitState.HALF_OPEN
    probe.release(CallOutcome.SUCCESS)
    probe.release(CallOutcome.FAILURE)
    later.release(CallOutcome.FAILURE)
    assert breaker.state is CircuitState.CLOSED


def test_window_counts_only_recent_calls():
    clock = VirtualClock(1000)
    window = SlidingWindow(10.0, clock)
    window.add(True)
    clock.advance(5)
    window.add(False)
    assert window.get_counts() == (1, 2)
    clock.advance(5)
    assert window.get_counts() == (0, 1)
    clock.advance(1e7)
    assert window.get_counts() == (0, 0)


def test_throttle_rejects_nothing_at_half_accepted_and_most_at_none():
    clock = VirtualClock()
    backend = Backend(clock, *[answer(), fails(429)] * 50, fails(429))
    send = bound(clock, backend, AdaptiveThrottlingOptions())
    throttle = send.bound_strategies["adaptive_throttling"]

    async def main():
        assert "overloaded" not in await tried(send, 100)
        assert throttle.compute_rejection_probability() == 0
        await tried(send, 5000)
        assert throttle.compute_rejection_probability() == 0.9
        before = len(backend.calls)
        await tried(send, 1000)
        assert 60 < len(backend.calls) - before < 140
        await clock.sleep(31)
        assert throttle.compute_rejection_probability() == 0

    clock.run(main())


def test_throttle_recovers_in_a_few_windows_and_emits_events():
    clock, events = VirtualClock(), []
    backend = Backend(clock, *[fails(503, seconds=0.01)] * 100, answer(0.01))
    send = bound(clock, backend, AdaptiveThrottlingOptions(window_s=10.0), observers=[events.append])
    throttle = send.bound_strategies["adaptive_throttling"]

    async def main():
        while len(backend.script) > 1:
            await tried(send, 10)
            await clock.sleep(0.01)
        assert throttle.compute_rejection_probability() > 0.6
        back = clock.now()
        while throttle.compute_rejection_probability():
            await tried(send, 10)
            await clock.sleep(0.01)
        assert clock.now() - back < 40

    clock.run(main())
    assert {e.kind for e in events} == {"throttle"}


def test_throttle_requires_minimum_requests():
    clock = VirtualClock()
    backend = Backend(clock, fails(503))
    send = bound(clock, backend, AdaptiveThrottlingOptions(min_requests=15))
    assert clock.run(tried(send, 15)) == ["backend_error"] * 15
    assert send.bound_strategies["adaptive_throttling"].compute_rejection_probability() == 0.9


def test_caller_error_counts_as_accepted():
    clock = VirtualClock()
    send = bound(clock, Backend(clock, fails(400)), AdaptiveThrottlingOptions())
    assert clock.run(tried(send, 50)) == ["backend_error"] * 50
    assert Deadline.never(clock=clock).is_expired is False
