"""Causal stitching of a set of workloads: experiments, cycles, confirmation."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentguard.chaos.causality.cycle_confirmation import ConfirmedCycle, CycleConfirmer, CycleStatus
from agentguard.chaos.causality.cycles import find_cycles
from agentguard.chaos.causality.edges import CausalEdge, EffectKind, find_edges
from agentguard.chaos.causality.fault_clusters import cluster_faults, score_faults
from agentguard.chaos.causality.fault_probe import FaultInjection, FaultKind, SiteFault
from agentguard.chaos.causality.workload_run import WorkloadFunction, WorkloadRun, run_workload
from agentguard.config.policy import format_validation_error, load_yaml
from agentguard.errors import ConfigError
from agentguard.plugins import import_function


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StitchingSchedule(_Section):
    """Number of the runs.

    Attributes:
        repeats: runs of each experiment, and of each workload without a fault.
        max_runs: maximum number of runs with a fault before the confirmation of cycles.
        delays_s: virtual seconds of a delay; a longer delay follows if a shorter one has no effect.
        seed: seed of the runs and of the draws.
    """

    repeats: int = Field(default=3, ge=2, le=100)
    max_runs: int = Field(default=1_000, ge=1)
    delays_s: tuple[float, ...] = Field(default=(1.0, 8.0), min_length=1)
    seed: int = 0


class StitchingCampaign(_Section):
    """File of a search for causal cycles.

    Attributes:
        workloads: ``MODULE:FUNCTION`` of each workload.
        schedule: number of the runs.
        min_goodput: share of the successful work without faults below which a cycle counts as undamped.
    """

    version: Literal[1]
    workloads: tuple[str, ...] = Field(min_length=1)
    schedule: StitchingSchedule = StitchingSchedule()
    min_goodput: float = Field(default=0.5, gt=0, le=1)

    @field_validator("workloads")
    @classmethod
    def _validate_references(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if len(set(value)) < len(value):
            raise ValueError("a workload occurs twice")
        return value

    @classmethod
    def load(cls, path: str | Path) -> StitchingCampaign:
        """Read a campaign file. Raises ConfigError with the file and every invalid field."""
        try:
            return cls.model_validate(load_yaml(path))
        except ValidationError as error:
            raise ConfigError(f"{path}: {format_validation_error(error, cls)}") from None

    def load_workloads(self) -> dict[str, WorkloadFunction]:
        """Return the workloads by name. Raises ConfigError if one cannot be imported."""
        return {
            name: cast(WorkloadFunction, import_function(name, place="workloads: "))
            for name in self.workloads
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class StitchingResult:
    """Result of a search.

    Attributes:
        cycles: cycles with the result of their confirmation, undamped ones first.
        edges: edges of all experiments.
        runs: number of runs with one fault.
        sites: number of sites that the workloads reach.
    """

    cycles: tuple[ConfirmedCycle, ...]
    edges: tuple[CausalEdge, ...]
    runs: int
    sites: int

    @property
    def undamped(self) -> tuple[ConfirmedCycle, ...]:
        """Cycles that nothing damps."""
        return tuple(one for one in self.cycles if one.status is CycleStatus.UNDAMPED)


def search_cycles(
    campaign: StitchingCampaign,
    *,
    workloads: Mapping[str, WorkloadFunction] | None = None,
    on_run: Callable[[WorkloadRun], None] = lambda _: None,
) -> StitchingResult:
    """Inject single faults, stitch their consequences to cycles, and confirm each cycle.

    Args:
        campaign: the campaign.
        workloads: name to workload; imported from the campaign by default.
        on_run: callback after each run with one fault.

    Raises:
        ConfigError: a workload cannot be imported.
    """
    functions = campaign.load_workloads() if workloads is None else workloads
    schedule = campaign.schedule
    planner = ExperimentPlanner(
        functions,
        repeats=schedule.repeats,
        delays_s=schedule.delays_s,
        max_runs=schedule.max_runs,
        seed=schedule.seed,
        on_run=on_run,
    )
    planner.run()
    confirmer = CycleConfirmer(
        functions, planner.profiles, min_goodput=campaign.min_goodput, seed=schedule.seed
    )
    found = find_cycles(planner.edges, score_faults(planner.edges))
    cycles = sorted((confirmer.confirm(cycle) for cycle in found), key=lambda one: _ORDER.index(one.status))
    sites = {path[-1] for runs in planner.profiles.values() for path in runs[0].sizes}
    return StitchingResult(
        cycles=tuple(cycles), edges=tuple(planner.edges), runs=planner.runs, sites=len(sites)
    )


_ORDER = list(CycleStatus)


WORKLOADS_PER_FAULT = 3
"""Workloads of a fault in the first phase, and of a cluster in the second."""


class ExperimentPlanner:
    """Planner and runner of single-fault experiments within a budget of runs.

    Args:
        workloads: name to workload.
        repeats: runs of each experiment and of each workload without a fault.
        delays_s: lengths of a delay, shortest first.
        max_runs: maximum number of runs with a fault.
        seed: seed of the draws; the runs of an experiment have the seeds of the runs without a fault.
        on_run: callback after each run.

    Attributes:
        profiles: runs without a fault by name of the workload.
        edges: edges of all experiments so far.
        runs: number of runs with a fault so far.
    """

    def __init__(
        self,
        workloads: Mapping[str, WorkloadFunction],
        *,
        repeats: int,
        delays_s: Sequence[float],
        max_runs: int,
        seed: int,
        on_run: Callable[[WorkloadRun], None] = lambda _: None,
    ) -> None:
        self._workloads = workloads
        self._seeds = range(seed, seed + repeats)
        self._delays_s = sorted(delays_s)
        self._max_runs = max_runs
        self._rng = random.Random(seed)  # noqa: S311 - not a secret
        self._on_run = on_run
        self._done: set[tuple[SiteFault, str]] = set()
        self.edges: list[CausalEdge] = []
        self.runs = 0
        self.profiles = {
            name: [run_workload(name, workload, one) for one in self._seeds]
            for name, workload in workloads.items()
        }

    @property
    def faults(self) -> list[SiteFault]:
        """Faults that a workload reaches."""
        return sorted(set().union(*(runs[0].faults for runs in self.profiles.values())))

    def run(self) -> None:
        """Execute the three phases, or the part of them that the budget permits."""
        for fault in self.faults:
            for workload in self._list_open_workloads(fault)[:WORKLOADS_PER_FAULT]:
                self._run_experiment(fault, workload)
        for cluster in cluster_faults(self.faults, self.edges):
            candidates = list(self._list_open_experiments(cluster))
            for fault, workload in self._rng.sample(candidates, min(len(candidates), WORKLOADS_PER_FAULT)):
                self._run_experiment(fault, workload)
        while self._has_budget() and (candidates := list(self._list_open_experiments(self.faults))):
            scores = score_faults(self.edges)
            weights = [1.01 - scores.get(fault, 0.5) for fault, _ in candidates]
            self._run_experiment(*self._rng.choices(candidates, weights)[0])

    def _has_budget(self) -> bool:
        return self.runs + len(self._seeds) <= self._max_runs

    def _list_open_workloads(self, fault: SiteFault) -> list[str]:
        """Return the workloads that reach a fault; the first ones add the most sites."""
        open_names = [
            name
            for name, runs in self.profiles.items()
            if fault in runs[0].faults and (fault, name) not in self._done
        ]
        ordered: list[str] = []
        covered: set[str] = set()
        while open_names:
            best = max(
                open_names,
                key=lambda name: (len(self._get_sites(name) - covered), -len(self._get_sites(name))),
            )
            ordered.append(best)
            covered |= self._get_sites(best)
            open_names.remove(best)
        return ordered

    def _get_sites(self, workload: str) -> set[str]:
        return {path[-1] for path in self.profiles[workload][0].sizes}

    def _list_open_experiments(self, faults: Sequence[SiteFault]) -> Iterator[tuple[SiteFault, str]]:
        """Yield the experiments that are not done; a delay only at a site that another fault affects."""
        affected = {edge.site for edge in self.edges}
        for fault in faults:
            if fault.kind is FaultKind.DELAY and fault.site not in affected:
                continue
            for workload in self._list_open_workloads(fault):
                yield fault, workload

    def _run_experiment(self, fault: SiteFault, workload: str) -> None:
        """Inject a fault; lengthen a delay until it has an execution effect."""
        self._done.add((fault, workload))
        for delay_s in self._delays_s if fault.kind is FaultKind.DELAY else (0.0,):
            if not self._has_budget():
                return
            edges = self._find_edges(fault, workload, delay_s)
            self.edges += edges
            if any(edge.effect is EffectKind.EXECUTION for edge in edges):
                return

    def _find_edges(self, fault: SiteFault, workload: str, delay_s: float) -> list[CausalEdge]:
        profiles = self.profiles[workload]
        # The start of a run has no load yet, and its end has no time for consequences.
        start_s = 0.25 * min(run.duration_s for run in profiles)
        injection = FaultInjection(fault=fault, start_s=start_s, delay_s=delay_s)
        runs = []
        for seed in self._seeds:
            runs.append(run_workload(workload, self._workloads[workload], seed, [injection]))
            self.runs += 1
            self._on_run(runs[-1])
        if not all(run.injected for run in runs):
            return []
        return find_edges(fault, profiles, runs, delay_s=delay_s)
