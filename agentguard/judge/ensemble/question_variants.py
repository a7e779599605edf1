"""Variants of a judge's questions: reversed options, both orders, or a paraphrase.

A model prefers some letters and some positions to others. Questions in both orders reveal this (Zheng et al.,
Judging LLM-as-a-Judge, arXiv 2306.05685). The prompts of all variants begin with the same transcript. A
server with a prefix cache therefore computes a run once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from agentguard.judge.base import (
    ChoiceQuestion,
    GeneratedText,
    Judge,
    JudgeAnswer,
    Question,
    TextGenerator,
    VersionedJudge,
    close_judge,
)
from agentguard.judge.ensemble.panel import merge_answers
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.trajectory.model import Trajectory


class OptionSwapJudge:
    """Judge that asks with reversed options; the keys of the answers are the original options."""

    def __init__(self, judge: Judge) -> None:
        self.judge, self.name = judge, f"{judge.name} swapped"

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer the questions, in order."""
        answers = self.judge.decide(transcript, tuple(_reverse_options(one) for one in questions))
        return tuple(_restore_order(q, answer) for q, answer in zip(questions, answers, strict=True))

    def version(self, transcript: Trajectory) -> str:
        """Return the judge's version with a mark for reversed options."""
        return f"{_get_version(self.judge, transcript)}; options swapped"

    def close(self) -> None:
        """Close the judge."""
        close_judge(self.judge)


class BothOrdersJudge:
    """Judge that asks each question in both orders of its options, as a panel of two; one answer is enough.

    One call has both orders, so that both use the prefix cache of the run.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge, self.name = judge, f"{judge.name} in both orders"

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Answer the questions, in order."""
        answers, reversed_answers = ask_in_both_orders(self.judge, transcript, questions)
        return tuple(
            merge_answers(q, pair, quorum=1)
            for q, *pair in zip(questions, answers, reversed_answers, strict=True)
        )

    def generate_text(self, transcript: Trajectory, prompt: str) -> GeneratedText:
        """Generate text with the judge; return an error if the judge cannot generate text."""
        if isinstance(self.judge, TextGenerator):
            return self.judge.generate_text(transcript, prompt)
        return GeneratedText(error=f"judge {self.judge.name!r} cannot generate text")

    def version(self, transcript: Trajectory) -> str:
        """Return the judge's version with a mark for both orders."""
        return f"{_get_version(self.judge, transcript)}; both orders"

    def close(self) -> None:
        """Close the judge."""
        close_judge(self.judge)


def ask_in_both_orders(
    judge: Judge, run: Trajectory, questions: Sequence[Question]
) -> tuple[tuple[JudgeAnswer, ...], tuple[JudgeAnswer, ...]]:
    """Return a judge's answers to the questions as they are, and with reversed options."""
    question_list = tuple(questions)
    answers = judge.decide(run, (*question_list, *(_reverse_options(question) for question in question_list)))
    restored = (
        _restore_order(q, answer)
        for q, answer in zip(question_list, answers[len(question_list) :], strict=True)
    )
    return tuple(answers[: len(question_list)]), tuple(restored)


class ParaphraseJudge:
    """Judge that asks paraphrased questions.

    Args:
        judge: the judge.
        paraphrase: returns the paraphrase of a question's text.
        version: version of the paraphrases; change it with them, so that cached answers are not mixed up.
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
        """Return the judge's version with that of the paraphrases."""
        return f"{_get_version(self.judge, transcript)}; worded {self._version}"

    def close(self) -> None:
        """Close the judge."""
        close_judge(self.judge)


def _reverse_options(question: Question) -> ChoiceQuestion:
    options = list_options(question)[::-1]
    return ChoiceQuestion(id=question.id, text=question.text, options=options, context=question.context)


def _restore_order(question: Question, answer: JudgeAnswer) -> JudgeAnswer:
    if answer.error is not None:
        return answer
    ordered = {one: answer.probabilities[one] for one in list_options(question)}
    return replace(answer, probabilities=ordered)


def _get_version(judge: Judge, transcript: Trajectory) -> str:
    return judge.version(transcript) if isinstance(judge, VersionedJudge) else judge.name
