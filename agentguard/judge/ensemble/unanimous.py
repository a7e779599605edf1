"""Judges that must agree: what an action with effects may be taken on.

A judge reads a hostile text, and prefers some letters and places to others (Zheng et al., arXiv 2306.05685).
So nothing that stops a run, or calls a person, hangs on one judge's word: each member is asked with the
options in both orders, and has a voice only if it picks the same option in both; and all members must pick
the same one. Where they do not, that is an error with the votes beside it, and no guess. It is a mask for
faults that come apart (von Neumann 1956); two judges that err in the same way agree on the error.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from agentguard.errors import ConfigError
from agentguard.judge.base import Judge, JudgeAnswer, Question
from agentguard.judge.ensemble.order_swap import ask_in_both_orders
from agentguard.judge.ensemble.panel import ask_judges, merge_answers
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.trajectory.model import Trajectory

DISAGREEMENT: Final = "disagreed"
"""The fault of an answer on which the judges, or one judge's two orders, did not agree."""


class UnanimousJudge:
    """Answers what all of some judges say, each in both orders of the options.

    ``usage["votes"]`` has option to the number of times that it was picked, also where they disagree. An
    agreed answer's probabilities are the mean of all; one voice that cannot answer leaves the question
    without an answer.

    Args:
        judges: at least one; one judge must agree with itself.
        swap: ask each in the opposite order, too.

    Raises:
        ConfigError: there is no judge, or nothing to agree: one judge and one order.
    """

    name = "agreed"

    def __init__(self, judges: Sequence[Judge], *, swap: bool = True) -> None:
        self.judges, self.swap = tuple(judges), swap
        if not self.judges or (len(self.judges) == 1 and not swap):
            raise ConfigError("judges that must agree are at least two, or one asked in both orders")

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer the questions, in order."""
        asked = tuple(questions)
        voices = tuple(_BothOrdersMember(one) for one in self.judges) if self.swap else self.judges
        told = ask_judges(voices, transcript, asked if not self.swap else (*asked, *asked))
        return tuple(
            _combine_unanimous(q, [said for answers in told for said in answers[place :: len(asked)]])
            for place, q in enumerate(asked)
        )

    def version(self, transcript: Trajectory) -> str:
        """The members' versions, and that they must agree."""
        told = (
            str(getattr(one, "version", lambda _, name=one.name: name)(transcript)) for one in self.judges
        )
        return f"agreed{' in both orders' if self.swap else ''}: " + " | ".join(told)


class _BothOrdersMember:
    """A judge asked for each question twice over: the first half as it is, the second in the other order."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.name = judge, judge.name

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        plain, turned = ask_in_both_orders(self.judge, transcript, questions[: len(questions) // 2])
        return (*plain, *turned)


def get_votes(answer: JudgeAnswer) -> Mapping[str, int]:
    """How often each option was picked; empty where nobody voted."""
    held: Any = answer.usage.get("votes")
    return held if isinstance(held, Mapping) else {}


def _combine_unanimous(question: Question, answers: Sequence[JudgeAnswer]) -> JudgeAnswer:
    answer = merge_answers(question, answers, quorum=len(answers))
    votes = Counter(get_votes(answer))
    if answer.error is not None or len(votes) == 1:
        return answer
    said = ", ".join(
        f"{votes[one]} for option {place}" for place, one in _number_options(question) if votes[one]
    )
    usage = {**answer.usage, "fault": DISAGREEMENT}
    return replace(answer, probabilities={}, error=f"{DISAGREEMENT}: {said}", usage=usage)


def _number_options(question: Question) -> list[tuple[int, str]]:
    return list(enumerate(list_options(question), start=1))
