"""System of an agent and a proxy: workloads with eight planted cascades, a damped one and a harmless chain.

Each cascade needs two conditions at once. One workload has the first condition, another the second. The third
has both, at a load at which a single fault has no lasting effect.
"""

from __future__ import annotations

import asyncio
import itertools
import random
from collections import deque
from collections.abc import Awaitable, Callable

from agentguard.chaos.causality import (
    FaultProbe,
)
from agentguard.chaos.causality.workload_run import WorkloadFunction

DURATION_S = 40.0
SERVICE_S = 0.2
WORKERS = 4
CAPACITY = WORKERS / SERVICE_S
LOW, HIGH = 0.3 * CAPACITY, 0.8 * CAPACITY


class ToolError(Exception):
    """The tool refused the call."""


class Server:
    """Workers with a queue. Like an HTTP server it finishes requests whose clients have left."""

    def __init__(self, probe: FaultProbe, site: str, *, workers: int = WORKERS) -> None:
        self._probe, self._site = probe, site
        self._slots = asyncio.Semaphore(workers)

    async def serve(self) -> None:
        async with self._slots, self._probe.iteration(self._site):
            await self._probe.clock.sleep(SERVICE_S)

    async def request(self, timeout_s: float) -> None:
        """Wait for an answer for at most ``timeout_s``."""
        await asyncio.wait_for(asyncio.shield(spawn(self.serve())), timeout_s)


_tasks: set[asyncio.Task[None]] = set()


def spawn(work: Awaitable[None]) -> asyncio.Task[None]:
    """Start a task; keep a reference, without which the loop may drop it."""
    task = asyncio.ensure_future(work)
    _tasks.add(task)
    task.add_done_callback(_tasks.discard)
    return task


async def generate_load(
    probe: FaultProbe, rng: random.Random, rate: float, work: Callable[[], Awaitable[None]]
) -> None:
    """Start ``rate`` units of work a second until the end of the workload."""
    while probe.clock.now() < DURATION_S:
        spawn(work())
        await probe.clock.sleep(rng.uniform(0.8, 1.2) / rate)


async def run_agents(
    probe: FaultProbe, rng: random.Random, turn: Callable[[], Callable[[], Awaitable[None]]], pause_s: float
) -> None:
    """Run four agents, each with its own state, that take turns until the end of the workload."""

    async def run_agent() -> None:
        take_turn = turn()
        while True:
            await probe.clock.sleep(rng.uniform(0.8, 1.2) * pause_s)
            await take_turn()

    for _ in range(4):
        spawn(run_agent())
    await probe.clock.sleep(DURATION_S)


def build_retry(
    layer: str, site: str, server: str, *, rate: float, attempts: int, outer: int = 1, budget: float = 0.0
) -> WorkloadFunction:
    """Return a client that repeats timed-out attempts, in ``outer`` further layers without a budget."""

    async def workload(probe: FaultProbe, rng: random.Random) -> None:
        backend = Server(probe, server)
        tokens = budget

        async def attempt_all() -> None:
            nonlocal tokens
            for number in range(attempts):
                if budget and number:
                    if tokens < 1:
                        probe.damp("retry_budget")
                        break
                    tokens -= 1
                try:
                    async with probe.iteration(site) as iteration:
                        await backend.request(1.0)
                        iteration.throw_point(TimeoutError)
                        tokens = min(budget, tokens + 0.1)
                        return
                except TimeoutError:
                    continue
            raise TimeoutError

        async def call() -> None:
            for _ in range(outer):
                try:
                    async with probe.iteration(layer):
                        await attempt_all()
                    probe.complete()
                    return
                except TimeoutError:
                    continue

        await generate_load(probe, rng, rate, call)

    return workload


def build_conversation(*, grows: bool, tokens: int) -> WorkloadFunction:
    """Return an agent that asks again after a timeout, with its failed attempt in the context."""

    async def workload(probe: FaultProbe, rng: random.Random) -> None:
        def start() -> Callable[[], Awaitable[None]]:
            context = tokens

            async def prefill() -> None:
                async with probe.iteration("model.prefill", size=context):
                    await probe.clock.sleep(context / 5_000)

            async def take_turn() -> None:
                nonlocal context
                try:
                    async with probe.iteration("model.answer") as iteration:
                        await asyncio.wait_for(prefill(), 1.0)
                        iteration.throw_point(TimeoutError)
                    probe.complete()
                except TimeoutError:
                    if grows:
                        context += 500

            return take_turn

        await run_agents(probe, rng, start, 0.2)

    return workload


