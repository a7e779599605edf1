"""A rule of an acceptance test that a judge answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentguard.errors import ConfigError, JudgeError
from agentguard.judge.base import Judge, Predicate
from agentguard.judge.ensemble.unanimous import UnanimousJudge
from agentguard.trajectory.model import Trajectory

_MAX_OUTPUT_CHARS: Final = 8_000


class LlmRule:
    """A judge's answer to a yes-or-no question about the output must be yes.

    Each judge is asked with the answers in both orders, and all must agree; where they do not, or cannot be
    asked, nobody knows, and the output is refused as by any rule that could not be checked. Text in the
    output that claims a verdict is marked as a claim before a chat judge reads it.

    Args:
        question: to be answered yes, e.g. ``"Does the answer name its source?"``.
        judge: who is asked, or several who must agree.
        name: what it is called in the record.
        least: the probability of yes from which the output passes.

    Raises:
        ConfigError: the question is empty, or ``least`` is not between 0 and 1.
    """

    may_block = True
    """A run's end that asks is put aside, so that no event loop waits for the judge."""

    def __init__(
        self, question: str, judge: Judge | Sequence[Judge], *, name: str = "", min_probability: float = 0.5
    ) -> None:
        if not question.strip():
            raise ConfigError("acceptance: a rule that asks needs a question")
        if isinstance(min_probability, bool) or not 0 < min_probability < 1:
            raise ConfigError(f"acceptance: least is {min_probability!r}, expected a number between 0 and 1")
        self.name = name or f"asks {question.strip()}"
        self._question, self._min_probability = question.strip(), min_probability
        self._judge = UnanimousJudge(tuple(judge) if isinstance(judge, Sequence) else (judge,))

    def find_violation(self, output: str, run: Trajectory) -> str:
        """That the answer is no. Raises JudgeError where there is none."""
        shown = ("The output in question:", *output[:_MAX_OUTPUT_CHARS].split("\n"))
        text = f"About the output that is shown among the notes: {self._question}"
        (answer,) = self._judge.decide(run, (Predicate(id="acceptance", text=text, context=shown),))
        if answer.error is not None:
            raise JudgeError(f"the judge could not answer: {answer.usage.get('fault') or 'no answer'}")
        yes = answer.probabilities["yes"]
        return "" if yes >= self._min_probability else f"A reviewer answers no to: {self._question}"
