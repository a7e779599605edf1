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
from agentguard.judge.base import Answer, Judge, Question
from agentguard.judge.closed import options_of
from agentguard.judge.panel import merged, side_by_side
from agentguard.judge.variants import in_both_orders
from agentguard.trajectory.model import Trajectory

DISAGREED: Final = "disagreed"
"""The fault of an answer on which the judges, or one judge's two orders, did not agree."""


class AgreedJudge:
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

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[Answer, ...]:
        """Answer the questions, in order."""
        asked = tuple(questions)
        voices = tuple(_Voices(one) for one in self.judges) if self.swap else self.judges
        told = side_by_side(voices, transcript, asked if not self.swap else (*asked, *asked))
        return tuple(
            _agreed(q, [said for answers in told for said in answers[place :: len(asked)]])
            for place, q in enumerate(asked)
        )

    def version(self, transcript: Trajectory) -> str:
        """The members' versions, and that they must agree."""
        told = (
            str(getattr(one, "version", lambda _, name=one.name: name)(transcript)) for one in self.judges
        )
        return f"agreed{' in both orders' if self.swap else ''}: " + " | ".join(told)


class _Voices:
    """A judge asked for each question twice over: the first half as it is, the second in the other order."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.name = judge, judge.name

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[Answer, ...]:
        plain, turned = in_both_orders(self.judge, transcript, questions[: len(questions) // 2])
        return (*plain, *turned)


def votes_of(answer: Answer) -> Mapping[str, int]:
    """How often each option was picked; empty where nobody voted."""
    held: Any = answer.usage.get("votes")
    return held if isinstance(held, Mapping) else {}


def _agreed(question: Question, told: Sequence[Answer]) -> Answer:
    answer = merged(question, told, quorum=len(told))
    votes = Counter(votes_of(answer))
    if answer.error is not None or len(votes) == 1:
        return answer
    said = ", ".join(f"{votes[one]} for option {place}" for place, one in _placed(question) if votes[one])
    usage = {**answer.usage, "fault": DISAGREED}
    return replace(answer, probabilities={}, error=f"{DISAGREED}: {said}", usage=usage)


def _placed(question: Question) -> list[tuple[int, str]]:
    return list(enumerate(options_of(question), start=1))
