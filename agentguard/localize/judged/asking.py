"""Asking a judge, and counting what it cost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from agentguard.detect.base import DetectorFailure
from agentguard.judge.base import Answer, Choice, Judge, Predicate, Question
from agentguard.judge.panel import side_by_side
from agentguard.trajectory.model import Trajectory

COUNTED: Final = ("calls", "prompt_tokens", "completion_tokens", "cached_tokens", "seconds")


class Asking:
    """One diagnosis's questions to a judge.

    Attributes:
        spent: what all answers have cost; see `Diagnosis.usage`.
        failures: answers that could not be given, one entry for each kind of fault.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.spent = dict.fromkeys(COUNTED, 0.0)
        self._faults: dict[str, None] = {}

    @property
    def failures(self) -> tuple[DetectorFailure, ...]:
        """What went wrong, for a diagnosis."""
        return tuple(
            DetectorFailure(detector=f"judge {self.judge.name}", step=None, error=fault)
            for fault in self._faults
        )

    def ask(self, run: Trajectory, questions: Sequence[Question]) -> tuple[Answer, ...]:
        """The answers, in order; those that could not be given are noted, and so is a judge that raises."""
        answers = side_by_side((self.judge,), run, tuple(questions))[0] if questions else ()
        for answer in answers:
            self.count(answer.usage)
            if answer.error is not None:
                self._faults[str(answer.usage.get("fault") or answer.error)] = None
        return tuple(answers)

    def count(self, usage: Mapping[str, object]) -> None:
        """Add what a call has cost."""
        for name in COUNTED:
            value = usage.get(name)
            if isinstance(value, int | float):
                self.spent[name] += value

    def yes(self, run: Trajectory, question: Predicate) -> float | None:
        """The probability of yes; None if the judge could not answer."""
        answer = self.ask(run, (question,))[0]
        return None if answer.error is not None else answer.probabilities["yes"]

    def choose(self, run: Trajectory, question: Choice) -> Mapping[str, float] | None:
        """The probability of each option; None if the judge could not answer."""
        answer = self.ask(run, (question,))[0]
        return None if answer.error is not None else answer.probabilities
