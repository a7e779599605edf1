"""What a classifier was trained for: which questions, over which texts, and what its classes mean."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

from agentguard.errors import ConfigError
from agentguard.judge.base import Choice, Predicate, Question
from agentguard.judge.closed import options_of
from agentguard.judge.head import Head
from agentguard.judge.neutral import neutral, one_line
from agentguard.judge.prompts import block, render
from agentguard.settings_judge import Task
from agentguard.trajectory.model import Trajectory

__all__ = ["ANY", "Classifier", "Task", "steps_of", "texts_of"]

ANY: Final = "*"
_NONCE: Final = "0" * 16
_TASK: Final = 300
_LEAST: Final = 200
_STEPS = re.compile(r"(?:steps? )?(\d{1,9})(?: to (\d{1,9}))?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Classifier:
    """How one kind of question is put to a served model.

    Attributes:
        question: id of the questions it answers, or how their ids begin, with ``*`` at the end; ``"*"`` alone
            for all, which only a scorer can.
        task: ``classify`` and ``embed`` read one text, ``score`` a question and a text.
        options: what the model's classes mean, in their order; for ``classify``.
        by: ``run``: one text, the run. ``step``: a text for each step that the options name (``"7"``,
            ``"step 7"``, ``"steps 7 to 9"``); each step's share is its probability of ``chosen``, or its
            score, and of several steps the largest counts. ``shown``: one text, what the question shows
            beside the run, e.g. the message whose safety is asked about.
        chosen: the option that means "this one" of a step.
        head: what makes probabilities of vectors; for ``embed``.

    Raises:
        ConfigError: these do not go together.
    """

    question: str
    task: Task = "classify"
    options: tuple[str, ...] = ()
    by: Literal["run", "step", "shown"] = "run"
    chosen: str = "yes"
    head: Head | None = None

    def __post_init__(self) -> None:
        if (self.task == "embed") != (self.head is not None):
            raise ConfigError(f"classifier {self.question!r}: embed needs a head, and nothing else takes one")
        if self.task == "classify" and len(set(self.options)) != max(2, len(self.options)):
            raise ConfigError(f"classifier {self.question!r}: classify needs at least two different options")
        if self.task != "score" and (
            self.question == ANY or (self.by == "step" and self.chosen not in self.classes)
        ):
            raise ConfigError(f"classifier {self.question!r}: its classes do not answer that")

    @property
    def classes(self) -> tuple[str, ...]:
        """What the classes mean, in order; empty for a scorer."""
        return self.head.options if self.head is not None else self.options

    def fits(self, question: Question, run: Trajectory) -> bool:
        """Whether it was trained for a question about a run."""
        if self.question.endswith(ANY):
            if not question.id.startswith(self.question[:-1]):
                return False
        elif self.question != question.id:
            return False
        options = options_of(question)
        if self.by == "step":
            here = {step.index for step in run.steps}
            named = [steps_of(option) for option in options]
            found = bool(named) and all(held and here >= set(held) for held in named)
            return isinstance(question, Choice) and found
        if self.by == "shown" and not question.shown:
            return False
        return bool(options) and (self.task == "score" or set(options) <= set(self.classes))


def steps_of(option: str) -> tuple[int, ...]:
    """The steps that an option names; none if it names none."""
    named = _STEPS.fullmatch(option)
    if named is None:
        return ()
    first, last = int(named[1]), int(named[2] or named[1])
    return tuple(range(first, last + 1)) if last - first < 10_000 else ()


def texts_of(
    run: Trajectory, question: Question, by: Classifier, *, room: int
) -> tuple[tuple[str, str], ...]:
    """What a classifier is given, as pairs of query and text: train it on texts made by this.

    Args:
        run: the run.
        question: what is asked; its words are only given to a scorer.
        by: the classifier.
        room: characters a pair may have.

    Raises:
        ConfigError: there is no room for a single step.
    """
    asked = one_line(question.text, room // 2)
    head = f"task: {one_line(run.task, min(_TASK, room // 4))}\n"
    left = max(_LEAST, room - len(head) - (len(asked) if by.task == "score" else 0))
    if by.by == "step":
        steps = [run.steps[step] for option in options_of(question) for step in steps_of(option)]
        return tuple((asked, head + block(step, left)[:left]) for step in steps)
    if by.by == "shown":
        shown = head + neutral("\n".join(question.shown))[:left]
    else:
        shown = render(run, nonce=_NONCE, limit=max(0, room - len(asked) - _LEAST)).text
    if by.task == "score" and not isinstance(question, Predicate):
        return tuple((f"{asked} {one_line(option, _LEAST)}", shown) for option in options_of(question))
    return ((asked, shown),)
