from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentguard.errors import EvaluationError
from agentguard.evals.comparison import CorrectSide, Criterion, compare_evaluations
from agentguard.evals.datasets.dataset import to_dataset
from agentguard.evals.result import Evaluation
from agentguard.evals.runner import EvaluationPlan, EvaluationRunner
from agentguard.evals.statistics import mcnemar_p_value
from agentguard.trajectory.model import Record
from tests.unit.evals.cases import Says, record, records


def measured(runs: Sequence[Record], *steps: int) -> Evaluation:
    return EvaluationRunner(to_dataset(runs), EvaluationPlan()).measure(Says(*steps), label=f"says {steps}")


def test_every_run_is_classified() -> None:
    found = compare_evaluations(measured(records(), 1), measured(records(), 2))
    assert len(found.pairs) == 12
    assert found.counts == {
        CorrectSide.BOTH: 0,
        CorrectSide.ONLY_A: 8,
        CorrectSide.ONLY_B: 4,
        CorrectSide.NEITHER: 0,
    }
    assert {p.case.run for p in found.pairs if p.side is CorrectSide.ONLY_B} == {"r0", "r3", "r6", "r9"}


def test_difference_equals_the_paired_test() -> None:
    found = compare_evaluations(measured(records(), 1), measured(records(), 2)).difference
    assert found.mean == pytest.approx(4 / 12)
    assert (found.gained, found.lost) == (8, 4)
    assert found.p == mcnemar_p_value(8, 4)
    assert found.low <= found.mean <= found.high


def test_method_does_not_differ_from_itself() -> None:
    held = measured(records(), 1)
    found = compare_evaluations(held, held)
    assert found.counts[CorrectSide.BOTH] == 8
    assert found.counts[CorrectSide.NEITHER] == 4
    assert (found.difference.mean, found.difference.p) == (0, 1)


def test_only_common_runs_are_compared() -> None:
    found = compare_evaluations(measured(records(8), 1), measured([*records(4), record("other")], 1))
    assert [pair.case.run for pair in found.pairs] == ["r0", "r1", "r2", "r3"]
    assert found.left_out == 5
    assert not found.same_data


def test_run_of_another_length_is_another_run() -> None:
    with pytest.raises(EvaluationError, match="no run of both"):
        compare_evaluations(measured([record("r", steps=4)], 1), measured([record("r", steps=5)], 1))


def test_agents_and_outcomes_are_compared() -> None:
    runs = [*records(4), record("passed", step=None, failed=False)]
    one, other = measured(runs, 1), measured(runs)
    assert compare_evaluations(one, other, criterion=Criterion.AGENT).counts[CorrectSide.ONLY_A] == 2
    outcome = compare_evaluations(one, other, criterion=Criterion.OUTCOME)
    assert outcome.counts == {
        CorrectSide.BOTH: 0,
        CorrectSide.ONLY_A: 4,
        CorrectSide.ONLY_B: 1,
        CorrectSide.NEITHER: 0,
    }
