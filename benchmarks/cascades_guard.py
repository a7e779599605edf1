"""Causal cycles of the guard's recoveries: guarded agents whose tool is a loaded server.

Each task is a run of the guard's own loop with a scripted model. The model gives up at the first error unless
the guard sends a message. The tool raises TimeoutError if the server does not answer within a second. Only
the guard therefore repeats calls. The guards differ in their recoveries.

Run: .venv/bin/python -m benchmarks.cascades_guard
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import Any

from agentguard import Guard
from agentguard.chaos.agent_execution import virtual_time
from agentguard.chaos.causality import FaultProbe, StitchingCampaign, search_cycles
from agentguard.chaos.causality.stitching_report import describe_reproducer
from agentguard.chaos.causality.workload_run import WorkloadFunction
from agentguard.recover.recovery_policy import RecoveryPolicy
from agentguard.testing.virtual_clock import VirtualClock
from agentguard.trajectory.model import Trajectory
from benchmarks.cascade_system import SERVICE_S, Server, generate_load

WORKERS = 2
MODEL_S = 0.1
SERVER_TIMEOUT_S = 1.0
ANSWER = "Seat 4 is free."


def has_seat(run: Trajectory) -> bool | str:
    """Accept the answer with a seat; return a reason for any other one."""
    return run.steps[-1].content == ANSWER or "The answer has no seat: search again."


GUARDS: dict[str, Callable[[], Guard]] = {
    "default policy": Guard,
    "retried reads": lambda: Guard(recover=RecoveryPolicy(escalations={"tool_error": ["roll_forward"]})),
    "acceptance test": lambda: Guard(accept=has_seat),
}


class SearchModel:
    """Scripted model that searches, and answers with the result; a message of the guard starts it again."""

    def __init__(self, probe: FaultProbe) -> None:
        self._probe = probe
        self._calls = 0

    async def __call__(self, messages: list[dict[str, Any]]) -> Any:
        """Return the next answer."""
        await self._probe.clock.sleep(MODEL_S)
        last = messages[-1]
        if last["role"] == "tool":
            return ANSWER if "is free" in last["content"] else "I could not find a seat."
        self._calls += 1
        function = {"name": "search", "arguments": f'{{"row": {self._calls}}}'}
        call = {"id": str(self._calls), "type": "function", "function": function}
        return {"role": "assistant", "tool_calls": [call]}


def build_agents(build_guard: Callable[[], Guard], *, load: float) -> WorkloadFunction:
    """Return guarded agents that search on one server."""

    async def workload(probe: FaultProbe, rng: random.Random) -> None:
        server, guard = Server(probe, "server.serve", workers=WORKERS), build_guard()

        async def search(row: int) -> str:
            """Find a free seat in a row."""
            async with probe.iteration("tool.search") as iteration:
                await server.request(SERVER_TIMEOUT_S)
                iteration.throw_point(TimeoutError)
            return f"seat 4 in row {row} is free"

        guard.tool(effect="read")(search)

        async def run_task() -> None:
            async with probe.iteration("agent.task") as task:
                with guard.run("Find a free seat.", tools=[search]) as run:
                    model = SearchModel(probe)
                    while not run.done:
                        await run.atools(await run.amodel(model))
                strategies = [recovery.plan.strategy for recovery in run.recoveries]
                for strategy in strategies:
                    task.record(strategy)
                if run.answer == ANSWER:
                    probe.complete()
                else:
                    probe.damp(f"end after {', '.join(strategies) or 'no recovery'}")

        assert isinstance(probe.clock, VirtualClock)
        with virtual_time(probe.clock):
            await generate_load(probe, rng, load * WORKERS / SERVICE_S, run_task)

    return workload


def build_workloads(build_guard: Callable[[], Guard]) -> dict[str, WorkloadFunction]:
    """Return workloads with one condition each, high load or recoveries, and one with both."""
    return {
        "busy": build_agents(lambda: Guard(recover=RecoveryPolicy(threshold=1.0)), load=0.8),
        "guarded": build_agents(build_guard, load=0.3),
        "production": build_agents(build_guard, load=0.8),
    }


def main() -> None:
    """Search the cycles of each guard."""
    for name, build_guard in GUARDS.items():
        workloads = build_workloads(build_guard)
        campaign = StitchingCampaign.model_validate(
            {"version": 1, "workloads": list(workloads), "schedule": {"delays_s": [2.0]}}
        )
        begin = time.perf_counter()
        result = search_cycles(campaign, workloads=workloads)
        seconds = time.perf_counter() - begin
        print(f"{name}: {result.runs} runs, {len(result.edges)} edges, {seconds:.0f} s", flush=True)
        for one in result.cycles:
            print(f"  {one.status}, damped by {', '.join(one.damping) or 'none'}: {one.cycle}")
            if one.reproducer is not None:
                print(f"    goodput {one.reproducer.goodput:.0%}: {describe_reproducer(one.reproducer)}")


if __name__ == "__main__":
    main()
