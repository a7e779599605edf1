"""Rescue rate, disruption rate and base failure rate of interventions, from paired runs.

An intervention helps where the base failure rate p exceeds d / (r + d) (arXiv 2602.03338):

- r is the share of runs that fail without the guard and pass with it, of those that fail without it;
- d is the share of runs that pass without the guard and fail with it, of those that pass without it;
- p is the share of runs that fail without the guard.

Each rate has a Wilson interval of 95 %. A verdict holds for all values inside the intervals.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from agentguard.evals.statistics import wilson_interval


class PilotVerdict(StrEnum):
    """Effect of an intervention on the share of passed runs."""

    HELPS = "helps"
    HURTS = "hurts"
    UNDECIDED = "undecided"
    """The intervals permit both."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotPair:
    """Run of a task without the guard, with a run of the task under the guard.

    Attributes:
        task: name of the task or scenario.
        failed_without, failed_with: whether each run failed.
        trigger: detector of the guard's first recovery; empty without a recovery.
        strategy: strategy of that recovery; empty without a recovery.
        added_harm: wrong or repeated effects with the guard, minus those without it.
    """

    task: str
    failed_without: bool
    failed_with: bool
    trigger: str = ""
    strategy: str = ""
    added_harm: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotRate:
    """Share ``count / n`` with its Wilson interval; without a run, the interval is [0, 1]."""

    count: int
    n: int

    @property
    def value(self) -> float:
        """Return the share; 0 without a run."""
        return self.count / self.n if self.n else 0.0

    @property
    def interval(self) -> tuple[float, float]:
        """Return the limits of the interval."""
        return wilson_interval(self.value, self.n) if self.n else (0.0, 1.0)

    def to_dict(self) -> dict[str, Any]:
        """Return the rate as plain values for JSON."""
        return {"count": self.count, "n": self.n, "interval": [round(one, 4) for one in self.interval]}


@dataclass(frozen=True, slots=True, kw_only=True)
class InterventionEstimate:
    """Rates of the interventions of one strategy after one trigger.

    Attributes:
        trigger: detector; empty for all runs together.
        strategy: strategy; empty for all runs together.
        base_failure, rescue, disruption: the rates p, r and d.
        added_harm: sum of the additional wrong or repeated effects.
    """

    trigger: str
    strategy: str
    base_failure: PilotRate
    rescue: PilotRate
    disruption: PilotRate
    added_harm: int

    @classmethod
    def from_pairs(cls, trigger: str, strategy: str, pairs: Sequence[PilotPair]) -> InterventionEstimate:
        """Count the pairs."""
        failed = [one for one in pairs if one.failed_without]
        passed = [one for one in pairs if not one.failed_without]
        return cls(
            trigger=trigger,
            strategy=strategy,
            base_failure=PilotRate(count=len(failed), n=len(pairs)),
            rescue=PilotRate(count=sum(not one.failed_with for one in failed), n=len(failed)),
            disruption=PilotRate(count=sum(one.failed_with for one in passed), n=len(passed)),
            added_harm=sum(one.added_harm for one in pairs),
        )

    @property
    def gain(self) -> float:
        """Return the additional share of passed runs."""
        n = self.base_failure.n
        return (self.rescue.count - self.disruption.count) / n if n else 0.0

    @property
    def threshold(self) -> float:
        """Return the base failure rate d / (r + d) above which the intervention helps."""
        return _compute_threshold(self.rescue.value, self.disruption.value)

    @property
    def verdict(self) -> PilotVerdict:
        """Compare the base failure rate with the threshold over all values inside the intervals."""
        low, high = self.base_failure.interval
        (r_low, r_high), (d_low, d_high) = self.rescue.interval, self.disruption.interval
        if self.added_harm <= 0 and self.rescue.count and low > _compute_threshold(r_low, d_high):
            return PilotVerdict.HELPS
        if self.added_harm > 0 or (self.disruption.count and high < _compute_threshold(r_high, d_low)):
            return PilotVerdict.HURTS
        return PilotVerdict.UNDECIDED

    def to_dict(self) -> dict[str, Any]:
        """Return the estimate as plain values for JSON."""
        return {
            "trigger": self.trigger,
            "strategy": self.strategy,
            "base_failure": self.base_failure.to_dict(),
            "rescue": self.rescue.to_dict(),
            "disruption": self.disruption.to_dict(),
            "threshold": round(self.threshold, 4),
            "gain": round(self.gain, 4),
            "added_harm": self.added_harm,
            "verdict": self.verdict.value,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class PilotReport:
    """Estimates of a pilot.

    Attributes:
        overall: estimate over the pairs of the guard as configured, with and without a recovery.
        interventions: estimates by trigger and strategy, sorted by name.
    """

    overall: InterventionEstimate
    interventions: tuple[InterventionEstimate, ...]

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values for JSON."""
        return {
            "overall": self.overall.to_dict(),
            "interventions": [one.to_dict() for one in self.interventions],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeRun:
    """Recorded run with a known outcome.

    Attributes:
        id: id of the run.
        task: task of the run; runs of equal tasks are paired in their order.
        failed: whether the run failed.
        trigger: detector of the guard's first recovery; empty without a recovery.
        strategy: strategy of that recovery.
    """

    id: str
    task: str
    failed: bool
    trigger: str = ""
    strategy: str = ""


def pair_runs(
    without: Iterable[OutcomeRun], guarded: Iterable[OutcomeRun]
) -> tuple[list[PilotPair], list[str]]:
    """Pair runs of equal tasks in their order; return the pairs, and the ids of the other runs."""
    waiting: dict[str, list[OutcomeRun]] = defaultdict(list)
    for run in without:
        waiting[_normalize_task(run.task)].append(run)
    pairs: list[PilotPair] = []
    alone: list[str] = []
    for run in guarded:
        partners = waiting[_normalize_task(run.task)]
        if not partners:
            alone.append(run.id)
            continue
        partner = partners.pop(0)
        pairs.append(
            PilotPair(
                task=f"{partner.id} {run.id}",
                failed_without=partner.failed,
                failed_with=run.failed,
                trigger=run.trigger,
                strategy=run.strategy,
            )
        )
    return pairs, [*alone, *(run.id for partners in waiting.values() for run in partners)]


def estimate_interventions(
    pairs: Sequence[PilotPair], *, alternatives: Iterable[PilotPair] = ()
) -> PilotReport:
    """Estimate the rates by trigger and strategy.

    Args:
        pairs: pairs of the guard as configured.
        alternatives: pairs of guards with other strategies. They count by trigger and strategy only, and a
            task counts once.
    """
    cells: dict[tuple[str, str], dict[str, PilotPair]] = defaultdict(dict)
    for pair in (*pairs, *alternatives):
        if pair.trigger:
            cells[pair.trigger, pair.strategy].setdefault(pair.task, pair)
    return PilotReport(
        overall=InterventionEstimate.from_pairs("", "", pairs),
        interventions=tuple(
            InterventionEstimate.from_pairs(trigger, strategy, tuple(cell.values()))
            for (trigger, strategy), cell in sorted(cells.items())
        ),
    )


def _compute_threshold(rescue: float, disruption: float) -> float:
    return disruption / (rescue + disruption) if rescue + disruption else 1.0


def _normalize_task(task: str) -> str:
    return " ".join(task.split())
