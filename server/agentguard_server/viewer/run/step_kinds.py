"""Kinds of steps; each has a letter and a label, so that its colour is not the only distinction."""

from __future__ import annotations

from dataclasses import dataclass

from agentguard.trajectory.model import Source, Step


@dataclass(frozen=True, slots=True)
class StepKind:
    """Kind of a step.

    Attributes:
        name: CSS class.
        letter: letter in the timeline.
        word: label.
    """

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
    """Return the kind of a step."""
    if step.source is Source.AGENT:
        return AGENT_ACTION if step.tool_calls else AGENT_MESSAGE
    return {Source.USER: USER, Source.SYSTEM: SYSTEM}.get(step.source, ENVIRONMENT)