def build_rollback(*, errors: int, stale_token: bool, logins: int) -> WorkloadFunction:
    """Return an agent that rolls back after ``errors`` failed steps; a snapshot may hold an old token."""

    async def workload(probe: FaultProbe, rng: random.Random) -> None:
        def start() -> Callable[[], Awaitable[None]]:
            failed, has_token = 0, True
            recent: deque[float] = deque()

            def log_in() -> bool:
                """Log in at a server that refuses logins after too many attempts in three seconds."""
                now = probe.clock.now()
                recent.append(now)
                while recent[0] < now - 3.0:
                    recent.popleft()
                return len(recent) <= logins

            async def take_turn() -> None:
                nonlocal failed, has_token
                try:
                    async with probe.iteration("agent.step") as iteration:
                        await probe.clock.sleep(0.05)
                        iteration.throw_point(ToolError)
                        if not has_token:
                            raise ToolError("the token is not valid")
                    failed = 0
                    probe.complete()
                except ToolError:
                    failed += 1
                    has_token = has_token or log_in()
                if probe.decide("agent.should_rollback", failed >= errors):
                    failed = 0
                    has_token = not stale_token

            return take_turn

        await run_agents(probe, rng, start, 0.2)

    return workload


def build_hedge(*, rate: float, hedges: bool) -> WorkloadFunction:
    """Return a client that sends a second request after 0.3 s without an answer."""

    async def workload(probe: FaultProbe, rng: random.Random) -> None:
        server = Server(probe, "replica.serve")

        async def call() -> None:
            async with probe.iteration("proxy.request"):
                first = spawn(server.serve())
                await asyncio.wait([first], timeout=0.3)
                if probe.decide("proxy.should_hedge", not first.done()) and hedges:
                    second = spawn(server.serve())
                    done, _ = await asyncio.wait([first, second], timeout=1.0, return_when="FIRST_COMPLETED")
                else:
                    done, _ = await asyncio.wait([first], timeout=1.0)
            if done:
                probe.complete()

        await generate_load(probe, rng, rate, call)

    return workload


def build_compaction(*, room: int, lossy: bool) -> WorkloadFunction:
    """Return an agent that knows from an earlier error how to call its tool, and compacts its context."""

    async def workload(probe: FaultProbe, rng: random.Random) -> None:
        def start() -> Callable[[], Awaitable[None]]:
            summary, errors, knows_format = 0, 1, True

            async def take_turn() -> None:
                nonlocal summary, errors, knows_format
                try:
                    async with probe.iteration("tool.call") as iteration:
                        await probe.clock.sleep(0.05)
                        iteration.throw_point(ToolError)
                        if not knows_format:
                            raise ToolError("the date is not in ISO format")
                    probe.complete()
                except ToolError:
                    errors, knows_format = errors + 1, True
                if probe.decide("agent.should_compact", summary + 500 * errors > room):
                    summary, errors = summary + 300, 0
                    knows_format = not lossy

            return take_turn

        await run_agents(probe, rng, start, 0.2)

    return workload


def build_breakers(*, rate: float, threshold: int) -> WorkloadFunction:
    """Return a router over two replicas, each with a circuit breaker that opens for four seconds."""

    async def workload(probe: FaultProbe, rng: random.Random) -> None:
        servers = {name: Server(probe, f"{name}.serve") for name in ("a", "b")}
        failures: dict[str, deque[float]] = {name: deque() for name in servers}
        open_until = dict.fromkeys(servers, 0.0)
        numbers = itertools.count()

        def record_failure(name: str) -> None:
            now = probe.clock.now()
            times = failures[name]
            times.append(now)
            while times[0] < now - 1.0:
                times.popleft()
            if len(times) >= threshold:
                open_until[name] = now + 4.0
                times.clear()

        async def call() -> None:
            now = probe.clock.now()
            for name in ("a", "b") if next(numbers) % 2 else ("b", "a"):
                if probe.decide(f"{name}.is_open", now < open_until[name]):
                    continue
                try:
                    await servers[name].request(0.5)
                    probe.complete()
                except TimeoutError:
                    record_failure(name)
                return

        await generate_load(probe, rng, rate, call)

    return workload


