"""Kinds of steps: each has a letter, a word and a class, so that none is told by its colour alone."""

from __future__ import annotations

from dataclasses import dataclass

from agentguard.trajectory.model import Source, Step


@dataclass(frozen=True, slots=True)
class Look:
    """How a kind of step looks: class name, letter, word."""

    name: str
    letter: str
    word: str


SYSTEM = Look("system", "S", "System")
USER = Look("user", "U", "User")
SPEAKS = Look("speaks", "A", "Agent")
ACTS = Look("acts", "T", "Agent, with tools")
WORLD = Look("world", "E", "Environment")

LOOKS = (USER, SPEAKS, ACTS, WORLD, SYSTEM)


def look_of(step: Step) -> Look:
    """The kind of a step."""
    if step.source is Source.AGENT:
        return ACTS if step.tool_calls else SPEAKS
    return {Source.USER: USER, Source.SYSTEM: SYSTEM}.get(step.source, WORLD)
