"""Prequential evaluation: runs arrive one after another, and each is diagnosed before its label is known.

A store of error schemata works like this: it has no training set, only earlier runs. The learner ranks the
steps of a run, then receives the annotation, then ranks the next run. Results depend on the order, so several
orders are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentguard.detect.base import Finding
from agentguard.detect.lazy_findings import LazyFindings
from agentguard.errors import EvaluationError
from agentguard.evals.splits import list_groups
from agentguard.evals.statistics import mean
from agentguard.trajectory.model import Record, Trajectory


class OnlineLearner(Protocol):
    """Method that learns from each run in turn."""

    @property
    def name(self) -> str:
        """Name in tables."""
        ...

    def rank(self, run: Trajectory, findings: Sequence[Finding], *, group: str) -> Sequence[int]:
        """Return steps, the most likely root cause first, without use of anything learnt from ``group``."""
        ...

    def learn(self, record: Record) -> None:
        """Learn from an annotated run, after it was ranked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PrequentialResult:
    """Results of one learner over all orders.

    Attributes:
        name: of the learner.
        correct: for each order, whether the first ranked step was the gold step, in order of arrival.
        runs: for each order, the positions of the runs in the records, in order of arrival.
    """

    name: str
    correct: tuple[tuple[bool, ...], ...]
    runs: tuple[tuple[int, ...], ...]

    def accuracy(self, start: int = 0, end: int | None = None) -> float:
        """Return the share of correct answers among the runs from position ``start`` to before ``end``."""
        return mean(flag for order in self.correct for flag in order[start:end])

    def accuracy_by_run(self) -> tuple[float, ...]:
        """Return for each run the share of orders in which the answer was correct."""
        count = len(self.runs[0])
        hits = [0] * count
        for order, flags in zip(self.runs, self.correct, strict=True):
            for index, flag in zip(order, flags, strict=True):
                hits[index] += flag
        return tuple(hit / len(self.runs) for hit in hits)


def evaluate_prequential(
    records: Sequence[Record],
    learners: Sequence[Callable[[], OnlineLearner]],
    *,
    orders: int = 5,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[PrequentialResult, ...]:
    """Evaluate online learners on a stream of annotated runs.

    Args:
        records: runs with a root cause that has a step.
        learners: factories of untrained learners; each order uses a new learner.
        orders: number of random orders.
        seed: of the orders; the same for every learner.
        progress: called with the number of finished orders and the total.

    Raises:
        EvaluationError: a run has no root cause, or ``orders`` is below 1.
    """
    causes = [record.annotation.root_cause for record in records]
    gold = [cause.step for cause in causes if cause is not None and cause.step is not None]
    if not gold or len(gold) < len(records) or orders < 1:
        raise EvaluationError(
            "prequential evaluation needs at least one order, and a root cause for every run"
        )
    groups, findings = list_groups(records), [LazyFindings(record.trajectory) for record in records]
    correct: list[list[tuple[bool, ...]]] = [[] for _ in learners]
    stream_orders = _draw_orders(len(records), orders, seed)
    names = [""] * len(learners)
    for number, order in enumerate(stream_orders):
        order_learners = [make() for make in learners]
        names = [learner.name for learner in order_learners]
        flags: list[list[bool]] = [[] for _ in learners]
        for index in order:
            for learner, learner_flags in zip(order_learners, flags, strict=True):
                ranking = learner.rank(records[index].trajectory, findings[index], group=groups[index])
                learner_flags.append(bool(ranking) and ranking[0] == gold[index])
            for learner in order_learners:
                learner.learn(records[index])
        for learner_flags, results in zip(flags, correct, strict=True):
            results.append(tuple(learner_flags))
        if progress:
            progress(number + 1, orders)
    return tuple(
        PrequentialResult(name=name, correct=tuple(results), runs=stream_orders)
        for name, results in zip(names, correct, strict=True)
    )


def _draw_orders(count: int, orders: int, seed: int) -> tuple[tuple[int, ...], ...]:
    shuffled_orders = []
    for number in range(orders):
        order = list(range(count))
        random.Random(f"stream:{seed}:{number}").shuffle(order)
        shuffled_orders.append(tuple(order))
    return tuple(shuffled_orders)
