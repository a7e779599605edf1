"""Streaming: runs come one after another, and each is diagnosed before its label is seen.

This is how a store of schemata is used: there is no training set, only what happened so far. A method is
asked about a run, then told its annotation, then asked about the next. Order matters, so several are drawn.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from agentguard.detect.base import Finding
from agentguard.errors import EvaluationError
from agentguard.evals.metrics import mean
from agentguard.evals.prediction import LazyFindings
from agentguard.evals.splits import list_groups
from agentguard.trajectory.model import Record, Trajectory


class OnlineLearner(Protocol):
    """A method that learns as it goes."""

    @property
    def name(self) -> str:
        """What tables call it."""
        ...

    def rank(self, run: Trajectory, findings: Sequence[Finding], *, group: str) -> Sequence[int]:
        """Steps, the likeliest root cause first; what was learnt from ``group`` must not be used."""
        ...

    def learn(self, record: Record) -> None:
        """Take in an annotated run, after it was ranked."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class PrequentialResult:
    """How one learner did over all orders.

    Attributes:
        name: of the learner.
        right: for each order, in the order in which runs came, whether the first step named was the gold one.
        runs: for each order the positions of the runs in the records, in the order in which they came.
    """

    name: str
    correct: tuple[tuple[bool, ...], ...]
    runs: tuple[tuple[int, ...], ...]

    def accuracy(self, start: int = 0, end: int | None = None) -> float:
        """Share of right answers among those that came from place ``start`` to before ``end``."""
        return mean(flag for order in self.correct for flag in order[start:end])

    def accuracy_by_run(self) -> tuple[float, ...]:
        """For each run the share of orders in which it was right."""
        count = len(self.runs[0])
        hits = [0] * count
        for order, flags in zip(self.runs, self.correct, strict=True):
            for place, flag in zip(order, flags, strict=True):
                hits[place] += flag
        return tuple(hit / len(self.runs) for hit in hits)


def evaluate_prequential(
    records: Sequence[Record],
    learners: Sequence[Callable[[], OnlineLearner]],
    *,
    orders: int = 5,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[PrequentialResult, ...]:
    """Stream annotated runs past learners.

    Args:
        records: runs with a root cause that has a step.
        learners: each makes a learner that knows nothing yet; a fresh one for each order.
        orders: how many orders are drawn.
        seed: of the orders; the same for every learner.
        progress: called with how many of how many orders are done.

    Raises:
        EvaluationError: no run is annotated, or no order is asked for.
    """
    causes = [record.annotation.root_cause for record in records]
    gold = [cause.step for cause in causes if cause is not None and cause.step is not None]
    if not gold or len(gold) < len(records) or orders < 1:
        raise EvaluationError("streaming needs at least one order, and runs that all have a root cause")
    groups, findings = list_groups(records), [LazyFindings(record.trajectory) for record in records]
    right: list[list[tuple[bool, ...]]] = [[] for _ in learners]
    drawn = _draw_orders(len(records), orders, seed)
    names = [""] * len(learners)
    for number, order in enumerate(drawn):
        made = [make() for make in learners]
        names = [learner.name for learner in made]
        flags: list[list[bool]] = [[] for _ in learners]
        for place in order:
            for learner, held in zip(made, flags, strict=True):
                ranked = learner.rank(records[place].trajectory, findings[place], group=groups[place])
                held.append(bool(ranked) and ranked[0] == gold[place])
            for learner in made:
                learner.learn(records[place])
        for held, done in zip(flags, right, strict=True):
            done.append(tuple(held))
        if progress:
            progress(number + 1, orders)
    return tuple(
        PrequentialResult(name=name, correct=tuple(done), runs=drawn)
        for name, done in zip(names, right, strict=True)
    )


def _draw_orders(count: int, orders: int, seed: int) -> tuple[tuple[int, ...], ...]:
    made = []
    for number in range(orders):
        order = list(range(count))
        random.Random(f"stream:{seed}:{number}").shuffle(order)  # noqa: S311
        made.append(tuple(order))
    return tuple(made)
