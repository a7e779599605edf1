"""First difference of two runs or of two JSON values."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

from agentguard.trajectory.model import Trajectory
from agentguard.trajectory.serialization import encode_step


@dataclass(frozen=True, slots=True)
class Divergence:
    """First step in which two runs differ.

    Attributes:
        step: position of the step.
        field: dotted path of the first differing field; empty if one run has no such step.
    """

    step: int
    field: str


def find_divergence(first: Trajectory, second: Trajectory) -> Divergence | None:
    """Return the first step in which two runs differ; None if all steps are equal."""
    for position, (one, other) in enumerate(zip_longest(first.steps, second.steps)):
        if one is None or other is None:
            return Divergence(position, "")
        if one != other:
            return Divergence(position, find_field(encode_step(one), encode_step(other)) or "")
    return None


def find_field(first: Any, second: Any) -> str | None:
    """Return the dotted path of the first difference of two JSON values; None if they are equal."""
    if isinstance(first, dict) and isinstance(second, dict):
        keys: list[Any] = sorted({*first, *second})
        pairs = [(key, first.get(key), second.get(key)) for key in keys]
    elif isinstance(first, list | tuple) and isinstance(second, list | tuple):
        pairs = [(key, *pair) for key, pair in enumerate(zip_longest(first, second))]
    else:
        return None if first == second else ""
    for key, one, other in pairs:
        path = find_field(one, other)
        if path is not None:
            return f"{key}.{path}" if path else str(key)
    return None
