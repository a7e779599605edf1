"""Embedded judge: answers whether a run failed and which step is the root cause, without an LLM."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import orjson

from agentguard.detect.base import Finding
from agentguard.errors import ModelFileError
from agentguard.judge.base import RUN_FAILED, ChoiceQuestion, JudgeAnswer, Question, build_root_cause_question
from agentguard.judge.embedded.model import EmbeddedJudgement, EmbeddedModel
from agentguard.judge.embedded.model_card import MODEL_FILE, get_default_folder
from agentguard.judge.embedded.model_io import (
    STRUCTURE_KEY,
    decode_model,
    dump_model,
    encode_model,
    load_model,
)
from agentguard.trajectory.model import Source, Step, Trajectory

_ROOT_CAUSE_ID = "root_cause"
_ERROR_RATE = 0.1


class EmbeddedJudge:
    """Judge that answers with a trained embedded model.

    Args:
        model: a trained model, the folder of one, or None for the packaged model.

    Raises:
        ModelFileError: the model file is missing, was changed, or does not match its card.
    """

    name = "embedded"

    def __init__(self, model: EmbeddedModel | Path | None = None) -> None:
        self.model = model if isinstance(model, EmbeddedModel) else load_model(model)

    def decide(
        self, transcript: Trajectory, questions: Sequence[Question], findings: Sequence[Finding] = ()
    ) -> tuple[JudgeAnswer, ...]:
        """Answer `RUN_FAILED` and `build_root_cause_question`; the answer to any other question is an error.

        ``findings`` of detectors count only on kinds of log that the model does not know.
        """
        if not transcript.steps:
            return tuple(JudgeAnswer(question=q.id, error="the run has no step") for q in questions)
        judgement = self.model.judge(transcript, findings, risk=_ERROR_RATE)
        return tuple(_build_answer(question, judgement) for question in questions)


def _build_answer(question: Question, judgement: EmbeddedJudgement) -> JudgeAnswer:
    if question.id == RUN_FAILED.id and question == RUN_FAILED:
        return JudgeAnswer(
            question=question.id,
            probabilities={"yes": judgement.failure_probability, "no": 1 - judgement.failure_probability},
        )
    if question.id == _ROOT_CAUSE_ID and isinstance(question, ChoiceQuestion):
        return _build_choice_answer(question, judgement)
    return JudgeAnswer(question=question.id, error="the embedded judge was not trained for this question")


def _build_choice_answer(question: ChoiceQuestion, judgement: EmbeddedJudgement) -> JudgeAnswer:
    """Distribute the probability over the options; steps that are not candidates get 0."""
    by_step = {
        str(step): float(p)
        for step, p in zip(judgement.table.steps, judgement.step_probabilities, strict=True)
    }
    masses = {option: by_step.get(option, 0.0) for option in question.options}
    total = math.fsum(masses.values())
    if total <= 0:
        return JudgeAnswer(question=question.id, error="no option is a step that can be at fault")
    return JudgeAnswer(
        question=question.id, probabilities={option: p / total for option, p in masses.items()}
    )


def verify_model(folder: Path | None = None) -> dict[str, Any]:
    """Load a model with NumPy and with skops, compare the two, and test that the model answers.

    Args:
        folder: folder of the model file and its card; None selects the packaged model.

    Returns:
        File, SHA-256, size in bytes and number of arrays, for a report.

    Raises:
        ModelFileError: the model does not match its card, skops finds an untrusted type, the two readings
            differ, or the model does not answer.
    """
    import skops.io

    model_folder = folder or get_default_folder()
    model = load_model(model_folder)
    data = (model_folder / MODEL_FILE).read_bytes()
    types = skops.io.get_untrusted_types(data=data)
    if types:
        raise ModelFileError(
            f"{model_folder / MODEL_FILE} contains types that are not trusted: {', '.join(sorted(types))}"
        )
    arrays = skops.io.loads(data, trusted=[])
    structure = orjson.loads(arrays.pop(STRUCTURE_KEY).tobytes())
    if (
        encode_model(decode_model(structure, arrays))[0] != encode_model(model)[0]
        or dump_model(model) != data
    ):
        raise ModelFileError(f"{model_folder / MODEL_FILE} was not written by training")
    run = _build_probe_run()
    answers = EmbeddedJudge(model).decide(run, [RUN_FAILED, build_root_cause_question(run)])
    if any(answer.error for answer in answers):
        raise ModelFileError(f"{model_folder / MODEL_FILE} does not answer")
    return {
        "file": str(model_folder / MODEL_FILE),
        "sha256": hashlib.sha256(data).hexdigest(),
        "bytes": len(data),
        "arrays": len(arrays),
        "untrusted_types": 0,
        "answers": True,
    }


def _build_probe_run() -> Trajectory:
    """Build a run of two turns to test that a model answers."""
    texts = ("Add the two numbers 12 and 30.", "The sum of 12 and 30 is 41.")
    steps = tuple(
        Step(index=i, source=source, agent=source.value, content=text)
        for i, (source, text) in enumerate(zip((Source.USER, Source.AGENT), texts, strict=True))
    )
    return Trajectory(id="probe", format="probe", task=texts[0], steps=steps)
