"""Judges for tests: one with probabilities from a hash, one that answers from a table."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence

from agentguard.judge.base import JudgeAnswer, Question
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.trajectory.model import Trajectory

USAGE = {"calls": 1, "prompt_tokens": 100, "completion_tokens": 1, "cached_tokens": 80, "seconds": 0.01}


class DealingJudge:
    """Judge that answers any question deterministically, or never, if it is down."""

    name = "dealing"

    def __init__(self, *, away: bool = False) -> None:
        self.away = away

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        if self.away:
            return tuple(
                JudgeAnswer(question=q.id, error="timeout: no answer", usage={"fault": "timeout"})
                for q in questions
            )
        return tuple(self._dealt(transcript, q) for q in questions)

    def _dealt(self, run: Trajectory, question: Question) -> JudgeAnswer:
        options = list_options(question)
        weights = [
            1 + hashlib.sha256(f"{len(run.steps)} {question.id} {one}".encode()).digest()[0]
            for one in options
        ]
        shares = {one: weight / sum(weights) for one, weight in zip(options, weights, strict=True)}
        return JudgeAnswer(question=question.id, probabilities=shares, usage=USAGE)


Said = Mapping[str, float] | str | None


class TableJudge:
    """Judge that answers by a function: probabilities, one certain option, or None for a fault.

    Attributes:
        asked: its runs and questions, in order.
    """

    name = "table"

    def __init__(self, says: Callable[[Trajectory, Question], Said]) -> None:
        self.says = says
        self.asked: list[tuple[Trajectory, Question]] = []

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        self.asked += [(transcript, question) for question in questions]
        return tuple(self._answer(transcript, question) for question in questions)

    def _answer(self, run: Trajectory, question: Question) -> JudgeAnswer:
        said, options = self.says(run, question), list_options(question)
        if said is None:
            return JudgeAnswer(question=question.id, error="busy: later", usage={"fault": "busy"})
        if isinstance(said, str):
            rest = 0.1 / max(1, len(options) - 1)
            said = {one: 0.9 if one == said else rest for one in options}
        return JudgeAnswer(question=question.id, probabilities=dict(said), usage=USAGE)
