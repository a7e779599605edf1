"""Confirmation of cycles by runs with all their faults, and reduction to the minimal reproducer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from agentguard.bundles.minimization import reduce_items
from agentguard.chaos.causality.cycles import CausalCycle
from agentguard.chaos.causality.fault_probe import FaultInjection, FaultKind
from agentguard.chaos.causality.workload_run import WorkloadFunction, WorkloadRun, run_workload

_TRIGGER_START = 0.25
_TRIGGER_END = 0.35
_LATE_START = 0.75
"""Parts of the run without a fault: the faults are active from the first to the second; the last quarter is
compared."""

_MIN_TRIGGER_S = 0.1


class CycleStatus(StrEnum):
    """Result of the confirmation of a cycle."""

    UNDAMPED = "undamped"
    """The rate of successful work stays low after the faults end."""
    DAMPED = "damped"
    """The rate returns, and a damping element acted."""
    TRANSIENT = "transient"
    """The rate returns although no damping element acted."""
    NOT_REACHED = "not reached"
    """No workload reaches all faults of the cycle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reproducer:
    """Run that shows a cycle.

    Attributes:
        workload: name of the workload.
        seed: seed of the run.
        injections: the faults.
        goodput: successful work in the last quarter of the run, divided by that without faults.
    """

    workload: str
    seed: int
    injections: tuple[FaultInjection, ...]
    goodput: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedCycle:
    """Cycle with the result of its confirmation.

    Attributes:
        cycle: the cycle.
        status: result.
        damping: elements that acted; empty without one.
        reproducer: the run with all faults; for an undamped cycle the smallest run that shows it. None if no
            workload reaches all faults.
    """

    cycle: CausalCycle
    status: CycleStatus
    damping: tuple[str, ...] = ()
    reproducer: Reproducer | None = None


class CycleConfirmer:
    """Confirmation of cycles by runs with all their faults.

    Args:
        workloads: name to workload.
        profiles: runs without a fault by name of the workload; the first has the seed ``seed``.
        min_goodput: share of the successful work without faults below which the rate has not returned.
        seed: seed of the runs.
    """

    def __init__(
        self,
        workloads: Mapping[str, WorkloadFunction],
        profiles: Mapping[str, Sequence[WorkloadRun]],
        *,
        min_goodput: float,
        seed: int,
    ) -> None:
        self._workloads = workloads
        self._profiles = {name: runs[0] for name, runs in profiles.items()}
        self._min_goodput = min_goodput
        self._seed = seed

    def confirm(self, cycle: CausalCycle) -> ConfirmedCycle:
        """Inject all faults of a cycle for a time, remove them, and compare the rate of successful work.

        The workloads that reach all faults run in turn, those with the fewest sites first, until one shows
        the cycle.
        """
        last: ConfirmedCycle | None = None
        for name in self._list_workloads(cycle):
            profile = self._profiles[name]
            for injections in self._list_injections(cycle, profile):
                reproducer, run = self._run(name, injections)
                if reproducer.goodput < self._min_goodput:
                    reproducer = self._shrink(reproducer)
                    return ConfirmedCycle(cycle=cycle, status=CycleStatus.UNDAMPED, reproducer=reproducer)
                damping = tuple(sorted(run.damping - profile.damping))
                status = CycleStatus.DAMPED if damping else CycleStatus.TRANSIENT
                if last is None or (damping and not last.damping):
                    last = ConfirmedCycle(cycle=cycle, status=status, damping=damping, reproducer=reproducer)
        return last or ConfirmedCycle(cycle=cycle, status=CycleStatus.NOT_REACHED)

    def measure_goodput(self, run: WorkloadRun) -> float:
        """Return the successful work in the last quarter of a run, divided by that without faults."""
        profile = self._profiles[run.workload]
        start_s, end_s = _LATE_START * profile.duration_s, profile.duration_s
        expected = profile.count_completions(start_s, end_s)
        return run.count_completions(start_s, end_s) / expected if expected else 1.0

    def _list_workloads(self, cycle: CausalCycle) -> list[str]:
        names = [name for name, run in self._profiles.items() if run.faults >= set(cycle.faults)]
        return sorted(names, key=lambda name: (len(self._profiles[name].sizes), name))

    def _list_injections(self, cycle: CausalCycle, profile: WorkloadRun) -> list[tuple[FaultInjection, ...]]:
        """Return all faults of a cycle, those without its decisions, and each of these alone."""
        every = tuple(
            FaultInjection(
                fault=edge.cause,
                count=None,
                start_s=_TRIGGER_START * profile.duration_s,
                end_s=_TRIGGER_END * profile.duration_s,
                delay_s=edge.delay_s,
            )
            for edge in cycle.edges
        )
        # A negated decision suppresses the effects of the other faults after the decision changes. Faults in
        # all parts of a symmetric system at once also hide a failure that moves between the parts.
        rest = tuple(one for one in every if one.fault.kind is not FaultKind.NEGATE)
        variants = [every, rest, *((one,) for one in rest)]
        return [variant for variant in dict.fromkeys(variants) if variant]

    def _run(self, name: str, injections: Sequence[FaultInjection]) -> tuple[Reproducer, WorkloadRun]:
        run = run_workload(name, self._workloads[name], self._seed, injections)
        goodput = self.measure_goodput(run)
        reproducer = Reproducer(workload=name, seed=self._seed, injections=tuple(injections), goodput=goodput)
        return reproducer, run

    def _shrink(self, reproducer: Reproducer) -> Reproducer:
        """Remove faults, then halve the time of the others, while the cycle remains."""

        def holds(injections: Sequence[FaultInjection]) -> bool:
            return self._run(reproducer.workload, injections)[0].goodput < self._min_goodput

        reproducer, _ = self._run(reproducer.workload, reduce_items(reproducer.injections, holds))
        while True:
            start_s, end_s = reproducer.injections[0].start_s, reproducer.injections[0].end_s
            end_s = start_s + (end_s - start_s) / 2
            shorter = tuple(replace(one, end_s=end_s) for one in reproducer.injections)
            smaller = self._try(reproducer, shorter)
            if smaller is reproducer or end_s - start_s < _MIN_TRIGGER_S:
                return smaller
            reproducer = smaller

    def _try(self, reproducer: Reproducer, injections: tuple[FaultInjection, ...]) -> Reproducer:
        candidate, _ = self._run(reproducer.workload, injections)
        return candidate if candidate.goodput < self._min_goodput else reproducer
