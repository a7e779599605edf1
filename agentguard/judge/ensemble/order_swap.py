"""The same judge asked otherwise: with its options the other way round, in both orders, or in other words.

A model prefers some letters and some places to others; a judge that is asked in both orders shows it (Zheng
et al., Judging LLM-as-a-Judge, arXiv 2306.05685). Both variants share the transcript's bytes with the plain
judge, so that a server with a prefix cache reads a run once for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from agentguard.judge.base import ChoiceQuestion, GeneratedText, Judge, JudgeAnswer, Question, TextGenerator
from agentguard.judge.ensemble.panel import merge_answers
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.trajectory.model import Trajectory


class OptionSwapJudge:
    """Asks with the options in the opposite order; the answers are keyed as ever."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.name = judge, f"{judge.name} swapped"

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer the questions, in order."""
        answers = self.judge.decide(transcript, tuple(_reverse_options(one) for one in questions))
        return tuple(_restore_order(q, answer) for q, answer in zip(questions, answers, strict=True))

    def version(self, transcript: Trajectory) -> str:
        """The judge's own, and that it is asked the other way round."""
        return f"{_get_version(self.judge, transcript)}; options swapped"


class BothOrdersJudge:
    """Asks each question in both orders of its options, as a panel of two; one answer is enough.

    Both are asked in one go, so that a judge that shares a reading of the run among its questions shares it
    here, too.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge, self.name = judge, f"{judge.name} in both orders"

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer the questions, in order."""
        plain, turned = ask_in_both_orders(self.judge, transcript, questions)
        return tuple(
            merge_answers(q, told, quorum=1) for q, *told in zip(questions, plain, turned, strict=True)
        )

    def generate_text(self, transcript: Trajectory, prompt: str) -> GeneratedText:
        """What the judge writes; an error where it cannot write."""
        if isinstance(self.judge, TextGenerator):
            return self.judge.generate_text(transcript, prompt)
        return GeneratedText(error=f"judge {self.judge.name!r} does not write")

    def version(self, transcript: Trajectory) -> str:
        """The judge's own, and that it is asked in both orders."""
        return f"{_get_version(self.judge, transcript)}; both orders"


def ask_in_both_orders(
    judge: Judge, run: Trajectory, questions: Sequence[Question]
) -> tuple[tuple[JudgeAnswer, ...], tuple[JudgeAnswer, ...]]:
    """A judge's answers to some questions as they are, and with their options in the opposite order."""
    asked = tuple(questions)
    told = judge.decide(run, (*asked, *(_reverse_options(one) for one in asked)))
    turned = (_restore_order(q, answer) for q, answer in zip(asked, told[len(asked) :], strict=True))
    return tuple(told[: len(asked)]), tuple(turned)


class ParaphraseJudge:
    """Asks in other words.

    Args:
        judge: who is asked.
        word: gives the other words of a question's text.
        version: of these words; another one for other words, so that answers are not taken for each other's.
    """

    def __init__(self, judge: Judge, paraphrase: Callable[[str], str], *, version: str) -> None:
        self.judge, self.name = judge, f"{judge.name} reworded"
        self._paraphrase, self._version = paraphrase, version

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer the questions, in order."""
        return self.judge.decide(
            transcript, tuple(replace(q, text=self._paraphrase(q.text)) for q in questions)
        )

    def version(self, transcript: Trajectory) -> str:
        """The judge's own, and that of the words."""
        return f"{_get_version(self.judge, transcript)}; worded {self._version}"


def _reverse_options(question: Question) -> ChoiceQuestion:
    options = list_options(question)[::-1]
    return ChoiceQuestion(id=question.id, text=question.text, options=options, context=question.context)


def _restore_order(question: Question, answer: JudgeAnswer) -> JudgeAnswer:
    if answer.error is not None:
        return answer
    ordered = {one: answer.probabilities[one] for one in list_options(question)}
    return replace(answer, probabilities=ordered)


def _get_version(judge: Judge, transcript: Trajectory) -> str:
    return str(judge.version(transcript)) if hasattr(judge, "version") else judge.name
