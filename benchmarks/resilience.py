"""Cost of the pipeline per successful call: each strategy alone, the standard order, and peers.

Run: .venv/bin/python benchmarks/resilience.py [--json] Peers are measured if they are installed (pip
install tenacity stamina aiolimiter), in the same run, each around the same backend, in turns. They do less:
one retries under a timeout and a rate limit, ours applies every strategy that the report lists.
"""

import argparse
import asyncio
import json
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Any

from agentguard.resilience import (
    AdaptiveThrottlingOptions,
    AttemptTimeoutOptions,
    BasicRequest,
    CircuitBreakerOptions,
    ConcurrencyLimitOptions,
    Deadline,
    HedgeOptions,
    LoadSheddingOptions,
    Pipeline,
    RetryOptions,
    StreamTimeoutOptions,
    TimeoutOptions,
    build_standard_strategies,
)

CALL = BasicRequest(payload="x")
Caller = Callable[[], Awaitable[Any]]


async def backend(_request: BasicRequest, _deadline: Deadline) -> str:
    return "answer"


async def chunks() -> Any:
    for _ in range(100):
        yield "chunk"


async def streaming(_request: BasicRequest, _deadline: Deadline) -> Any:
    return chunks()


def ours() -> dict[str, Caller]:
    """Return the calls through a pipeline, by name."""
    alone = (
        TimeoutOptions(),
        LoadSheddingOptions(),
        RetryOptions(),
        HedgeOptions(),
        AdaptiveThrottlingOptions(),
        CircuitBreakerOptions(),
        AttemptTimeoutOptions(),
        StreamTimeoutOptions(),
    )
    pipelines = {strategy.name: (strategy,) for strategy in alone} | {
        "standard": build_standard_strategies(),
        "like the peers": (
            TimeoutOptions(),
            LoadSheddingOptions(concurrency=ConcurrencyLimitOptions(algorithm="fixed")),
            RetryOptions(),
        ),
    }

    def caller(strategies: Any) -> Caller:
        send = Pipeline(strategies).bind(backend)
        return lambda: send(CALL)

    return {name: caller(strategies) for name, strategies in pipelines.items()}


def peers() -> dict[str, Caller]:
    """Return the calls through the installed peers, by name."""
    found: dict[str, Caller] = {}
    never = Deadline.never()
    try:
        from aiolimiter import AsyncLimiter
    except ImportError:
        return found
    limiter = AsyncLimiter(1e9, 1.0)

    async def limited() -> str:
        async with asyncio.timeout(60), limiter:
            return await backend(CALL, never)

    try:
        import tenacity

        retrying = tenacity.AsyncRetrying(
            stop=tenacity.stop_after_attempt(3), wait=tenacity.wait_random_exponential(0.2, 10)
        )
        found["tenacity + aiolimiter + timeout"] = lambda: retrying(limited)
    except ImportError:
        pass
    try:
        import stamina

        found["stamina + aiolimiter + timeout"] = stamina.retry(on=OSError, attempts=3)(limited)
    except ImportError:
        pass
    return found


async def measure(callers: dict[str, Caller], rounds: int, calls: int) -> dict[str, list[float]]:
    """Return microseconds of processor time of single calls; every round runs each caller once."""
    took: dict[str, list[float]] = {name: [] for name in callers}
    clock = time.thread_time_ns
    for _ in range(rounds):
        for name, call in callers.items():
            for _ in range(calls):
                before = clock()
                await call()
                took[name].append((clock() - before) / 1000)
    return took


async def measure_stream(rounds: int) -> float:
    """Return the microseconds per chunk of a stream that the progress deadline adds."""
    send, extra = Pipeline((StreamTimeoutOptions(),)).bind(streaming), []
    for _ in range(rounds):
        before = time.thread_time()
        async for _ in chunks():
            pass
        plain = time.thread_time()
        async for _ in await send(CALL):
            pass
        extra.append((time.thread_time() - plain) - (plain - before))
    return 1e6 * statistics.median(extra) / 100


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[int(share * (len(values) - 1))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=40)
    arguments = parser.parse_args()
    direct: dict[str, Caller] = {"direct": lambda: backend(CALL, Deadline.never())}
    mine, others = ours(), peers()
    took = asyncio.run(measure({**direct, **mine, **others}, arguments.rounds, 500))
    base = statistics.median(took.pop("direct"))
    rows = {
        name: {"median_us": statistics.median(v) - base, "p99_us": percentile(v, 0.99) - base}
        for name, v in took.items()
    }
    chunk = asyncio.run(measure_stream(5 * arguments.rounds))
    ratios = {
        f"{own} / {name}": rows[own]["median_us"] / rows[name]["median_us"]
        for name in others
        for own in ("standard", "like the peers")
    }
    if arguments.json:
        print(json.dumps({"overhead": rows, "chunk_us": chunk, "ratio": ratios}))
        return
    print(f"{'around a call':<34} {'median µs':>10} {'p99 µs':>8}")
    for name, row in rows.items():
        print(f"{name:<34} {row['median_us']:>10.1f} {row['p99_us']:>8.1f}")
    print(f"a chunk of a stream, over plain: {chunk:.1f} µs")
    for name, ratio in ratios.items():
        print(f"ratio {name}: {ratio:.2f}")
    if not others:
        print("no peer is installed: pip install tenacity stamina aiolimiter")


if __name__ == "__main__":
    main()
