"""Kinds of steps: each has a letter, a word and a class, so that none is told by its colour alone."""

from __future__ import annotations

from dataclasses import dataclass

from agentguard.trajectory.model import Source, Step


@dataclass(frozen=True, slots=True)
class StepKind:
    """How a kind of step looks: class name, letter, word."""

    name: str
    letter: str
    word: str


SYSTEM = StepKind("system", "S", "System")
USER = StepKind("user", "U", "User")
AGENT_MESSAGE = StepKind("speaks", "A", "Agent")
AGENT_ACTION = StepKind("acts", "T", "Agent, with tools")
ENVIRONMENT = StepKind("world", "E", "Environment")

STEP_KINDS = (USER, AGENT_MESSAGE, AGENT_ACTION, ENVIRONMENT, SYSTEM)


def classify_step(step: Step) -> StepKind:
    """The kind of a step."""
    if step.source is Source.AGENT:
        return AGENT_ACTION if step.tool_calls else AGENT_MESSAGE
    return {Source.USER: USER, Source.SYSTEM: SYSTEM}.get(step.source, ENVIRONMENT)
