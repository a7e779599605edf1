"""Acceptance rule that asks a judge."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from agentguard.errors import ConfigError, JudgeError
from agentguard.judge.base import Judge, Predicate, close_judge
from agentguard.judge.ensemble.unanimous import UnanimousJudge
from agentguard.recover.acceptance.answer_sources import AnswerSources
from agentguard.recover.acceptance.base import BaseRule
from agentguard.trajectory.model import Trajectory

_MAX_OUTPUT_CHARS: Final = 8_000


class LlmRule(BaseRule):
    """Rule that a judge must answer a yes-or-no question about the output with yes.

    - The rule asks each judge twice, with the options in both orders. All answers must agree.
    - If the answers disagree or a judge fails, the test refuses the output without a result.
    - A chat judge reads text in the output that claims a verdict marked as a claim.

    Args:
        question: yes-or-no question, for example ``"Does the answer name its source?"``.
        judge: one judge, or several that must agree.
        name: name of the rule in the record; by default, ``asks`` and the question.
        min_probability: probability of yes from which the output is accepted.
        sources: sources that the judge reads with the output. Without text in them, the rule refuses
            the output.

    Raises:
        ConfigError: the question is empty, or ``min_probability`` is not between 0 and 1.
    """

    may_block = True
    """The session ends the run in a thread, so that no event loop waits for the judge."""

    def __init__(
        self,
        question: str,
        judge: Judge | Sequence[Judge],
        *,
        name: str = "",
        min_probability: float = 0.5,
        sources: AnswerSources | None = None,
    ) -> None:
        if not question.strip():
            raise ConfigError("acceptance: the question of an LLM rule is empty")
        if isinstance(min_probability, bool) or not 0 < min_probability < 1:
            raise ConfigError(
                f"acceptance: min_probability is {min_probability!r}, expected a number between 0 and 1"
            )
        self.name = name or f"asks {question.strip()}"
        self._question, self._min_probability = question.strip(), min_probability
        self._sources = sources
        self._judge = UnanimousJudge(tuple(judge) if isinstance(judge, Sequence) else (judge,))

    def find_violation(self, output: str, run: Trajectory) -> str:
        """Return a violation if the answer is no. Raises JudgeError if the judge has no answer."""
        shown: tuple[str, ...] = ("The output in question:", *output[:_MAX_OUTPUT_CHARS].split("\n"))
        text = f"About the output that is shown among the notes: {self._question}"
        if self._sources is not None:
            passages = self._sources.select_passages(output, run)
            if not passages:
                return "No source supports the answer."
            shown = (*shown, "The sources:", *(line for one in passages for line in one.split("\n")))
            text += " Use the sources that are shown among the notes, and no other knowledge."
        (answer,) = self._judge.decide(run, (Predicate(id="acceptance", text=text, context=shown),))
        if answer.error is not None:
            raise JudgeError(f"the judge could not answer: {answer.error}")
        yes = answer.probabilities["yes"]
        return (
            ""
            if yes >= self._min_probability
            else f"A reviewer answered no to the question: {self._question}"
        )

    def close(self) -> None:
        """Close the judges; a later question opens them again."""
        close_judge(self._judge)
