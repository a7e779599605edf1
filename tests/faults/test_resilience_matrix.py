"""Every fault, streamed or not, before and after the first token, idempotent or not: four invariants.

- I1: an answer or a typed error by the deadline + 250 ms.
- I2: attempts within the budget; a request with effects is processed at most once.
- I3: a complete answer or one typed error.
- I4: no leaks.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from agentguard.errors import ResilienceError
from agentguard.resilience import (
    AdaptiveThrottlingOptions,
    AttemptTimeoutOptions,
    Backoff,
    BasicRequest,
    CircuitBreakerOptions,
    CircuitState,
    HedgeOptions,
    LoadSheddingOptions,
    Pipeline,
    RetryOptions,
    StreamTimeoutOptions,
    TimeoutOptions,
)
from agentguard.testing.virtual_clock import VirtualClock
from tests.unit.resilience.scripted_backend import (
    WHOLE,
    Backend,
    answer,
    carries,
    ends,
    fails,
    hang,
    read,
    stream,
)

TOTAL_S = 8.0
CALLS = 40

BEFORE = {
    "refused": fails(stage="unsent"),
    "reset": fails(None),
    "429 with a wait": fails(429, retry_after_s=0.5),
    "429 with a stop": fails(429, retry_after_s=-1.0),
    "429 with a wait beyond all bounds": fails(429, retry_after_s=1e9),
    "500": fails(500),
    "503 at once": fails(503, seconds=0.001),
    "400": fails(400),
    "hang": hang(),
    "slow": answer(1.5),
}
STREAMED = {
    f"{then} after {tokens}": stream(tokens=tokens, then=then)
    for then in ("cut", "close", "stall", "drip", "error")
    for tokens in (0, 3)
} | {"slow first token": stream(first=1.5), "heartbeats first": stream(beats=30), "slow": stream(gap=0.9)}
CASES = [(name, fault, streamed) for name, fault in BEFORE.items() for streamed in (False, True)] + [
    (name, fault, True) for name, fault in STREAMED.items()
]


def pipeline(clock, rng):
    order = (
        TimeoutOptions(total_s=TOTAL_S),
        LoadSheddingOptions(),
        RetryOptions(backoff=Backoff(initial_delay_s=0.1)),
        HedgeOptions(min_samples=5),
        AdaptiveThrottlingOptions(),
        CircuitBreakerOptions(failure_ratio=0.8),
        AttemptTimeoutOptions(seconds=3.0),
        StreamTimeoutOptions(
            first_chunk_timeout_s=2.0, idle_timeout_s=1.0, has_content=carries, is_last=ends
        ),
    )
    return Pipeline(order, clock=clock, rng=rng)


async def one(send, clock, call):
    """Return (seconds, answer or error) of a call, read to its end."""
    before = clock.now()
    try:
        response = await send(call)
        result = await read(response) if hasattr(response, "aclose") else response
    except ResilienceError as error:
        result = error
    return clock.now() - before, result


@pytest.mark.parametrize("idempotent", [True, False], ids=["idempotent", "effects"])
@pytest.mark.parametrize(
    ("name", "fault", "streamed"), CASES, ids=[f"{n}-{'stream' if s else 'whole'}" for n, _, s in CASES]
)
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("share", [0.3, 1.0])
def test_every_fault_meets_the_invariants(name, fault, streamed, idempotent, seed, share):
    clock, rng = VirtualClock(), random.Random(seed)
    good = stream() if streamed else answer(0.2)
    backend = Backend(clock, *[fault if rng.random() < share else good for _ in range(CALLS * 6)])
    send = pipeline(clock, rng).bind(backend.send)
    calls = [BasicRequest(payload=n, idempotent=idempotent) for n in range(CALLS)]

    async def main():
        tasks = []
        for call in calls:
            tasks.append(asyncio.create_task(one(send, clock, call)))
            await clock.sleep(rng.expovariate(10.0))
        results = await asyncio.gather(*tasks)
        assert (backend.running, backend.streams) == (0, 0)
        return results

    results = clock.run(main())  # raises if a task remains
    for call, (seconds, result) in zip(calls, results, strict=True):
        where = f"{name}, seed {seed}, call {call.payload}"
        assert seconds <= TOTAL_S + 0.25, where
        if not isinstance(result, ResilienceError):
            assert result == (WHOLE if streamed else f"answer to {call.payload}") or name == "slow", where
        assert backend.attempts[call.payload] <= 3 + 3, where
        if not idempotent:
            assert backend.effects[call.payload] <= 1, where
    retries_and_hedges = 3 + 10 * clock.now() + 0.2 * CALLS + 0.05 * 3 * CALLS
    assert sum(backend.attempts.values()) <= CALLS + retries_and_hedges
    layers = send.bound_strategies
    assert (layers["load_shedding"].inflight, layers["load_shedding"].queue_length) == (0, 0)
    assert not (
        layers["circuit_breaker"].state is CircuitState.HALF_OPEN
        and layers["circuit_breaker"]._has_probe_in_flight
    )
    if share < 1 and name not in ("429 with a stop", "429 with a wait beyond all bounds"):
        assert sum(not isinstance(result, ResilienceError) for _, result in results) >= CALLS * 0.3
