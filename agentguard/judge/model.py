"""The embedded judge's model: specialists for kinds of log it knows, what transfers for all others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from agentguard.detect.base import Finding
from agentguard.judge.choice import Array
from agentguard.judge.features.answer import answer_columns
from agentguard.judge.features.layout import Layout
from agentguard.judge.features.table import StepTable, step_table
from agentguard.judge.kinds import Kind
from agentguard.judge.outcome import UNKNOWN_FAILED, UNKNOWN_PASSED, Outcome, run_row, thumb
from agentguard.judge.portable import alone
from agentguard.judge.ranker import Ranker, listening
from agentguard.trajectory.model import Trajectory

# Log-odds that a certain finding adds to its step in a kind never seen. Where one agent calls tools, the
# order of turns tells little and results tell much: there rules outrank the ranking.
_PULL, _PULL_ALONE = 2.0, 5.0
_NOTABLE = 0.4
_CONSEQUENCE = 0.6
_EPISODE = 3  # steps within which a detector that fires again sees the same trouble go on


@dataclass(frozen=True, slots=True)
class Specialist:
    """What was learnt of one kind of log: its ranker, its outcome model, or both.

    Attributes:
        kind: the structure of its runs.
        ranker: of steps; None if too few runs of the kind were annotated.
        outcome: of runs; None unless enough runs of the kind failed and enough passed.
        runs: number of training runs.
    """

    kind: Kind
    ranker: Ranker | None
    outcome: Outcome | None
    runs: int


@dataclass(frozen=True, slots=True)
class Judgement:
    """What the model says of a run.

    Attributes:
        table: the run's candidates and features.
        steps: probability of each candidate to be the root cause, given that the run failed.
        failed: probability that the run failed.
        low, high: up to which, and above which, the run is called passed and failed.
        known_ranking, known_outcome: whether a specialist answered.
    """

    table: StepTable
    steps: Array
    failed: float
    low: float
    high: float
    known_ranking: bool
    known_outcome: bool


@dataclass(frozen=True, slots=True)
class Model:
    """A trained embedded judge; ``with_answer`` if it learnt to read the gold answer."""

    specialists: tuple[Specialist, ...]
    portable: Ranker
    with_answer: bool = False

    def judge(
        self,
        run: Trajectory,
        findings: Sequence[Finding] = (),
        *,
        risk: float,
        answer: str | None = None,
        signals: Array | None = None,
    ) -> Judgement:
        """Judge a run, which must have a step.

        ``findings`` count only where no specialist answers, ``signals`` only in a model trained with them.
        """
        table = step_table(run)
        values = with_columns(table, answer) if self.with_answer else table.values
        held = table.layout
        known = [one for one in self.specialists if one.kind.holds(held)]
        ranker = next((one.ranker for one in known if one.ranker is not None), None)
        outcome = next((one.outcome for one in known if one.outcome is not None), None)
        if ranker is not None:
            steps = ranker.probabilities(values, signals)
        else:
            steps = _pulled(self.portable.probabilities(values, signals), table, findings)
        failed, low, high = _outcome(held, outcome, findings, risk)
        return Judgement(table, steps, failed, low, high, ranker is not None, outcome is not None)

    def listens(self, weights: Sequence[float]) -> Model:
        """The model with given weights of signals, wherever it was not trained with any."""
        beside = listening(weights)

        def told(ranker: Ranker) -> Ranker:
            return ranker if ranker.beside is not None else replace(ranker, beside=beside)

        specialists = tuple(
            one if one.ranker is None else replace(one, ranker=told(one.ranker)) for one in self.specialists
        )
        return replace(self, specialists=specialists, portable=told(self.portable))

    def portable_only(self) -> Model:
        """The model as it answers on a format it never saw."""
        return replace(self, specialists=())


def with_columns(table: StepTable, answer: str | None) -> Array:
    """The table's values with the columns that the gold answer adds."""
    return np.hstack([table.values, answer_columns(table, answer)])


def _outcome(
    held: Layout, model: Outcome | None, findings: Sequence[Finding], risk: float
) -> tuple[float, float, float]:
    if model is None:
        return thumb(held, findings), UNKNOWN_PASSED, UNKNOWN_FAILED
    low, high = model.thresholds(risk)
    return float(model.probability(run_row(held))[0]), low, high


def _pulled(steps: Array, table: StepTable, findings: Sequence[Finding]) -> Array:
    """Move belief towards steps with notable findings: on an unknown kind they are the best evidence.

    The earliest counts most, since what goes wrong later is often its consequence; for the same reason a
    detector that fires again within `_EPISODE` steps counts only where it began, or where another fires too.
    """
    best: dict[int, float] = {}
    last: dict[str, int] = {}
    for finding in sorted(findings, key=lambda f: f.step):
        if finding.probability < _NOTABLE:
            continue
        goes_on = finding.step - last.get(finding.detector, -_EPISODE - 1) <= _EPISODE
        last[finding.detector] = finding.step
        if not goes_on or finding.step in best:
            best[finding.step] = max(best.get(finding.step, 0.0), min(1.0, finding.probability))
    pull = np.zeros(len(steps))
    rows = [row for row, index in enumerate(table.steps) if index in best]
    strength = _PULL_ALONE if alone(table.values) else _PULL
    for order, row in enumerate(rows):
        pull[row] = strength * best[table.steps[row]] * _CONSEQUENCE**order
    weights = steps * np.exp(pull)
    return np.asarray(weights / weights.sum())