def build_queue(*, rate: float, submissions: int) -> WorkloadFunction:
    """Return workers of a queue without a limit; clients submit again after a second."""

    async def workload(probe: FaultProbe, rng: random.Random) -> None:
        queue: asyncio.Queue[asyncio.Future[None]] = asyncio.Queue()

        async def work() -> None:
            while True:
                answer = await queue.get()
                async with probe.iteration("queue.take"):
                    await probe.clock.sleep(SERVICE_S)
                if not answer.done():
                    answer.set_result(None)

        async def call() -> None:
            for _ in range(submissions):
                answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
                queue.put_nowait(answer)
                try:
                    async with probe.iteration("client.wait") as iteration:
                        await asyncio.wait_for(answer, 1.0)
                        iteration.throw_point(TimeoutError)
                    probe.complete()
                    return
                except TimeoutError:
                    continue

        for _ in range(WORKERS):
            spawn(work())
        await generate_load(probe, rng, rate, call)

    return workload


def build_cache() -> WorkloadFunction:
    """Return a cache: misses cause more loads, but the delay of a load causes no miss."""

    async def workload(probe: FaultProbe, rng: random.Random) -> None:
        async def call() -> None:
            if probe.decide("cache.misses", False):
                async with probe.iteration("cache.load"):
                    await probe.clock.sleep(SERVICE_S)
            probe.complete()

        await generate_load(probe, rng, LOW, call)

    return workload


_RETRY = ("client.attempt", "proxy.attempt", "backend.serve")
_JUDGE = ("agent.turn", "guard.check", "judge.answer")
_SEARCH = ("search.call", "search.attempt", "search.serve")

WORKLOADS: dict[str, WorkloadFunction] = {
    "retry_load": build_retry(*_RETRY, rate=HIGH, attempts=1),
    "retry_policy": build_retry(*_RETRY, rate=LOW, attempts=3, outer=3),
    "retry_production": build_retry(*_RETRY, rate=HIGH, attempts=3, outer=3),
    "judge_fail_open": build_retry(*_JUDGE, rate=HIGH, attempts=1),
    "judge_repeat": build_retry(*_JUDGE, rate=LOW, attempts=5),
    "judge_production": build_retry(*_JUDGE, rate=HIGH, attempts=5),
    "context_fixed": build_conversation(grows=False, tokens=2_000),
    "context_short": build_conversation(grows=True, tokens=500),
    "context_production": build_conversation(grows=True, tokens=2_000),
    "rollback_fresh": build_rollback(errors=1, stale_token=False, logins=3),
    "rollback_rare": build_rollback(errors=50, stale_token=True, logins=3),
    "rollback_production": build_rollback(errors=2, stale_token=True, logins=3),
    "hedge_dry_run": build_hedge(rate=LOW, hedges=False),
    "hedge_idle": build_hedge(rate=LOW, hedges=True),
    "hedge_production": build_hedge(rate=0.6 * CAPACITY, hedges=True),
    "compaction_lossless": build_compaction(room=900, lossy=False),
    "compaction_roomy": build_compaction(room=50_000, lossy=True),
    "compaction_production": build_compaction(room=1_400, lossy=True),
    "breaker_sensitive": build_breakers(rate=LOW, threshold=1),
    "breaker_idle": build_breakers(rate=LOW, threshold=50),
    "breaker_production": build_breakers(rate=2 * HIGH, threshold=3),
    "queue_once": build_queue(rate=HIGH, submissions=1),
    "queue_idle": build_queue(rate=LOW, submissions=6),
    "queue_production": build_queue(rate=HIGH, submissions=6),
    "search_once": build_retry(*_SEARCH, rate=HIGH, attempts=1, budget=5.0),
    "search_idle": build_retry(*_SEARCH, rate=LOW, attempts=3, budget=5.0),
    "search_production": build_retry(*_SEARCH, rate=HIGH, attempts=3, budget=5.0),
    "cache": build_cache(),
}
