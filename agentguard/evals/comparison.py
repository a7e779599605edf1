"""Run-by-run comparison of two evaluations: runs that both, one or neither gets right, and significance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from agentguard.errors import EvaluationError
from agentguard.evals.prediction import Prediction
from agentguard.evals.report.breakdown import BreakdownRow, summarize_runs
from agentguard.evals.result import Evaluation
from agentguard.evals.scoring import Case, is_step_correct
from agentguard.evals.statistics import PairedDifference, compare_paired, mean
from agentguard.verdict import Verdict


class Criterion(StrEnum):
    """Field of a prediction that must be right."""

    STEP = "step"
    AGENT = "agent"
    OUTCOME = "outcome"


class CorrectSide(StrEnum):
    """Evaluations that got a run right in more than half of the repeats."""

    BOTH = "both"
    ONLY_A = "only_a"
    ONLY_B = "only_b"
    NEITHER = "neither"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunPair:
    """Run in both evaluations, with the share of the repeats in which each got it right."""

    case: Case
    a: BreakdownRow
    b: BreakdownRow
    share_a: float
    share_b: float

    @property
    def side(self) -> CorrectSide:
        """The evaluations that got the run right."""
        if self.share_a > 0.5:
            return CorrectSide.BOTH if self.share_b > 0.5 else CorrectSide.ONLY_A
        return CorrectSide.ONLY_B if self.share_b > 0.5 else CorrectSide.NEITHER


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationComparison:
    """Comparison of two evaluations over the runs that both scored.

    Attributes:
        criterion: the field that must be right.
        pairs: the runs that both scored and that are annotated for the criterion, in the order of the first.
        difference: first minus second, with interval and McNemar's test.
        counts: number of runs on each side.
        left_out: number of runs of either evaluation that are not among the pairs.
        same_data: whether both evaluations used the same files.
    """

    criterion: Criterion
    pairs: tuple[RunPair, ...]
    difference: PairedDifference
    counts: Mapping[CorrectSide, int]
    left_out: int
    same_data: bool


def compare_evaluations(
    a: Evaluation, b: Evaluation, *, criterion: Criterion = Criterion.STEP
) -> EvaluationComparison:
    """Compare two evaluations run by run.

    Runs are the same if they have the same name and number of steps.

    Raises:
        EvaluationError: they share no run that is annotated for ``criterion``.
    """
    rows_b = {(row.case.run, row.case.length): row for row in summarize_runs(b)}
    shares_a, shares_b = _compute_shares(a, criterion), _compute_shares(b, criterion)
    pairs = tuple(
        RunPair(
            case=row.case, a=row, b=other, share_a=shares_a[row.case.run], share_b=shares_b[other.case.run]
        )
        for row in summarize_runs(a)
        if (other := rows_b.get((row.case.run, row.case.length))) is not None
        and row.case.run in shares_a
        and other.case.run in shares_b
    )
    if not pairs:
        raise EvaluationError(f"{a.method} and {b.method}: no run of both is annotated for {criterion.value}")
    side_counts = Counter(pair.side for pair in pairs)
    return EvaluationComparison(
        criterion=criterion,
        pairs=pairs,
        difference=compare_paired(
            [pair.share_a for pair in pairs], [pair.share_b for pair in pairs], _list_groups(pairs)
        ),
        counts={side: side_counts[side] for side in CorrectSide},
        left_out=len({c.run for c in (*a.cases, *b.cases)} - {pair.case.run for pair in pairs}),
        same_data=bool(a.checksum) and a.checksum == b.checksum,
    )


def _list_groups(pairs: Sequence[RunPair]) -> list[str]:
    """Return the question of each run; a run without one is its own group."""
    return [pair.case.group or f"\0{index}" for index, pair in enumerate(pairs)]


def _is_agent_correct(case: Case, prediction: Prediction) -> bool:
    return bool(prediction.agents) and prediction.agents[0] == case.agent


def _is_outcome_correct(case: Case, prediction: Prediction) -> bool:
    return prediction.verdict == (Verdict.FAILED if case.failed else Verdict.NO_FAILURE_FOUND)


_CRITERION_RULES: Final[Mapping[Criterion, tuple[str, Callable[[Case, Prediction], bool]]]] = {
    Criterion.STEP: ("step", is_step_correct),
    Criterion.AGENT: ("agent", _is_agent_correct),
    Criterion.OUTCOME: ("failed", _is_outcome_correct),
}


def _compute_shares(evaluation: Evaluation, criterion: Criterion) -> dict[str, float]:
    """Return the share of correct repeats of each run that is annotated for the criterion."""
    field, rule = _CRITERION_RULES[criterion]
    cases = {case.run: case for case in evaluation.cases if getattr(case, field) is not None}
    outcomes: dict[str, list[bool]] = {}
    for prediction in evaluation.predictions:
        if prediction.run in cases:
            outcomes.setdefault(prediction.run, []).append(rule(cases[prediction.run], prediction))
    return {run: mean(repeats) for run, repeats in outcomes.items()}
