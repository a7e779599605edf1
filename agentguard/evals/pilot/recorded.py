"""Pairs of recorded runs: the same task without and with the guard."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from agentguard.evals.pilot.estimate import PilotPair


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
    """Pair runs of equal tasks in their order; return the pairs and the ids without a partner."""
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


def _normalize_task(task: str) -> str:
    return " ".join(task.split())
