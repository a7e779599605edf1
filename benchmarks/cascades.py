"""Search for the cascades that are planted in a system of an agent and a proxy.

Run: .venv/bin/python -m benchmarks.cascades
"""

from __future__ import annotations

import time

from agentguard.chaos.causality import (
    CycleStatus,
    FaultInjection,
    StitchingCampaign,
    run_workload,
    search_cycles,
)
from benchmarks.cascade_system import WORKLOADS

PLANTED = {
    "retry amplification": {"backend.serve", "proxy.attempt"},
    "slow judge": {"judge.answer", "guard.check"},
    "context growth": {"model.prefill", "model.answer"},
    "rollback loop": {"agent.step", "agent.should_rollback"},
    "hedge storm": {"replica.serve", "proxy.should_hedge"},
    "lost error": {"tool.call", "agent.should_compact"},
    "breaker flapping": {"a.serve", "a.is_open", "b.serve", "b.is_open"},
    "unbounded queue": {"queue.take", "client.wait"},
}
"""Sites by name of the cascade."""


def list_lasting_single_faults(campaign: StitchingCampaign) -> list[str]:
    """Return the single faults after which a workload with both conditions has lost half of its work."""
    lasting = []
    for name, workload in WORKLOADS.items():
        if not name.endswith("_production"):
            continue
        profile = run_workload(name, workload, campaign.schedule.seed)
        late = 0.75 * profile.duration_s, profile.duration_s
        for fault in sorted(profile.faults):
            for delay_s in campaign.schedule.delays_s:
                injection = FaultInjection(fault=fault, start_s=0.25 * profile.duration_s, delay_s=delay_s)
                run = run_workload(name, workload, campaign.schedule.seed, [injection])
                if run.count_completions(*late) < campaign.min_goodput * profile.count_completions(*late):
                    lasting.append(f"{fault} in {name}")
    return lasting


def main() -> None:
    """Search the cycles, and compare them with the planted ones."""
    campaign = StitchingCampaign.model_validate(
        {"version": 1, "workloads": list(WORKLOADS), "schedule": {"delays_s": [1.0, 2.0]}}
    )
    begin = time.perf_counter()
    result = search_cycles(campaign, workloads=WORKLOADS)
    seconds = time.perf_counter() - begin
    found = {one.cycle.sites for one in result.undamped}
    for name, sites in PLANTED.items():
        print(f"{'found' if frozenset(sites) in found else 'missed':8}{name}: {', '.join(sorted(sites))}")
    for one in result.cycles:
        is_planted = set(one.cycle.sites) in PLANTED.values()
        if not (is_planted and one.status is CycleStatus.UNDAMPED):
            print(f"{one.status:12}{', '.join(one.damping) or 'none'}: {one.cycle}")
    print(f"lasting effects of single faults: {list_lasting_single_faults(campaign) or 'none'}")
    print(f"{len(WORKLOADS)} workloads, {result.sites} sites, {result.runs} runs, {seconds:.1f} s")


if __name__ == "__main__":
    main()
