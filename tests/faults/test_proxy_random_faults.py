"""Three seeded mixtures of all faults against the proxy with every strategy on: the four invariants hold.

The faults of each request and attempt depend only on the seed, so that a failed seed can be repeated:
``AGENTGUARD_SEED=17 pytest tests/faults/test_proxy_random_faults.py``.
"""

from __future__ import annotations

import asyncio
import os
import random
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from agentguard.testing.fake_backend import Corrupt, FakeBackend, FaultSchedule, InjectedFault, Ok
from tests.faults.proxy_cases import STREAMED, WHOLE
from tests.faults.proxy_client import PATHS, Breach, Got, ask, body_for, outcome
from tests.faults.proxy_process import SLACK_S, Proxy, replicas, serving
from tests.faults.test_proxy_fault_matrix import left_behind, settled

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SEEDS = [int(os.environ["AGENTGUARD_SEED"])] if "AGENTGUARD_SEED" in os.environ else [1, 2, 3]
SHARES = (0.3, 0.9)
TOTAL_S = 6.0
REQUESTS = 120
RATE = 20.0
PIPELINE: dict[str, Any] = {
    "timeout": {"total_s": TOTAL_S},
    "retry": {"backoff": {"initial_delay_s": 0.05, "max_delay_s": 0.5}},
    "hedge": {"min_samples": 10, "min_delay_s": 0.2},
    "circuit_breaker": {"failure_ratio": 0.8},
    "attempt_timeout": {"seconds": 2.0},
    "stream_timeout": {"first_chunk_timeout_s": 1.5, "idle_timeout_s": 1.5},
}
MAY_HAVE_ACTED = frozenset({408, 500, 502, 503, 504, 529})


def mixed(seed: int, share: float) -> FaultSchedule:
    """Return a fault, each with the same probability, or a correct answer."""
    faults: dict[InjectedFault, float] = {}
    for table in (WHOLE, STREAMED):
        for fault, _ in table.values():
            faults[fault] = 1.0
    faults = {fault: share / len(faults) for fault in faults}
    return FaultSchedule({**faults, Ok(): 1.0 - share}, seed=seed)


def test_random_faults_meet_the_invariants(tmp_path: Path) -> None:
    scenes = [(tmp_path / f"{seed}-{share}", seed, share) for seed in SEEDS for share in SHARES]
    with ThreadPoolExecutor(len(scenes)) as threads:  # each run mostly waits
        wrong = [what for found in threads.map(lambda scene: _scene(*scene), scenes) for what in found]
    assert not wrong, "\n".join(wrong[:40])


def _scene(folder: Path, seed: int, share: float) -> list[str]:
    """Return the violations of one mixture, with their seeds; the list should be empty."""
    script = mixed(seed, share)
    with (
        FakeBackend(script, name="a") as a,
        FakeBackend(script, name="b") as b,
        FakeBackend(script, name="c") as c,
    ):
        settings = {"backends": {"replicas": replicas(a, b, c), "pipeline": PIPELINE}}
        with serving(folder, settings) as proxy:
            wrong = asyncio.run(_run(proxy, (a, b, c), seed, share))
    return [f"seed {seed}, share {share}: {what}" for what in wrong]


async def _run(proxy: Proxy, backends: tuple[FakeBackend, ...], seed: int, share: float) -> list[str]:
    rng = random.Random(seed)
    loop = asyncio.get_running_loop()
    plans = [
        (f"{seed}-{n}", rng.choice(list(PATHS)), rng.random() < 0.5, rng.random() < 0.3)
        for n in range(REQUESTS)
    ]
    await proxy.get("/v1/models")
    before = await settled(proxy, backends)
    began, tasks = loop.time(), []
    for name, api, stream, effects in plans:
        tasks.append(asyncio.create_task(_one(proxy, name, api, stream=stream, effects=effects)))
        await asyncio.sleep(rng.expovariate(RATE))
    done = await asyncio.gather(*tasks)
    seconds = loop.time() - began
    wrong = [f"{plan}: {what}" for plan, got in zip(plans, done, strict=True) for what in _judge(plan, got)]
    wrong += [what for plan in plans for what in _effects(plan, backends)]
    asked = sum(len(backend.list_attempts(plan[0])) for plan in plans for backend in backends)
    most = REQUESTS * (1 + 0.2 + 0.05) + 3 + 10 * seconds
    if asked > most:
        wrong.append(f"I2: {asked} attempts for {REQUESTS} requests in {seconds:.1f} s")
    good = sum(got.status == 200 and _fine(plan, got) for plan, got in zip(plans, done, strict=True))
    if share < 0.5 and good < REQUESTS * 0.5:
        wrong.append(f"only {good} of {REQUESTS} were answered")
    return [*wrong, *await left_behind(proxy, backends, before)]


async def _one(proxy: Proxy, name: str, api: str, *, stream: bool, effects: bool) -> Got:
    more = {"background": True} if effects and api == "responses" else {}
    body = body_for(api, stream=stream, text=f"[[{name}]]", **more)
    return await ask(proxy.port, PATHS[api], body, seconds=TOTAL_S + 10)


def _judge(plan: tuple[str, str, bool, bool], got: Got) -> list[str]:
    wrong = [f"I1: {got.seconds:.1f} s"] if got.seconds > TOTAL_S + SLACK_S else []
    try:
        outcome(plan[1], got, stream=plan[2])
    except Breach as breach:
        wrong.append(f"I3: {breach}")
    return wrong


def _fine(plan: tuple[str, str, bool, bool], got: Got) -> bool:
    try:
        return outcome(plan[1], got, stream=plan[2]).error is None
    except Breach:
        return False


def _effects(plan: tuple[str, str, bool, bool], backends: tuple[FakeBackend, ...]) -> list[str]:
    """Check that at most one endpoint may have processed a request with effects."""
    name, api, _, effects = plan
    if not (effects and api == "responses"):
        return []
    acted = [one for backend in backends for one in backend.list_attempts(name) if _acted(one.fault)]
    return [f"{plan}: acted on {len(acted)} times"] if len(acted) > 1 else []


def _acted(fault: InjectedFault) -> bool:
    status = getattr(fault, "status", 200)
    return isinstance(fault, Corrupt | Ok) or status == 200 or status in MAY_HAVE_ACTED
