import asyncio
import dataclasses

import pytest

from agentguard.errors import ConfigError, DeadlineExceeded, RetriesExhausted
from agentguard.resilience import (
    AdaptiveThrottlingOptions,
    AttemptTimeoutOptions,
    Backoff,
    BasicRequest,
    CircuitBreakerOptions,
    Deadline,
    LoadSheddingOptions,
    Pipeline,
    RetryOptions,
    StreamTimeoutOptions,
    TimeoutOptions,
    build_standard_strategies,
)
from agentguard.testing.virtual_clock import VirtualClock
from tests.unit.resilience.scripted_backend import WHOLE, Backend, answer, fails, hang, read, stream

NAMES = [
    "timeout",
    "load_shedding",
    "retry",
    "hedge",
    "adaptive_throttling",
    "circuit_breaker",
    "attempt_timeout",
    "stream_timeout",
]


def test_order_is_data_and_can_be_printed_and_compared():
    pipeline = Pipeline(build_standard_strategies())
    assert [s.name for s in pipeline.strategies] == NAMES
    assert pipeline.strategies == build_standard_strategies()
    assert pipeline.strategies != build_standard_strategies(total_timeout_s=5.0)
    lines = pipeline.describe()
    assert [line.split()[:2] for line in lines] == [[f"{n}.", name] for n, name in enumerate(NAMES, 1)]
    assert lines[0] == "1. timeout total_s=600"
    assert list(pipeline.bind(hang()).bound_strategies) == NAMES[::-1]


@pytest.mark.parametrize(
    ("order", "match"),
    [
        ((RetryOptions(), RetryOptions(max_attempts=2)), "retry twice"),
        ((AttemptTimeoutOptions(), CircuitBreakerOptions()), "breaker must precede attempt_timeout"),
        ((AttemptTimeoutOptions(), RetryOptions(), StreamTimeoutOptions()), "retry must precede"),
        ((StreamTimeoutOptions(), RetryOptions()), "stream_timeout must be the last"),
    ],
)
def test_contradictory_order_is_rejected(order, match):
    with pytest.raises(ConfigError, match=match):
        Pipeline(order)


def test_empty_pipeline_calls_the_backend():
    clock = VirtualClock()
    assert (
        clock.run(Pipeline((), clock=clock).bind(Backend(clock, answer()).send)(BasicRequest(payload=1)))
        == "answer to 1"
    )


def test_bindings_have_separate_state():
    clock = VirtualClock()
    pipeline = Pipeline((CircuitBreakerOptions(minimum_throughput=1),), clock=clock)
    bad, good = pipeline.bind(Backend(clock, fails(500)).send), pipeline.bind(Backend(clock, answer()).send)

    async def main():
        with pytest.raises(Exception, match="failed"):
            await bad(BasicRequest())
        await good(BasicRequest())

    clock.run(main())
    assert (
        bad.bound_strategies["circuit_breaker"].state,
        good.bound_strategies["circuit_breaker"].state,
    ) == (
        "open",
        "closed",
    )


@pytest.mark.parametrize(
    ("attempt_s", "error", "ended", "sources"),
    [
        (6.0, DeadlineExceeded, 10.0, ["attempt_timeout", "retry", "timeout"]),
        (4.0, RetriesExhausted, 9.0, ["attempt_timeout", "retry", "attempt_timeout", "retry"]),
    ],
)
def test_deadline_covers_all_attempts_and_waits(attempt_s, error, ended, sources):
    """The deadline cuts the second attempt short, or prevents a third one that would be late."""
    clock, events = VirtualClock(), []
    backend = Backend(clock, hang())
    retry = RetryOptions(backoff=Backoff(initial_delay_s=1.0, jitter=0.0))
    order = (TimeoutOptions(total_s=10.0), retry, AttemptTimeoutOptions(seconds=attempt_s))
    send = Pipeline(order, clock=clock, observers=[events.append]).bind(backend.send)

    async def main():
        with pytest.raises(error):
            await send(BasicRequest())

    clock.run(main())
    assert clock.now() == pytest.approx(ended)
    assert len(backend.calls) == len(backend.cancelled) == 2
    assert [e.source for e in events] == sources


def test_end_of_caller_deadline_is_not_a_failed_attempt():
    clock = VirtualClock()
    send = Pipeline((RetryOptions(), AttemptTimeoutOptions(seconds=5.0)), clock=clock).bind(
        Backend(clock, hang()).send
    )

    async def main():
        with pytest.raises(DeadlineExceeded):
            await send(BasicRequest(), Deadline.after(3.0, clock=clock))

    clock.run(main())


def test_earlier_caller_deadline_applies():
    clock = VirtualClock()
    send = Pipeline(build_standard_strategies(), clock=clock).bind(Backend(clock, hang()).send)

    async def main():
        with pytest.raises(DeadlineExceeded):
            await send(BasicRequest(), Deadline.after(2.0, clock=clock))

    clock.run(main())
    assert clock.now() == pytest.approx(2.0)


def test_custom_strategy_is_supported():
    clock = VirtualClock()

    @dataclasses.dataclass(frozen=True)
    class Chaos:
        every: int
        name = "chaos"

        def build(self, inner, runtime):
            state = {"n": 0}

            class Layer:
                async def send(_, request, deadline):
                    state["n"] += 1
                    if state["n"] % self.every:
                        return await inner(request, deadline)
                    return await fails(503)(Backend(runtime.clock, answer()), request)

            return Layer()

        def describe(self):
            return f"chaos every={self.every}"

    pipeline = Pipeline((RetryOptions(), Chaos(every=2)), clock=clock)
    send = pipeline.bind(Backend(clock, answer()).send)

    async def main():
        return [await send(BasicRequest(payload=n)) for n in range(6)]

    assert clock.run(main()) == [f"answer to {n}" for n in range(6)]
    assert pipeline.describe()[1] == "2. chaos every=2"


def test_standard_order_fails_over_before_first_token():
    clock = VirtualClock()
    backend = Backend(clock, stream(first=1e6), stream(tokens=0, then="cut"), stream())
    send = Pipeline(build_standard_strategies(attempt_timeout_s=5.0), clock=clock).bind(backend.send)

    async def main():
        return await read(await send(BasicRequest(payload=1)))

    assert clock.run(main()) == WHOLE
    assert len(backend.calls) == 3


def test_rejections_are_typed_and_contain_no_request_data():
    clock, secret = VirtualClock(), "sk-secret"
    send = Pipeline(
        (TimeoutOptions(), LoadSheddingOptions(), RetryOptions(), AdaptiveThrottlingOptions()), clock=clock
    ).bind(Backend(clock, fails(503)).send)

    async def main():
        with pytest.raises(RetriesExhausted) as caught:
            await send(BasicRequest(payload=secret))
        return caught.value

    error = clock.run(main())
    assert secret not in f"{error!r} {error} {error.last!r}"
    assert error.code == "retries_exhausted"
    assert asyncio.iscoroutinefunction(type(send).__call__)
