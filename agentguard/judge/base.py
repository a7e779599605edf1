"""Judge interface: typed questions about a run, answered with probabilities.

Embedded model, chat model, pooling model, panel and cache implement it. A judge receives neither the agent's
context nor its tools, and can only choose from the closed set of a question. A question's ``context`` is data
beside the run, e.g. findings of rules. A judge that reads text receives it in a fence, like the run; others
ignore it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, runtime_checkable

from agentguard.trajectory.model import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicate:
    """Yes-or-no question; the answer's probabilities are keyed ``"yes"`` and ``"no"``."""

    id: str
    text: str
    context: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ChoiceQuestion:
    """Choice from a closed set; the answer's probabilities are keyed by the options and sum to 1."""

    id: str
    text: str
    options: tuple[str, ...]
    context: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreQuestion:
    """Integer in ``[low, high]``; the answer's probabilities are keyed by the decimal numbers."""

    id: str
    text: str
    low: int
    high: int
    context: tuple[str, ...] = ()


Question = Predicate | ChoiceQuestion | ScoreQuestion


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAnswer:
    """Probabilities by option; ``error`` and no probabilities if the judge could not answer."""

    question: str
    probabilities: Mapping[str, float] = field(default_factory=dict)
    error: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)


USAGE_KEYS: Final = (
    "calls", "cached_answers", "prompt_tokens", "completion_tokens", "cached_tokens", "seconds",
)  # fmt: skip
"""Counts in the ``usage`` of every judge that calls a model."""

COST_KEY: Final = "cost_usd"
"""Cost in US dollars in the ``usage``; absent if the model has no price."""


def add_usage(total: dict[str, Any], usage: Mapping[str, object]) -> None:
    """Add the usage of an answer to a total; the label mass of the total is the smallest one."""
    for name in (*USAGE_KEYS, COST_KEY):
        value = usage.get(name)
        if isinstance(value, int | float):
            total[name] = total.get(name, 0) + value
    mass = usage.get("label_mass")
    if isinstance(mass, int | float):
        total["label_mass"] = min(mass, total.get("label_mass", 1.0))


class Judge(Protocol):
    """Component that answers typed questions about a run; errors are values, not exceptions.

    Optional members are protocols of their own: `VersionedJudge`, `ClosableJudge` and `TextGenerator`.
    """

    name: str

    def decide(self, transcript: Trajectory, questions: Sequence[Question]) -> tuple[JudgeAnswer, ...]:
        """Return one answer for each question, in order."""
        ...


@runtime_checkable
class VersionedJudge(Protocol):
    """Judge that reports the dependencies of its answers."""

    def version(self, transcript: Trajectory) -> str:
        """Return everything besides run and question that an answer depends on."""
        ...


@runtime_checkable
class ClosableJudge(Protocol):
    """Judge that has connections, or that contains other judges."""

    def close(self) -> None:
        """Close the connections; a later question opens them again."""
        ...


def close_judge(judge: Judge) -> None:
    """Close a judge and the judges inside of it; a later question opens them again."""
    if isinstance(judge, ClosableJudge):
        judge.close()


RUN_FAILED = Predicate(id="run_failed", text="Did the run fail to do what was asked?")


def build_root_cause_question(trajectory: Trajectory) -> ChoiceQuestion:
    """Build the question for the root-cause step; options are the step indices as text."""
    options = tuple(str(step.index) for step in trajectory.steps)
    return ChoiceQuestion(
        id="root_cause", text="Which step is the root cause of the failure?", options=options
    )


MAX_TEXT_CHARS: Final = 400


def build_text_schema(characters: int) -> Mapping[str, Any]:
    """Return the JSON schema of a text of at most ``characters`` characters."""
    return {
        "type": "object",
        "properties": {"text": {"type": "string", "minLength": 1, "maxLength": characters}},
        "required": ["text"],
        "additionalProperties": False,
    }


TEXT_SCHEMA: Final = build_text_schema(MAX_TEXT_CHARS)


@dataclass(frozen=True, slots=True, kw_only=True)
class GeneratedText:
    """Generated text; empty, with an ``error``, if the generation failed."""

    text: str = ""
    error: str | None = None
    usage: Mapping[str, Any] = field(default_factory=dict)


@runtime_checkable
class TextGenerator(Protocol):
    """Judge that can generate text."""

    def generate_text(self, transcript: Trajectory, prompt: str) -> GeneratedText:
        """Generate at most `MAX_TEXT_CHARS` characters about a run; errors are values."""
        ...
