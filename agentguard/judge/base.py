"""A judge: typed questions about a run in, probabilities out.

Embedded model, chat model, pooling model, panel and cache all have this shape. A judge never sees the acting
agent's own context or tools, and it can only pick from the closed set a question gives it. What a question
has in ``shown`` is data to look at beside the run, e.g. what rules found: a judge that reads text is shown
it, fenced like the run; others pass over it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from agentguard.trajectory.model import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """A yes-or-no question; the answer's probabilities are keyed ``"yes"`` and ``"no"``."""

    id: str
    text: str
    context: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceQuestion:
    """One of a closed set; the answer's probabilities are keyed by the options and sum to 1."""

    id: str
    text: str
    options: tuple[str, ...]
    context: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreQuestion:
    """A whole number in ``[low, high]``; the answer's probabilities are keyed by the decimal numbers."""

    id: str
    text: str
    low: int
    high: int
    context: tuple[str, ...] = ()


Question = Predicate | ChoiceQuestion | ScoreQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAnswer:
    """Probabilities by option, or, if the judge could not answer, ``error`` and no probabilities."""

    question: str
    probabilities: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)


class Judge(Protocol):
    """Answers typed questions about a run; an answer it cannot give is a value, not an exception."""

    name: str

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Return one answer a question, in order."""
        ...


RUN_FAILED = Predicate(id="run_failed", text="Did the run fail to do what was asked?")


def build_root_cause_question(trajectory: Trajectory) -> ChoiceQuestion:
    """The question which step of the run is the root cause; options are the step indices as text."""
    options = tuple(str(step.index) for step in trajectory.steps)
    return ChoiceQuestion(
        id="root_cause", text="Which step is the root cause of the failure?", options=options
    )


MAX_TEXT_CHARS: Final = 400


def build_text_schema(characters: int) -> Mapping[str, Any]:
    """The JSON schema of a line of at most so many characters."""
    return {
        "type": "object",
        "properties": {"text": {"type": "string", "minLength": 1, "maxLength": characters}},
        "required": ["text"],
        "additionalProperties": False,
    }


TEXT_SCHEMA: Final = build_text_schema(MAX_TEXT_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedText:
    """One line; empty with ``error`` if it could not be written."""

    text: str = ""
    error: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class TextGenerator(Protocol):
    """A judge that writes."""

    def generate_text(self, transcript: Trajectory, prompt: str) -> GeneratedText:
        """Write at most `MAX_TEXT_CHARS` characters about a run; a line it cannot write is a value."""
        ...
