"""Fine-tuning examples for a chat judge: its questions, with the answers of people.

The prompts are those of `agentguard.judge.llm.chat_judge.ChatJudge` without schemata. The answers are the
outcome and the root-cause step in the human judgements of a store. Each question occurs in both orders of its
options, so that the model does not learn a position.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

from agentguard.judge.base import RUN_FAILED, Question, build_root_cause_question
from agentguard.judge.llm.multiple_choice import list_options, trace_choice
from agentguard.judge.llm.prompt import build_question_messages, compute_nonce, render_run
from agentguard.judge.llm.types import LABELS, Message
from agentguard.localize.base import Diagnosis
from agentguard.localize.human_labels import RunLabel
from agentguard.trajectory.model import Trajectory
from agentguard.verdict import Verdict

MAX_RUN_CHARS: Final = 60_000
"""Default limit of a run in a prompt, in characters."""
_NONCE_SECRET: Final = b"agentguard judge examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class FineTuningExample:
    """One question with the right label.

    Attributes:
        messages: prompt of the question.
        answer: label of the right option.
        rejected: label of the diagnosis, if it is wrong; else empty.
    """

    messages: tuple[Message, ...]
    answer: str
    rejected: str = ""


def build_fine_tuning_examples(
    run: Trajectory, label: RunLabel, *, max_characters: int = MAX_RUN_CHARS
) -> Iterator[FineTuningExample]:
    """Yield an example for each question about a run that a human label answers.

    Raises:
        ConfigError: ``max_characters`` is too small for the task and a single step.
    """
    nonce = compute_nonce(run, _NONCE_SECRET)
    rendered = render_run(run, nonce=nonce, limit=max_characters)
    for question, right, given in _list_answers(run, label):
        options = list_options(question)
        for order in (options, options[::-1]):
            given_path = {} if given is None else dict(trace_choice(order, given))
            for shown, place in trace_choice(order, right):
                given_place = given_path.get(shown, place)
                yield FineTuningExample(
                    messages=build_question_messages(rendered, question, shown),
                    answer=LABELS[place],
                    rejected=LABELS[given_place] if given_place != place else "",
                )


def _list_answers(run: Trajectory, label: RunLabel) -> Iterator[tuple[Question, str, str | None]]:
    """Yield each question with the right option, and with that of the diagnosis if it has one."""
    if label.failed is not None:
        given = _find_outcome(label.diagnosis)
        yield RUN_FAILED, "yes" if label.failed else "no", given
    if label.step is not None and label.step < len(run.steps):
        hypotheses = label.diagnosis.hypotheses
        top = str(hypotheses[0].step) if hypotheses and hypotheses[0].step < len(run.steps) else None
        yield build_root_cause_question(replace(run, branches=())), str(label.step), top


def _find_outcome(diagnosis: Diagnosis) -> str | None:
    outcomes = {Verdict.FAILED: "yes", Verdict.NO_FAILURE_FOUND: "no"}
    return outcomes.get(diagnosis.verdict)


def to_training_line(example: FineTuningExample, name: str) -> dict[str, object] | None:
    """Return an example in a format of fine-tuning; None if the format needs a rejected answer.

    Args:
        example: the example.
        name: ``judge_sft`` or ``judge_preference``.
    """
    prompt: Sequence[Message] = example.messages
    chosen = {"role": "assistant", "content": example.answer}
    if name == "judge_sft":
        return {"messages": [*prompt, chosen]}
    if not example.rejected:
        return None
    rejected = {"role": "assistant", "content": example.rejected}
    return {"prompt": [*prompt], "chosen": [chosen], "rejected": [rejected]}
