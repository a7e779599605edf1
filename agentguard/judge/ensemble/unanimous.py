"""Unanimous judges: agreement that a disruptive action requires.

A judge reads hostile text, and prefers some letters and positions to others (Zheng et al., arXiv 2306.05685).
So no action that stops a run, or escalates it, depends on a single answer:

- Each member answers with the options in both orders.
- All answers must select the same option; otherwise the result is an error with the votes.

This masks independent faults (von Neumann 1956); it does not mask an error that two judges share.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from agentguard.errors import ConfigError
from agentguard.judge.base import Judge, JudgeAnswer, Question, VersionedJudge, close_judge
from agentguard.judge.ensemble.panel import ask_judges, merge_answers
from agentguard.judge.ensemble.question_variants import ask_in_both_orders
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.trajectory.model import Trajectory

DISAGREEMENT: Final = "disagreed"
"""Error of a question on which the judges, or one judge's two orders, do not agree."""


class UnanimousJudge:
    """Judge that answers only if all its members agree, each in both orders of the options.

    ``usage["votes"]`` maps an option to its number of votes, also on disagreement. The probabilities are the
    mean of all answers. If one member cannot answer, the question has no answer.

    Args:
        judges: at least one; a single judge must agree with itself.
        swap: also ask each with reversed options.

    Raises:
        ConfigError: there is no judge, or only one judge and one order.
    """

    name = "agreed"

    def __init__(self, judges: Sequence[Judge], *, swap: bool = True) -> None:
        self.judges, self.swap = tuple(judges), swap
        if not self.judges or (len(self.judges) == 1 and not swap):
            raise ConfigError("unanimity needs at least two judges, or both orders")

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer the questions, in order."""
        question_list = tuple(questions)
        members = tuple(_BothOrdersMember(judge) for judge in self.judges) if self.swap else self.judges
        member_answers = ask_judges(
            members, transcript, question_list if not self.swap else (*question_list, *question_list)
        )
        return tuple(
            _combine_unanimous(
                q, [answer for answers in member_answers for answer in answers[index :: len(question_list)]]
            )
            for index, q in enumerate(question_list)
        )

    def version(self, transcript: Trajectory) -> str:
        """Return the members' versions with a mark for unanimity."""
        versions = (
            judge.version(transcript) if isinstance(judge, VersionedJudge) else judge.name
            for judge in self.judges
        )
        return f"agreed{' in both orders' if self.swap else ''}: " + " | ".join(versions)

    def close(self) -> None:
        """Close the members."""
        for judge in self.judges:
            close_judge(judge)


class _BothOrdersMember:
    """Judge that asks the first half of the questions as they are, the second with reversed options."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.name = judge, judge.name

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        answers, reversed_answers = ask_in_both_orders(
            self.judge, transcript, questions[: len(questions) // 2]
        )
        return (*answers, *reversed_answers)


def get_votes(answer: JudgeAnswer) -> Mapping[str, int]:
    """Return the number of votes for each option; empty without votes."""
    votes: Any = answer.usage.get("votes")
    return votes if isinstance(votes, Mapping) else {}


def _combine_unanimous(question: Question, answers: Sequence[JudgeAnswer]) -> JudgeAnswer:
    answer = merge_answers(question, answers, quorum=len(answers))
    votes = Counter(get_votes(answer))
    if answer.error is not None or len(votes) == 1:
        return answer
    vote_list = ", ".join(
        f"{votes[option]} for option {number}"
        for number, option in _number_options(question)
        if votes[option]
    )
    usage = {**answer.usage, "fault": DISAGREEMENT}
    return replace(answer, probabilities={}, error=f"{DISAGREEMENT}: {vote_list}", usage=usage)


def _number_options(question: Question) -> list[tuple[int, str]]:
    return list(enumerate(list_options(question), start=1))
