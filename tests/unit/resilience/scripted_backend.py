"""A backend that acts by a script, call by call, and counts its acts."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from agentguard.errors import BackendError
from agentguard.resilience import BasicRequest, Clock, Deadline

TOKENS = tuple(f"token {n}" for n in range(5))
LAST = "[DONE]"
BEAT = ": heartbeat"

Act = Callable[["Backend", BasicRequest], Awaitable[Any]]


def carries(chunk: str) -> bool:
    return chunk != BEAT


def ends(chunk: str) -> bool:
    return chunk == LAST


class Backend:
    """Takes its next act from the script, and repeats the last act."""

    def __init__(self, clock: Clock, *script: Act) -> None:
        self.clock, self.script = clock, list(script)
        self.calls: list[float] = []
        self.attempts: Counter[Any] = Counter()
        self.effects: Counter[Any] = Counter()
        self.running = self.streams = 0
        self.cancelled: list[float] = []

    async def send(self, request: BasicRequest, deadline: Deadline) -> Any:
        act = self.script.pop(0) if len(self.script) > 1 else self.script[0]
        self.calls.append(self.clock.now())
        self.attempts[request.payload] += 1
        self.running += 1
        try:
            return await act(self, request)
        except asyncio.CancelledError:
            self.cancelled.append(self.clock.now())
            raise
        finally:
            self.running -= 1


def answer(seconds: float = 0.1) -> Act:
    """Return an act with a whole answer."""

    async def act(backend: Backend, request: BasicRequest) -> Any:
        backend.effects[request.payload] += 1
        await backend.clock.sleep(seconds)
        return f"answer to {request.payload}"

    return act


def hang() -> Act:
    return answer(1e6)


def fails(
    status: int | None = None,
    *,
    stage: Any = "sent",
    retry_after_s: float | None = None,
    seconds: float = 0.05,
) -> Act:
    """Return an act with a typed error; its effect may have happened before, unless it was refused."""

    async def act(backend: Backend, request: BasicRequest) -> Any:
        await backend.clock.sleep(seconds)
        backend.effects[request.payload] += stage != "unsent" and status != 429
        raise BackendError("it failed", status=status, stage=stage, retry_after_s=retry_after_s)

    return act


def stream(
    *, first: float = 0.1, tokens: int = 5, gap: float = 0.05, then: str = "end", beats: int = 0
) -> Act:
    """Return a streamed answer: tokens, then its end, a cut, a quiet close, a stall, a drip or an error."""

    async def chunks(backend: Backend, request: BasicRequest) -> AsyncIterator[str]:
        backend.streams += 1
        try:
            backend.effects[request.payload] += 1
            for _ in range(beats):
                await backend.clock.sleep(first)
                yield BEAT
            await backend.clock.sleep(first)
            for token in TOKENS[:tokens]:
                yield token
                await backend.clock.sleep(gap)
            async for chunk in _ending(backend.clock, then):
                yield chunk
        finally:
            backend.streams -= 1

    async def act(backend: Backend, request: BasicRequest) -> Any:
        return chunks(backend, request)

    return act


async def read(response: Any) -> list[str]:
    """Return all chunks of a streamed answer except the heartbeats; always close the stream."""
    try:
        return [chunk async for chunk in response if carries(chunk)]
    finally:
        await response.aclose()


async def _ending(clock: Clock, then: str) -> AsyncIterator[str]:
    if then == "end":
        yield LAST
    elif then == "cut":
        raise ConnectionResetError
    elif then == "error":
        raise BackendError("a bad line in the stream")
    elif then == "stall":
        await clock.sleep(1e6)
    while then == "drip":
        await clock.sleep(1)
        yield BEAT


WHOLE = [*TOKENS, LAST]
