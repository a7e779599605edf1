"""Specification of a classifier: its questions, its input texts and the meaning of its classes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from agentguard.config.judge import PoolingTask
from agentguard.errors import ConfigError
from agentguard.judge.base import ChoiceQuestion, Predicate, Question
from agentguard.judge.classifier.linear_head import LinearHead
from agentguard.judge.llm.multiple_choice import list_options
from agentguard.judge.llm.prompt import render_run, render_step
from agentguard.judge.llm.sanitization import neutralize, to_one_line
from agentguard.trajectory.model import Trajectory

ANY_QUESTION: Final = "*"
_FIXED_NONCE: Final = "0" * 16
_MAX_TASK_CHARS: Final = 300
_MIN_CHARS: Final = 200
_STEP_RANGE_PATTERN = re.compile(r"(?:steps? )?(\d{1,9})(?: to (\d{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassifierSpec:
    """Mapping of one kind of question to a served model.

    Attributes:
        question: id of the questions that it answers, or a prefix of their ids with ``*`` at the end;
            ``"*"`` alone matches all questions, which only a scorer can answer.
        task: ``classify`` and ``embed`` read one text, ``score`` reads a question and a text.
        options: meaning of the model's classes, in their order; for ``classify``.
        by: input text.
            ``run``: the run.
            ``step``: one text for each step that the options name (``"7"``, ``"step 7"``,
            ``"steps 7 to 9"``). The weight of a step is its probability of ``chosen``, or its score. The
            weight of an option is the maximum over its steps.
            ``shown``: the question's context, e.g. the message whose safety is rated.
        chosen: the option that selects a step.
        head: turns vectors into probabilities; for ``embed``.

    Raises:
        ConfigError: the attributes contradict each other.
    """

    question: str
    task: PoolingTask = "classify"
    options: tuple[str, ...] = ()
    by: Literal["run", "step", "shown"] = "run"
    chosen: str = "yes"
    head: LinearHead | None = None

    def __post_init__(self) -> None:
        if (self.task == "embed") != (self.head is not None):
            raise ConfigError(f"classifier {self.question!r}: the task embed, and no other, needs a head")
        if self.task == "classify" and len(set(self.options)) != max(2, len(self.options)):
            raise ConfigError(f"classifier {self.question!r}: classify needs at least two different options")
        if self.task != "score" and (
            self.question == ANY_QUESTION or (self.by == "step" and self.chosen not in self.classes)
        ):
            raise ConfigError(f"classifier {self.question!r}: its classes cannot answer the question")

    @property
    def classes(self) -> tuple[str, ...]:
        """Meaning of the classes, in order; empty for a scorer."""
        return self.head.options if self.head is not None else self.options

    def matches(self, question: Question, run: Trajectory) -> bool:
        """Return whether the classifier was trained for a question about a run."""
        if self.question.endswith(ANY_QUESTION):
            if not question.id.startswith(self.question[:-1]):
                return False
        elif self.question != question.id:
            return False
        options = list_options(question)
        if self.by == "step":
            run_steps = {step.index for step in run.steps}
            step_groups = [parse_steps(option) for option in options]
            has_steps = bool(step_groups) and all(steps and run_steps >= set(steps) for steps in step_groups)
            return isinstance(question, ChoiceQuestion) and has_steps
        if self.by == "shown" and not question.context:
            return False
        return bool(options) and (self.task == "score" or set(options) <= set(self.classes))


def parse_steps(option: str) -> tuple[int, ...]:
    """Return the steps that an option names; empty if it names none."""
    match = _STEP_RANGE_PATTERN.fullmatch(option)
    if match is None:
        return ()
    first, last = int(match[1]), int(match[2] or match[1])
    return tuple(range(first, last + 1)) if last - first < 10_000 else ()


def build_text_pairs(
    run: Trajectory, question: Question, classifier: ClassifierSpec, *, max_characters: int
) -> tuple[tuple[str, str], ...]:
    """Build the classifier's input as pairs of query and text; use the same function for training texts.

    Args:
        run: the run.
        question: the question; only a scorer receives its text.
        classifier: the classifier.
        max_characters: limit of a pair.

    Raises:
        ConfigError: a single step does not fit into the limit.
    """
    question_text = to_one_line(question.text, max_characters // 2)
    head = f"task: {to_one_line(run.task, min(_MAX_TASK_CHARS, max_characters // 4))}\n"
    available = max(
        _MIN_CHARS, max_characters - len(head) - (len(question_text) if classifier.task == "score" else 0)
    )
    if classifier.by == "step":
        steps = [run.steps[step] for option in list_options(question) for step in parse_steps(option)]
        return tuple((question_text, head + render_step(step, available)[:available]) for step in steps)
    if classifier.by == "shown":
        run_text = head + neutralize("\n".join(question.context))[:available]
    else:
        run_text = render_run(
            run, nonce=_FIXED_NONCE, limit=max(0, max_characters - len(question_text) - _MIN_CHARS)
        ).text
    if classifier.task == "score" and not isinstance(question, Predicate):
        return tuple(
            (f"{question_text} {to_one_line(option, _MIN_CHARS)}", run_text)
            for option in list_options(question)
        )
    return ((question_text, run_text),)
