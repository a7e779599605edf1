"""Causal stitching of a set of workloads: experiments, cycles, confirmation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from agentguard.chaos.causality.clusters import score_faults
from agentguard.chaos.causality.confirmation import ConfirmedCycle, CycleConfirmer, CycleStatus
from agentguard.chaos.causality.cycles import find_cycles
from agentguard.chaos.causality.edges import CausalEdge
from agentguard.chaos.causality.experiments import ExperimentPlanner
from agentguard.chaos.causality.workload import WorkloadFunction, WorkloadRun
from agentguard.config.policy import format_validation_error, load_yaml
from agentguard.errors import ConfigError
from agentguard.plugins import import_function

_REFERENCE = r"^[\w.]+:\w+$"


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class StitchingSchedule(_Section):
    """Number of the runs.

    Attributes:
        repeats: runs of each experiment, and of each workload without a fault.
        max_runs: greatest number of runs with a fault before the confirmation of cycles.
        delays_s: virtual seconds of a delay; a longer one is used if a shorter one has no effect.
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
        """Import the workloads. Raises ConfigError."""
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
