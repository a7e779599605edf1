from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest

from agentguard.errors import EvaluationError
from agentguard.trajectory.model import Record, Trajectory
from benchmarks.prequential import evaluate_prequential
from tests.unit.localize.runs import chat, record

RUNS = [record(chat(id=f"c{i}"), i % 3, group=f"question {i}") for i in range(9)]


class Memory:
    """Returns the most frequent step so far, and checks that each prediction precedes its label."""

    name = "memory"

    def __init__(self) -> None:
        self.steps: Counter[int] = Counter()
        self.asked: list[str] = []
        self.told: list[str] = []

    def rank(self, run: Trajectory, findings: Sequence[object], *, group: str) -> Sequence[int]:
        assert run.id not in self.told
        assert group == f"question {run.id[1:]}"
        assert findings is not None
        self.asked.append(run.id)
        return [step for step, _ in self.steps.most_common(1)]

    def learn(self, held: Record) -> None:
        assert self.asked[-1] == held.trajectory.id
        self.told.append(held.trajectory.id)
        cause = held.annotation.root_cause
        assert cause is not None
        assert cause.step is not None
        self.steps[cause.step] += 1


class Second:
    name = "second"

    def rank(self, run: Trajectory, findings: Sequence[object], *, group: str) -> Sequence[int]:
        del run, findings, group
        return [1, 0]

    def learn(self, held: Record) -> None:
        del held


def test_each_run_is_predicted_before_its_label() -> None:
    done: list[tuple[int, int]] = []
    memory, second = evaluate_prequential(
        RUNS, [Memory, Second], orders=3, progress=lambda *at: done.append(at)
    )
    assert (memory.name, second.name) == ("memory", "second")
    assert memory.runs == second.runs
    assert len(set(memory.runs)) == 3
    assert all(sorted(order) == list(range(9)) for order in memory.runs)
    assert all(not flags[0] for flags in memory.correct)  # no labels at that point
    assert second.accuracy() == pytest.approx(1 / 3)
    assert second.accuracy_by_run() == tuple(float(i % 3 == 1) for i in range(9))
    assert done == [(1, 3), (2, 3), (3, 3)]


def test_seed_determines_the_orders() -> None:
    one, other = (evaluate_prequential(RUNS, [Second], orders=2, seed=seed)[0] for seed in (0, 1))
    assert evaluate_prequential(RUNS, [Second], orders=2)[0] == one
    assert one.runs != other.runs


def test_parts_of_the_stream_are_scored_separately() -> None:
    (second,) = evaluate_prequential(RUNS, [Second], orders=1)
    halves = [second.accuracy(0, 4) * 4, second.accuracy(4) * 5]
    assert sum(halves) == pytest.approx(3)


@pytest.mark.parametrize(("runs", "orders"), [([], 1), ([record(chat())], 1), (RUNS, 0)])
def test_empty_stream_is_rejected(runs: list[Record], orders: int) -> None:
    with pytest.raises(EvaluationError):
        evaluate_prequential(runs, [Second], orders=orders)
