"""Causal cycles of agentguard's own fault tolerance: pipelines of the proxy under agents and a judge.

Agents repeat failed calls. With a judge, a third of the calls also asks a judge on the same server, through
its own pipeline.

Run: .venv/bin/python -m benchmarks.cascades_proxy
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any, ClassVar

from agentguard.chaos.causality import FaultProbe, StitchingCampaign, search_cycles
from agentguard.chaos.causality.stitching_report import describe_reproducer
from agentguard.chaos.causality.workload_run import WorkloadFunction
from agentguard.errors import DeadlineExceeded, ResilienceError
from agentguard.options import Options
from agentguard.resilience import (
    AttemptTimeoutOptions,
    BasicRequest,
    Deadline,
    EventKind,
    Pipeline,
    ResilienceEvent,
    RetryBudgetOptions,
    RetryOptions,
    Runtime,
    Send,
    StrategyOptions,
    TimeoutOptions,
    build_standard_strategies,
)
from benchmarks.cascade_system import CAPACITY, Server, generate_load

DAMPING = {
    EventKind.SHED: "load shedding",
    EventKind.THROTTLE: "adaptive throttling",
    EventKind.BREAKER: "circuit breaker",
    EventKind.GAVE_UP: "retry budget",
}
UNBOUNDED = RetryBudgetOptions(ratio=1.0, reserve=1e6, per_second=1e6, burst=1e6)
NAIVE = (TimeoutOptions(total_s=3.0), RetryOptions(budget=UNBOUNDED), AttemptTimeoutOptions(seconds=1.0))
STANDARD = build_standard_strategies(total_timeout_s=3.0, attempt_timeout_s=1.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptProbe(Options):
    """Strategy that marks each attempt; it is outside the attempt's timeout and circuit breaker."""

    name: ClassVar[str] = "attempt_probe"
    probe: Any
    site: str

    def build(self, inner: Send, runtime: Runtime) -> BoundAttemptProbe:
        """Bind the strategy to the ``send`` of the next one."""
        del runtime
        return BoundAttemptProbe(self.probe, self.site, inner)


class BoundAttemptProbe:
    """Probe that marks each attempt."""

    def __init__(self, probe: FaultProbe, site: str, inner: Send) -> None:
        self._probe, self._site, self._inner = probe, site, inner

    async def send(self, request: Any, deadline: Deadline) -> Any:
        """Send the request on."""
        async with self._probe.iteration(self._site) as attempt:
            response = await self._inner(request, deadline)
            attempt.throw_point(DeadlineExceeded)
            return response


def build_client(
    probe: FaultProbe,
    rng: random.Random,
    server: Server,
    site: str,
    strategies: tuple[StrategyOptions, ...],
) -> Send:
    """Return a pipeline in front of the server; ``site`` is the site of its attempts."""

    async def send(request: Any, deadline: Deadline) -> Any:
        del request, deadline
        await server.request(60.0)

    def observe(event: ResilienceEvent) -> None:
        if event.kind in DAMPING:
            probe.damp(DAMPING[event.kind])

    place = next(number for number, one in enumerate(strategies) if one.name == RetryOptions.name) + 1
    order = (*strategies[:place], AttemptProbe(probe=probe, site=site), *strategies[place:])
    return Pipeline(order, clock=probe.clock, rng=rng, observers=[observe]).bind(send).send


def build_agents(
    strategies: tuple[StrategyOptions, ...], *, load: float, attempts: int, judged: bool = False
) -> WorkloadFunction:
    """Return agents that call a model, repeat a failed call, and optionally ask a judge after an answer."""

    async def workload(probe: FaultProbe, rng: random.Random) -> None:
        server = Server(probe, "server.serve")
        call_model = build_client(probe, rng, server, "model.attempt", strategies)
        call_judge = build_client(probe, rng, server, "judge.attempt", strategies)

        async def ask_judge() -> None:
            for _ in range(attempts):
                try:
                    async with probe.iteration("guard.check") as check:
                        await call_judge(BasicRequest(), Deadline.never(clock=probe.clock))
                        check.throw_point(ResilienceError)
                    return
                except ResilienceError:
                    continue

        async def take_turn() -> None:
            for _ in range(attempts):
                try:
                    async with probe.iteration("agent.call") as call:
                        await call_model(BasicRequest(), Deadline.never(clock=probe.clock))
                        call.throw_point(ResilienceError)
                    probe.complete()
                    break
                except ResilienceError:
                    continue
            if judged and rng.random() < 1 / 3:
                await ask_judge()

        await generate_load(probe, rng, load * CAPACITY, take_turn)

    return workload


def build_workloads(strategies: tuple[StrategyOptions, ...]) -> dict[str, WorkloadFunction]:
    """Return workloads with one condition each, and two with both."""
    return {
        "busy": build_agents(strategies, load=0.8, attempts=1),
        "patient": build_agents(strategies, load=0.3, attempts=5),
        "production": build_agents(strategies, load=0.8, attempts=5),
        "judge_busy": build_agents(strategies, load=0.6, attempts=1, judged=True),
        "judge_patient": build_agents(strategies, load=0.2, attempts=5, judged=True),
        "judge_production": build_agents(strategies, load=0.6, attempts=5, judged=True),
    }


def main() -> None:
    """Search the cycles of a naive pipeline and of the standard one."""
    for name, strategies in (("retries without budget", NAIVE), ("standard pipeline", STANDARD)):
        workloads = build_workloads(strategies)
        campaign = StitchingCampaign.model_validate(
            {"version": 1, "workloads": list(workloads), "schedule": {"delays_s": [1.0, 2.0]}}
        )
        begin = time.perf_counter()
        result = search_cycles(campaign, workloads=workloads)
        seconds = time.perf_counter() - begin
        print(f"{name}: {result.runs} runs, {len(result.edges)} edges, {seconds:.0f} s")
        for one in result.cycles:
            print(f"  {one.status}, damped by {', '.join(one.damping) or 'none'}: {one.cycle}")
            if one.reproducer is not None:
                print(f"    goodput {one.reproducer.goodput:.0%}: {describe_reproducer(one.reproducer)}")


if __name__ == "__main__":
    main()
