"""The embedded judge: answers whether a run failed and which step is the root cause, without an LLM."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from agentguard.detect.base import Finding
from agentguard.judge.base import RUN_FAILED, Answer, Choice, Question
from agentguard.judge.model import Judgement, Model
from agentguard.judge.store import load
from agentguard.trajectory.model import Trajectory

_ROOT_CAUSE = "root_cause"
_RISK = 0.1


class EmbeddedJudge:
    """A trained model behind the judge's seam.

    Args:
        model: a trained model, the folder of one, or None for the one that ships with agentguard.

    Raises:
        ModelFileError: the model file is missing, was changed, or does not match its card.
    """

    name = "embedded"

    def __init__(self, model: Model | Path | None = None) -> None:
        self.model = model if isinstance(model, Model) else load(model)

    def decide(
        self, transcript: Trajectory, questions: Sequence[Question], findings: Sequence[Finding] = ()
    ) -> tuple[Answer, ...]:
        """Answer `RUN_FAILED` and `root_cause_question`; any other question gets an answer with an error.

        ``findings`` of detectors count on kinds of log the model does not know.
        """
        if not transcript.steps:
            return tuple(Answer(question=q.id, error="the run has no step") for q in questions)
        judged = self.model.judge(transcript, findings, risk=_RISK)
        return tuple(_answer(question, judged) for question in questions)


def _answer(question: Question, judged: Judgement) -> Answer:
    if question.id == RUN_FAILED.id and question == RUN_FAILED:
        return Answer(question=question.id, probabilities={"yes": judged.failed, "no": 1 - judged.failed})
    if question.id == _ROOT_CAUSE and isinstance(question, Choice):
        return _choice(question, judged)
    return Answer(question=question.id, error="the embedded judge was not trained for this question")


def _choice(question: Choice, judged: Judgement) -> Answer:
    """Probabilities over the options; steps that are no candidates have none."""
    by_step = {str(step): float(p) for step, p in zip(judged.table.steps, judged.steps, strict=True)}
    held = {option: by_step.get(option, 0.0) for option in question.options}
    total = math.fsum(held.values())
    if total <= 0:
        return Answer(question=question.id, error="no option is a step that can be at fault")
    return Answer(question=question.id, probabilities={option: p / total for option, p in held.items()})
