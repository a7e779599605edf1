"""Runs of a workload in virtual time."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agentguard.chaos.causality.fault_probe import CallSite, FaultInjection, FaultProbe, Signature, SiteFault
from agentguard.testing.virtual_clock import VirtualClock

WorkloadFunction = Callable[[FaultProbe, random.Random], Awaitable[None]]
"""Coroutine function that runs a system under load; it builds a new system for each call."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadRun:
    """Observations of a run.

    Attributes:
        workload: name of the workload.
        signatures: call site, with the site at its end, to the number of iterations by signature.
        sizes: call site, with the site at its end, to the sum of the sizes of its iterations.
        faults: faults that the sites permit.
        damping: number of times that each damping element acted, by name.
        injected: number of iterations that got a fault.
        completions: virtual seconds at which units of work were successful.
        duration_s: virtual seconds of the run.
    """

    workload: str
    signatures: dict[CallSite, Counter[Signature]]
    sizes: Counter[CallSite]
    faults: frozenset[SiteFault]
    damping: Counter[str]
    injected: int
    completions: tuple[float, ...]
    duration_s: float

    def count_completions(self, start_s: float, end_s: float) -> int:
        """Return the number of successful units of work between two virtual seconds."""
        return sum(start_s <= at < end_s for at in self.completions)


def run_workload(
    name: str, workload: WorkloadFunction, seed: int, injections: Sequence[FaultInjection] = ()
) -> WorkloadRun:
    """Run a workload to its end in virtual time; the same seed and injections give the same run.

    Raises:
        Exception: an exception of the workload itself; it must handle the errors that its sites declare.
    """
    clock = VirtualClock()
    probe = FaultProbe(clock, injections)

    async def main() -> WorkloadRun:
        await workload(probe, random.Random(seed))  # noqa: S311 - not a secret
        # Tasks that still run are cancelled next; the copies below do not contain what they record then.
        return WorkloadRun(
            workload=name,
            signatures={path: counts.copy() for path, counts in probe.signatures.items()},
            sizes=probe.sizes.copy(),
            faults=frozenset(probe.faults),
            damping=probe.damping.copy(),
            injected=probe.injected,
            completions=tuple(probe.completions),
            duration_s=clock.now(),
        )

    return clock.run(main(), allow_leaks=True)
