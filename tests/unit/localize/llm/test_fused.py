"""Fusion of judge and ranker: the judge's weight is learnt from its accuracy."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from agentguard.errors import ConfigError
from agentguard.judge.base import JudgeAnswer, Question
from agentguard.judge.embedded.features.table import build_step_table
from agentguard.localize.embedded import EmbeddedLocalizer
from agentguard.localize.llm.fused import FusedLocalizer, compute_columns
from agentguard.trajectory.model import Record, Trajectory
from agentguard.verdict import Verdict
from tests.unit.judge.judges import DealingJudge, Said, TableJudge
from tests.unit.localize.runs import A, chat, record, run


def told_by(step: int) -> TableJudge:
    def says(held: Trajectory, question: Question) -> Said:
        if question.id == "run_failed":
            return "yes"
        return next(one for one in question.options if one == f"step {step}")

    return TableJudge(says)


def test_zero_weight_equals_the_embedded_model() -> None:
    alone = EmbeddedLocalizer(given_failed=True).locate(chat(), ())
    fused = FusedLocalizer(judge=told_by(3), weight=0, given_failed=True).locate(chat(), ())
    assert [one.step for one in fused.hypotheses] == [one.step for one in alone.hypotheses]
    assert [one.probability for one in fused.hypotheses] == pytest.approx(
        [one.probability for one in alone.hypotheses]
    )


def test_large_weight_equals_the_judge() -> None:
    for step in build_step_table(chat()).steps:
        told = FusedLocalizer(judge=told_by(step), weight=10, given_failed=True).locate(chat(), ())
        assert told.hypotheses[0].step == step
        assert told.usage["calls"] == 1


def test_unavailable_judge_falls_back_to_the_embedded_model() -> None:
    alone = EmbeddedLocalizer().locate(chat(), ())
    told = FusedLocalizer(judge=DealingJudge(away=True)).locate(chat(), ())
    assert told.hypotheses == alone.hypotheses
    assert told.failures[0].error == "timeout: no answer"
    assert "the judge did not answer" in told.notes[-1]


class Raising:
    """A judge that raises an exception instead of answering."""

    name = "raising"

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        raise RuntimeError("no")


def test_raising_judge_falls_back_to_the_embedded_model() -> None:
    told = FusedLocalizer(judge=Raising()).locate(chat(), ())
    assert told.hypotheses == EmbeddedLocalizer().locate(chat(), ()).hypotheses
    assert told.failures[0].error == "RuntimeError"


@pytest.mark.parametrize(
    ("missing", "note"),
    [("run_failed", "did not decide the outcome"), ("root_cause_step", "did not name a step")],
)
def test_partial_answer_is_used_and_marked(missing: str, note: str) -> None:
    judge = TableJudge(
        lambda run, q: None if q.id == missing else "yes" if q.id == "run_failed" else "step 3"
    )
    told = FusedLocalizer(judge=judge).locate(chat(), ())
    assert note in told.notes[-1]
    assert [one.error for one in told.failures] == ["busy: later"]


def test_both_questions_are_sent_to_the_judge_at_once() -> None:
    judge = told_by(3)
    rounds: list[int] = []
    decide = judge.decide

    def counted(run: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        rounds.append(len(questions))
        return decide(run, questions)

    judge.decide = counted  # type: ignore[method-assign]
    FusedLocalizer(judge=judge).locate(chat(), ())
    assert rounds == [2], "one call, so that one deadline holds for all of it"


def test_many_steps_are_asked_by_turn() -> None:
    turns = [(A, f"worker_{place // 2 % 2}", f"I did part {place} of it.") for place in range(44)]
    judge = TableJudge(lambda run, q: "yes" if q.id == "run_failed" else "steps 4 to 5")
    FusedLocalizer(judge=judge).locate(run(*turns), ())
    asked = next(q for _, q in judge.asked if q.id != "run_failed")
    assert asked.id == "root_cause_turn"
    assert len(asked.options) == 22  # type: ignore[union-attr]


def test_judge_signals_are_log_probability_rank_and_first() -> None:
    rows = compute_columns({1: 0.5, 3: 0.3, 5: 0.1, 7: 0.1}, (1, 3, 5, 7, 9))
    logs, places, first = zip(*rows, strict=True)
    assert logs[0] > logs[1] > logs[2] == logs[3] > logs[4]
    assert places[0] == 0
    assert places[1] > places[2] == places[3] > places[4], "equals share their place"
    assert [bool(one) for one in first] == [True, False, False, False, False]
    even = compute_columns({1: 0.5, 3: 0.5}, (1, 3))
    assert even[0] == even[1], "who prefers none says nothing"


def test_judge_and_model_share_the_outcome_of_unknown_kinds() -> None:
    def says(held: Trajectory, question: Question) -> Said:
        return "yes" if question.id == "run_failed" else question.options[0]

    lost, fine = (
        FusedLocalizer(judge=TableJudge(says)),
        FusedLocalizer(judge=TableJudge(lambda r, q: "no" if q.id == "run_failed" else q.options[0])),
    )
    strange = run((A, "solo", "I looked at the boats."), (A, "solo", "There are three."), task="Count boats.")
    assert lost.locate(strange, ()).probability > EmbeddedLocalizer().locate(strange, ()).probability
    assert fine.locate(strange, ()).verdict is not Verdict.FAILED


def drawn(count: int, *, seed: int) -> list[Record]:
    """Return runs of five similar steps with a random root cause, which no feature reveals."""
    made = []
    dice = random.Random(seed)
    for place in range(count):
        turns = [(A, f"worker_{i}", f"I did part {dice.randrange(1000)} of it.") for i in range(5)]
        task = f"Do thing {seed}-{place}."
        made.append(record(run(*turns, id=f"{seed}-{place}", task=task), dice.randrange(5), group=task))
    return made


def first_right(method: FusedLocalizer, records: list[Record]) -> float:
    right = [
        method.locate(one.trajectory, ()).hypotheses[0].step == one.annotation.root_cause.step  # type: ignore[union-attr]
        for one in records
    ]
    return sum(right) / len(right)


@pytest.mark.parametrize(("knows", "least", "most"), [(True, 0.9, 1.0), (False, 0.0, 0.6)])
def test_weight_of_judge_is_learnt(knows: bool, least: float, most: float) -> None:
    learnt, held = drawn(40, seed=1), drawn(30, seed=2)
    gold = {one.trajectory.id: one.annotation.root_cause.step for one in (*learnt, *held)}  # type: ignore[union-attr]
    dice = random.Random(3)

    def says(about: Trajectory, question: Question) -> Said:
        step = gold[about.id] if knows else dice.randrange(5)
        return f"step {step}"

    fitted = FusedLocalizer(judge=TableJudge(says), given_failed=True).fit(learnt)
    assert least <= first_right(fitted, held) <= most


@pytest.mark.parametrize("weight", [-1, 11, "much", True])
def test_weight_out_of_range_is_rejected(weight: object) -> None:
    with pytest.raises(ConfigError, match="weight"):
        FusedLocalizer(judge=DealingJudge(), weight=weight)
