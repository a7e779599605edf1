from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentguard.errors import EvaluationError
from agentguard.evals.bench import Bench, Plan
from agentguard.evals.dataset import as_dataset
from agentguard.evals.paired import mcnemar
from agentguard.evals.result import Evaluation
from agentguard.evals.versus import Side, What, versus
from agentguard.trajectory.model import Record
from tests.unit.evals.cases import Says, record, records


def measured(runs: Sequence[Record], *steps: int) -> Evaluation:
    return Bench(as_dataset(runs), Plan()).measure(Says(*steps), label=f"says {steps}")


def test_every_run_has_its_side() -> None:
    found = versus(measured(records(), 1), measured(records(), 2))
    assert len(found.pairs) == 12
    assert found.counts == {Side.BOTH: 0, Side.ONLY_A: 8, Side.ONLY_B: 4, Side.NEITHER: 0}
    assert {p.case.run for p in found.pairs if p.side is Side.ONLY_B} == {"r0", "r3", "r6", "r9"}


def test_the_difference_is_that_of_the_paired_test() -> None:
    found = versus(measured(records(), 1), measured(records(), 2)).difference
    assert found.mean == pytest.approx(4 / 12)
    assert (found.gained, found.lost) == (8, 4)
    assert found.p == mcnemar(8, 4)
    assert found.low <= found.mean <= found.high


def test_a_method_does_not_differ_from_itself() -> None:
    held = measured(records(), 1)
    found = versus(held, held)
    assert found.counts[Side.BOTH] == 8
    assert found.counts[Side.NEITHER] == 4
    assert (found.difference.mean, found.difference.p) == (0, 1)


def test_only_runs_of_both_are_compared() -> None:
    found = versus(measured(records(8), 1), measured([*records(4), record("other")], 1))
    assert [pair.case.run for pair in found.pairs] == ["r0", "r1", "r2", "r3"]
    assert found.left_out == 5
    assert not found.same_data


def test_a_run_of_another_length_is_another_run() -> None:
    with pytest.raises(EvaluationError, match="no run of both"):
        versus(measured([record("r", steps=4)], 1), measured([record("r", steps=5)], 1))


def test_agents_and_outcomes_are_compared_too() -> None:
    runs = [*records(4), record("passed", step=None, failed=False)]
    one, other = measured(runs, 1), measured(runs)
    assert versus(one, other, what=What.AGENT).counts[Side.ONLY_A] == 2
    outcome = versus(one, other, what=What.OUTCOME)
    assert outcome.counts == {Side.BOTH: 0, Side.ONLY_A: 4, Side.ONLY_B: 1, Side.NEITHER: 0}
