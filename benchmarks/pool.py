"""Processor time of the pool per request and per chunk: all of it, parts, and the endpoint alone.

Run: .venv/bin/python benchmarks/pool.py [--json] [--uvloop]

The endpoints answer at once at almost no cost, so the rest is the cost of the pool. Variants are measured in
turns. The report shows the minimum of each variant, which is the most accurate figure on a busy machine.
"""

import argparse
import asyncio
import json
import random
import time
from collections.abc import Awaitable, Callable
from typing import Any, Self

from agentguard.backends.base import BackendRequest, Response
from agentguard.backends.config import BackendsOptions
from agentguard.backends.pool import Pool
from agentguard.model_api import API_FORMATS
from agentguard.resilience import Deadline

BODY = b'{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"hello"}}]}'
CHUNK = b'data: {"id":"x","choices":[{"index":0,"delta":{"content":"tok"},"finish_reason":null}]}\n\n'
CHUNKS = 100
NEVER = Deadline.never()
VARIANTS: dict[str, dict[str, Any]] = {
    "everything": {},
    "without hedging": {"pipeline": {"hedge": "off"}},
    "over the choice alone": {"pipeline": ["timeout", "load_shedding", "retry", "hedge"]},
    "at the replica alone": {
        "pipeline": ["adaptive_throttling", "circuit_breaker", "attempt_timeout", "stream_timeout"]
    },
    "no strategies": {"pipeline": [], "outlier": "off"},
}


class Words:
    """Streamed answer without delay."""

    status, headers, notes, replica = 200, (), (), "a"

    def __init__(self) -> None:
        self._left = CHUNKS

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> bytes:
        self._left -= 1
        if self._left < -1:
            raise StopAsyncIteration
        return CHUNK if self._left >= 0 else b"data: [DONE]\n\n"

    async def aclose(self) -> None:
        pass


class Endpoint:
    def __init__(self, _options: Any = None) -> None:
        pass

    async def send(self, request: BackendRequest, _deadline: Deadline) -> Any:
        return Words() if request.stream else Response(status=200, body=BODY)

    async def aclose(self) -> None:
        pass


def request(*, stream: bool) -> BackendRequest:
    return BackendRequest(
        target="/chat/completions", body=b"{}", api=API_FORMATS["chat"], model="m", stream=stream
    )


def pool(section: dict[str, Any]) -> Pool:
    replicas = [{"name": name, "url": "http://127.0.0.1:1/v1"} for name in "abc"]
    options = BackendsOptions.parse({"replicas": replicas, "health": "off", **section})
    return Pool(options, connect=Endpoint, rng=random.Random(1))


async def asking(send: Callable[..., Awaitable[Any]], *, stream: bool, times: int) -> float:
    """Return the microseconds of processor time per request."""
    began = time.process_time()
    for _ in range(times):
        answer = await send(request(stream=stream), NEVER)
        if stream:
            async for _chunk in answer:
                pass
    return (time.process_time() - began) / times * 1e6


async def measure(rounds: int) -> dict[str, dict[str, float]]:
    sends: dict[str, Any] = {"the endpoint alone": Endpoint().send}
    sends |= {name: pool(section).send for name, section in VARIANTS.items()}
    found: dict[str, dict[str, float]] = {}
    for name, send in sends.items():  # activates breakers, throttles and hedges
        await asking(send, stream=False, times=100)
        found[name] = {"request_us": float("inf"), "chunk_us": float("inf")}
    for _ in range(rounds):
        for name, send in sends.items():
            best = found[name]
            best["request_us"] = min(best["request_us"], await asking(send, stream=False, times=500))
            best["chunk_us"] = min(best["chunk_us"], await asking(send, stream=True, times=5) / CHUNKS)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--uvloop", action="store_true")
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    if given.uvloop:
        import uvloop

        found = uvloop.run(measure(given.rounds))
    else:
        found = asyncio.run(measure(given.rounds))
    if given.json:
        print(json.dumps(found))
        return
    alone = found["the endpoint alone"]
    print(f"{'':26}{'us a request':>14}{'over alone':>12}{'us a chunk':>12}")
    for name, costs in found.items():
        over = costs["request_us"] - alone["request_us"]
        print(f"{name:26}{costs['request_us']:14.1f}{over:12.1f}{costs['chunk_us']:12.2f}")


if __name__ == "__main__":
    main()
