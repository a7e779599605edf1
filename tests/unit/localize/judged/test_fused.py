"""The judge is heard beside the ranker, as far as it has shown to be worth."""

from __future__ import annotations

import random

import pytest

from agentguard.errors import ConfigError
from agentguard.judge.base import Question
from agentguard.judge.features.table import step_table
from agentguard.localize.base import Verdict
from agentguard.localize.embedded import Embedded
from agentguard.localize.judged.fused import Fused
from agentguard.trajectory.model import Record, Trajectory
from tests.unit.judge.judges import DealingJudge, Said, TableJudge
from tests.unit.localize.runs import A, chat, record, run


def told_by(step: int) -> TableJudge:
    def says(held: Trajectory, question: Question) -> Said:
        if question.id == "run_failed":
            return "yes"
        return next(one for one in question.options if one == f"step {step}")

    return TableJudge(says)


def test_a_weight_of_nothing_is_the_embedded_model() -> None:
    alone = Embedded(given_failed=True).locate(chat(), ())
    fused = Fused(judge=told_by(3), weight=0, given_failed=True).locate(chat(), ())
    assert [one.step for one in fused.hypotheses] == [one.step for one in alone.hypotheses]
    assert [one.probability for one in fused.hypotheses] == pytest.approx(
        [one.probability for one in alone.hypotheses]
    )


def test_a_heavy_weight_is_the_judge() -> None:
    for step in step_table(chat()).steps:
        told = Fused(judge=told_by(step), weight=5, given_failed=True).locate(chat(), ())
        assert told.hypotheses[0].step == step
        assert told.usage["calls"] == 1


def test_a_judge_that_is_away_leaves_the_embedded_model() -> None:
    alone = Embedded().locate(chat(), ())
    told = Fused(judge=DealingJudge(away=True)).locate(chat(), ())
    assert told.hypotheses == alone.hypotheses
    assert told.failures[0].error == "timeout"
    assert "the judge could not be asked" in told.notes[-1]


def test_both_speak_of_the_outcome_where_the_model_knows_none() -> None:
    def says(held: Trajectory, question: Question) -> Said:
        return "yes" if question.id == "run_failed" else question.options[0]

    lost, fine = (
        Fused(judge=TableJudge(says)),
        Fused(judge=TableJudge(lambda r, q: "no" if q.id == "run_failed" else q.options[0])),
    )
    strange = run((A, "solo", "I looked at the boats."), (A, "solo", "There are three."), task="Count boats.")
    assert lost.locate(strange, ()).probability > Embedded().locate(strange, ()).probability
    assert fine.locate(strange, ()).verdict is not Verdict.FAILURE


def drawn(count: int, *, seed: int) -> list[Record]:
    """Runs of five like steps, one of them at fault, which nothing in them tells."""
    made = []
    dice = random.Random(seed)
    for place in range(count):
        turns = [(A, f"worker_{i}", f"I did part {dice.randrange(1000)} of it.") for i in range(5)]
        task = f"Do thing {seed}-{place}."
        made.append(record(run(*turns, id=f"{seed}-{place}", task=task), dice.randrange(5), group=task))
    return made


def first_right(method: Fused, records: list[Record]) -> float:
    right = [
        method.locate(one.trajectory, ()).hypotheses[0].step == one.annotation.root_cause.step  # type: ignore[union-attr]
        for one in records
    ]
    return sum(right) / len(right)


@pytest.mark.parametrize(("knows", "least", "most"), [(True, 0.9, 1.0), (False, 0.0, 0.6)])
def test_what_a_judge_is_worth_is_learnt(knows: bool, least: float, most: float) -> None:
    learnt, held = drawn(40, seed=1), drawn(30, seed=2)
    gold = {one.trajectory.id: one.annotation.root_cause.step for one in (*learnt, *held)}  # type: ignore[union-attr]
    dice = random.Random(3)

    def says(about: Trajectory, question: Question) -> Said:
        step = gold[about.id] if knows else dice.randrange(5)
        return f"step {step}"

    fitted = Fused(judge=TableJudge(says), given_failed=True).fit(learnt)
    assert least <= first_right(fitted, held) <= most


@pytest.mark.parametrize("weight", [-1, 11, "much", True])
def test_a_weight_out_of_range_is_refused(weight: object) -> None:
    with pytest.raises(ConfigError, match="weight"):
        Fused(judge=DealingJudge(), weight=weight)
